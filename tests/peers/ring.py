"""The server of each key, by `herdwick locate` and by other clients of memcached.
Usage: ring.py HERDWICK KEYS KEYS_PYMEMCACHE."""

import ctypes
import ctypes.util
import os
import re
import socket
import subprocess
import sys
import tempfile

from pymemcache.client.rendezvous import RendezvousHash

herdwick = sys.argv[1]
count, count_pymemcache = int(sys.argv[2]), int(sys.argv[3])
# Some hold bytes that are negative where `char` is signed.
keys = [b"key:%d" % n if n % 4 else b"user:\xc3\xa9:%x" % (n * 2654435761 % 2**32) for n in range(count)]


def located(servers, distribution, keys):
    """The servers of `keys` as places in `servers`, by our client."""
    command = [herdwick, "locate", "--server", ",".join(servers), "--distribution", distribution, "-"]
    done = subprocess.run(command, input=b"\n".join(keys), capture_output=True, check=True)
    names = {}
    for place, server in enumerate(servers):
        address = re.fullmatch(r"(.*?:\d+|/[^:]*)(:\d+)?( .*)?", server)
        names[(address[3] or " " + address[1])[1:].encode()] = place
    lines = done.stdout.splitlines()
    assert len(lines) == len(keys)
    return [names[line.rpartition(b"\t")[2]] for line in lines]


def compare(what, ours, theirs):
    wrong = sum(a != b for a, b in zip(ours, theirs, strict=True))
    assert wrong == 0, f"{what}: {wrong} of {len(ours)} keys have another server"
    print(f"{what}: {len(ours)} keys agree")


def libmemcached():
    lib = ctypes.CDLL(ctypes.util.find_library("memcached"))
    pointer, word = ctypes.c_void_p, ctypes.c_uint32
    lib.memcached_create.restype = pointer
    lib.memcached_create.argtypes = [pointer]
    lib.memcached_behavior_set.argtypes = [pointer, ctypes.c_int, ctypes.c_uint64]
    lib.memcached_server_add_with_weight.argtypes = [pointer, ctypes.c_char_p, ctypes.c_uint16, word]
    lib.memcached_server_add_unix_socket.argtypes = [pointer, ctypes.c_char_p]
    lib.memcached_generate_hash.restype = word
    lib.memcached_generate_hash.argtypes = [pointer, ctypes.c_char_p, ctypes.c_size_t]
    # The values of an enum, in the order of its header.
    with open("/usr/include/libmemcached-1.0/types/behavior.h") as header:
        names = re.findall(r"^\s*(MEMCACHED_BEHAVIOR_\w+)", header.read(), re.MULTILINE)
    equal = ["cache-1.example:11211", "cache-2.example:11212", "10.0.0.3:11211", "/run/m.sock"]
    weighted = ["a:11211:1", "b:11212:2", "c:11211:5"]
    many = [f"10.1.0.{n}:11211" for n in range(1, 31)]
    for behavior, distribution in [
        ("KETAMA_WEIGHTED", "ketama"),
        ("KETAMA", "ketama-one-at-a-time"),
    ]:
        for servers in [equal, weighted, many, many[:7], many[:1]]:
            client = lib.memcached_create(None)
            number = names.index("MEMCACHED_BEHAVIOR_" + behavior)
            assert lib.memcached_behavior_set(client, number, 1) == 0
            for server in servers:
                if server[0] == "/":
                    lib.memcached_server_add_unix_socket(client, server.encode())
                else:
                    host, port, weight = (server + ":1").split(":")[:3]
                    lib.memcached_server_add_with_weight(client, host.encode(), int(port), int(weight))
            theirs = [lib.memcached_generate_hash(client, key, len(key)) for key in keys]
            what = f"libmemcached {behavior}, {len(servers)} servers"
            compare(what, located(servers, distribution, keys), theirs)


def pymemcache():
    ascii_keys = [b"key:%d" % n for n in range(count_pymemcache)]
    servers = ["cache-1.example:11211", "cache-2.example:11212", "/run/m.sock"]
    ring = RendezvousHash(list(servers))
    theirs = [servers.index(ring.get_node(key.decode())) for key in ascii_keys]
    compare("pymemcache", located(servers, "rendezvous", ascii_keys), theirs)


class Lines:
    """A connection that sends many commands at a time."""

    def __init__(self, address):
        family = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        self.socket = socket.socket(family)
        self.socket.connect(address)

    def exchange(self, commands, end, replies):
        """Sends `commands`; reads until `end` has come `replies` times."""
        self.socket.sendall(commands)
        read, found, last = [], 0, b""
        while found < replies:
            more = self.socket.recv(1 << 20)
            assert more, b"".join(read)[-200:]
            read.append(more)
            last += more
            found += last.count(end)
            last = last[-(len(end) - 1) :]
        return b"".join(read)


def slices(keys, size):
    return (keys[at : at + size] for at in range(0, len(keys), size))


def check_proxy(ports, form):
    """Stores every key through twemproxy, and reads it where our client says it is."""
    servers = [form.format(port=port, number=place + 1) for place, port in enumerate(ports)]
    listed = "".join(f"   - {server}\n" for server in servers)
    with tempfile.TemporaryDirectory() as directory:
        with open(directory + "/conf", "w") as file:
            file.write(
                f"pool:\n  listen: {directory}/proxy\n  hash: md5\n  distribution: ketama\n"
                f"  timeout: 20000\n  preconnect: true\n  servers:\n{listed}"
            )
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            free = str(probe.getsockname()[1])
        command = ["nutcracker", "-c", directory + "/conf", "-o", directory + "/log"]
        proxy = subprocess.Popen([*command, "-a", "127.0.0.1", "-s", free])
        try:
            while not os.path.exists(directory + "/proxy"):
                assert proxy.poll() is None, open(directory + "/log").read()
            lines = Lines(directory + "/proxy")
            for some in slices(keys, 500):
                commands = b"".join(b"set %s 0 0 1\r\nv\r\n" % key for key in some)
                lines.exchange(commands, b"STORED\r\n", len(some))
        finally:
            proxy.terminate()
            proxy.wait()
    parts = [[] for _ in ports]
    for key, place in zip(keys, located(servers, "ketama", keys), strict=True):
        parts[place].append(key)
    for part, port in zip(parts, ports, strict=True):
        lines = Lines(("127.0.0.1", port))
        for some in slices(part, 100):
            reply = lines.exchange(b"get " + b" ".join(some) + b"\r\n", b"END\r\n", 1)
            assert reply.count(b"VALUE ") == len(some), f"of {len(some)} keys some are elsewhere"
        lines.exchange(b"flush_all\r\n", b"OK\r\n", 1)
    print(f"twemproxy, {servers}: {len(keys)} keys agree")


def twemproxy():
    serve = [herdwick, "serve", "-p", "0", "-m", "256", "-t", "1", "--verbs", "off"]
    servers = [subprocess.Popen(serve, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    try:
        ready = [server.stdout.readline() for server in servers]
        ports = [int(re.search(r"127\.0\.0\.1:(\d+)", line)[1]) for line in ready]
        check_proxy(ports, "127.0.0.1:{port}:1")
        check_proxy(ports, "127.0.0.1:{port}:{number} server-{number}")
    finally:
        for server in servers:
            server.terminate()
            server.wait()


libmemcached()
pymemcache()
twemproxy()
