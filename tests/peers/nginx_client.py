"""nginx as a client (memcached_pass), with kept connections, and a browser behind it.
Usage: nginx_client.py PORT. Needs nginx in the path, and pymemcache."""

import concurrent.futures
import contextlib
import gzip
import http.client
import os
import socket
import subprocess
import sys
import tempfile
import time

from pymemcache.client.base import Client

CONFIG = """
daemon off;
pid {dir}/pid;
error_log stderr warn;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {dir}/body;
    proxy_temp_path {dir}/proxy;
    fastcgi_temp_path {dir}/fastcgi;
    uwsgi_temp_path {dir}/uwsgi;
    scgi_temp_path {dir}/scgi;
    upstream cache {{ server 127.0.0.1:{port}; keepalive 8; }}
    server {{
        listen unix:{dir}/http;
        location / {{
            set $memcached_key $uri;
            memcached_pass cache;
            memcached_gzip_flag 2;
            default_type text/plain;
            gunzip on;
        }}
    }}
}}
"""


def get(path, headers={}):
    with contextlib.closing(http.client.HTTPConnection("localhost")) as browser:
        browser.sock = socket.socket(socket.AF_UNIX)
        browser.sock.settimeout(20)
        browser.sock.connect(directory + "/http")
        browser.request("GET", path, headers=headers)
        answer = browser.getresponse()
        return answer.status, answer.getheader("Content-Encoding"), answer.read()


def check(cache):
    cache.flush_all()
    before = int(cache.stats()[b"total_connections"])
    assert get("/none")[0] == 404
    page, large = b"<p>page</p>", bytes(range(256)) * 3900
    for path, body in [("/page", page), ("/large", large), ("/empty", b"")]:
        assert cache.set(path, body, noreply=False)
        assert get(path) == (200, None, body), path
    # nginx escapes what a key cannot have.
    assert cache.set("/a%20b", b"escaped", noreply=False) and get("/a%20b")[2] == b"escaped"
    # The flag of a compressed value.
    assert cache.set("/packed", gzip.compress(page), flags=2, noreply=False)
    assert get("/packed") == (200, None, page)
    status, encoding, body = get("/packed", {"Accept-Encoding": "gzip"})
    assert (status, encoding, gzip.decompress(body)) == (200, "gzip", page)
    assert cache.set("/short", page, expire=1, noreply=False) and get("/short")[0] == 200
    end = time.monotonic() + 20
    while get("/short")[0] != 404:
        assert time.monotonic() < end
    assert cache.delete("/page", noreply=False) and get("/page")[0] == 404
    with concurrent.futures.ThreadPoolExecutor(8) as browsers:
        for answer in browsers.map(get, ["/large", "/none", "/empty"] * 100):
            assert answer in [(200, None, large), (200, None, b"")] or answer[0] == 404
    connections = int(cache.stats()[b"total_connections"]) - before
    assert connections < 100, f"{connections} connections: none was kept"


port = int(sys.argv[1])
with tempfile.TemporaryDirectory() as directory:
    os.chmod(directory, 0o755)
    with open(directory + "/conf", "w") as file:
        file.write(CONFIG.format(dir=directory, port=port))
    nginx = subprocess.Popen(["nginx", "-p", directory, "-c", directory + "/conf"])
    try:
        while not os.path.exists(directory + "/pid"):
            assert nginx.poll() is None, "nginx has ended"
        check(Client(("127.0.0.1", port), timeout=20))
    finally:
        nginx.terminate()
        nginx.wait()
print("nginx: passed")
