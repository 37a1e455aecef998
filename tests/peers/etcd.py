"""Servers that register in a real etcd: which of them `herdwick --server etcd://...` finds while servers join,
leave and are killed, and etcd is killed, wiped, compacted and stopped; and that a server whose lease has run
out serves nothing of before. `etcd.py HERDWICK`."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request

HERDWICK = sys.argv[1]
LEASE = 2
# Within which a view is right, by docs/cluster.md.
VIEW = 2.0
# What a process takes on a busy machine, besides.
SLACK = 5.0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Etcd:
    """An etcd of one member, on ports that stay."""

    def __init__(self, directory):
        self.directory = directory
        self.port, self.peer = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.start()

    def start(self):
        peer = f"http://127.0.0.1:{self.peer}"
        self.process = subprocess.Popen(
            ["etcd", "--data-dir", self.directory, "--listen-client-urls", self.url,
             "--advertise-client-urls", self.url, "--listen-peer-urls", peer,
             "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}",
             "--log-level", "error"])
        until(lambda: self.call("/v3/kv/range", '{"key":"AA=="}') is not None, "etcd answers", 30)

    def call(self, path, body):
        request = urllib.request.Request(self.url + path, body.encode())
        try:
            return urllib.request.urlopen(request, timeout=1).read()
        except OSError:
            return None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def wipe(self):
        self.kill()
        shutil.rmtree(self.directory)


class Server:
    def __init__(self, etcd, port=0):
        self.process = subprocess.Popen(
            [HERDWICK, "serve", "-p", str(port), "-t", "1", "--shm", "off", "--verbs", "off",
             "--etcd", etcd.url, "--cluster", "test", "--etcd-lease", str(LEASE)],
            stdout=subprocess.PIPE, text=True)
        ready = self.process.stdout.readline()
        self.name = ready.split(" ready on ")[1].split(" ")[0]

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait()


def until(holds, what, longest=VIEW + SLACK):
    start = time.monotonic()
    while not holds():
        if time.monotonic() - start > longest:
            raise AssertionError(f"not within {longest} s: {what}")
        time.sleep(0.02)
    print(f"{time.monotonic() - start:6.2f} s  {what}", flush=True)


def run(*arguments):
    return subprocess.run([HERDWICK, *arguments], capture_output=True, text=True)


class Cluster:
    def __init__(self, etcd):
        self.name = f"etcd://127.0.0.1:{etcd.port}/test"
        self.keys = [f"key:{number}" for number in range(200)]

    def servers(self):
        """The servers that have one of the keys."""
        out = run("locate", "--server", self.name, *self.keys)
        return {line.split("\t")[1] for line in out.stdout.splitlines()}

    def becomes(self, servers, what, longest=VIEW + SLACK):
        names = {server.name for server in servers}
        until(lambda: self.servers() == names, what, longest)


def text(name, line):
    host, port = name.split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(line)
        return connection.recv(1 << 16)


def main():
    directory = tempfile.mkdtemp(prefix="herdwick-etcd-")
    etcd = Etcd(os.path.join(directory, "data"))
    servers = [Server(etcd) for _ in range(3)]
    try:
        cluster = Cluster(etcd)
        a, b, c = servers
        cluster.becomes([a, b, c], "three servers have registered")
        assert run("set", "greeting", "hello", "--server", cluster.name).returncode == 0
        assert run("get", "greeting", "--server", cluster.name).stdout.strip() == "hello"
        c.end()
        cluster.becomes([a, b], "one that ends has left")
        b.end(signal.SIGKILL)
        cluster.becomes([a], "one that is killed leaves with its lease", LEASE + VIEW + SLACK)
        servers += [Server(etcd), Server(etcd)]
        _, _, _, d, e = servers
        cluster.becomes([a, d, e], "two have joined")
        etcd.call("/v3/kv/compaction", '{"revision":"3"}')
        etcd.kill()
        etcd.start()
        cluster.becomes([a, d, e], "etcd was compacted, killed and started")
        etcd.wipe()
        etcd.start()
        cluster.becomes([a, d, e], "etcd was wiped")
        # A server that is out for longer than its lease serves nothing of before when it is back.
        assert text(d.name, b"set stale 0 0 3\r\nold\r\n") == b"STORED\r\n"
        d.process.send_signal(signal.SIGSTOP)
        cluster.becomes([a, e], "one that is cut off leaves with its lease", LEASE + VIEW + SLACK)
        d.process.send_signal(signal.SIGCONT)
        cluster.becomes([a, d, e], "it is back")
        assert text(d.name, b"get stale\r\n") == b"END\r\n", "it serves what is stale"
        # While etcd hangs, servers serve.
        etcd.process.send_signal(signal.SIGSTOP)
        assert text(a.name, b"set k 0 0 1\r\nv\r\n") == b"STORED\r\n"
        etcd.process.send_signal(signal.SIGCONT)
        cluster.becomes([a, d, e], "etcd has hung")
    finally:
        for server in servers:
            server.process.kill()
        etcd.process.send_signal(signal.SIGCONT)
        etcd.kill()
        shutil.rmtree(directory, ignore_errors=True)


main()
