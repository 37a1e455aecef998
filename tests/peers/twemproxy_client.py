"""twemproxy (nutcracker) between pymemcache and the server, which it knows under two names.
Usage: twemproxy_client.py PORT."""

import os
import socket
import subprocess
import sys
import tempfile
import time

from pymemcache.client.base import Client

CONFIG = """
pool:
  listen: {dir}/proxy
  hash: fnv1a_64
  distribution: ketama
  timeout: 20000
  preconnect: true
  servers:
   - 127.0.0.1:{port}:1 one
   - 127.0.0.1:{port}:1 two
"""


def check(client):
    assert client.set("key", b"value", expire=600, flags=7, noreply=False)
    assert client.get("key") == b"value"
    assert client.add("key", b"other", noreply=False) is False
    assert client.append("key", b"!", noreply=False) and client.prepend("key", b">", noreply=False)
    value, unique = client.gets("key")
    assert value == b">value!"
    assert client.cas("key", b"swapped", unique, noreply=False) is True
    assert client.cas("key", b"again", unique, noreply=False) is False
    assert client.cas("none", b"x", unique, noreply=False) is None
    client.set("n", b"10", noreply=False)
    assert client.incr("n", 5, noreply=False) == 15 and client.decr("n", 20, noreply=False) == 0
    assert client.touch("key", 60, noreply=False) is True
    # A get of many keys is split by server and put together again.
    many = {f"many{n}": b"%d" % n for n in range(1000)}
    for key, value in many.items():
        client.set(key, value, noreply=True)
    assert client.get_many([*many, "none"]) == many
    large = bytes(range(256)) * 3900
    assert client.set("large", large, noreply=False) and client.get("large") == large
    assert client.set("short", b"lived", expire=1, noreply=False)
    end = time.monotonic() + 20
    while client.get("short") is not None:
        assert time.monotonic() < end
    assert client.delete("key", noreply=False) is True and client.get("key") is None
    assert client.delete("key", noreply=False) is False


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1])


with tempfile.TemporaryDirectory() as directory:
    with open(directory + "/conf", "w") as file:
        file.write(CONFIG.format(dir=directory, port=sys.argv[1]))
    # Its statistics take a port, too.
    command = ["nutcracker", "-c", directory + "/conf", "-o", directory + "/log", "-a", "127.0.0.1"]
    proxy = subprocess.Popen([*command, "-s", free_port()])
    try:
        while not os.path.exists(directory + "/proxy"):
            assert proxy.poll() is None, open(directory + "/log").read()
        check(Client(directory + "/proxy", timeout=20))
    finally:
        proxy.terminate()
        proxy.wait()
print("twemproxy: passed")
