"""One key set by each client of several servers is read by each other: the library for C, the client for
Python, pymemcache, libmemcached and twemproxy, over three servers.
Usage: reach.py HERDWICK LIBHERDWICK, with the client for Python installed."""

import ctypes
import ctypes.util
import os
import random
import re
import socket
import subprocess
import sys
import tempfile

import herdwick
import pymemcache.client.hash

binary, library = sys.argv[1:]
KEYS = 100
random.seed(22)


class C:
    """The library for C."""

    class Item(ctypes.Structure):
        _fields_ = [
            ("value", ctypes.c_void_p),
            ("length", ctypes.c_size_t),
            ("version", ctypes.c_uint64),
            ("flags", ctypes.c_uint32),
            ("status", ctypes.c_int32),
        ]

    def __init__(self, ports, distribution):
        self.lib = ctypes.CDLL(library)
        size, word, number = ctypes.c_size_t, ctypes.c_uint32, ctypes.c_char_p
        options, self.client = ctypes.c_void_p(), ctypes.c_void_p()
        self.lib.herdwick_error_text.restype = ctypes.c_char_p
        self.check(self.lib.herdwick_options_new(ctypes.byref(options)))
        self.check(self.lib.herdwick_options_distribution(options, distribution.encode()))
        names = [b"127.0.0.1:%d" % port for port in ports]
        servers = (ctypes.c_char_p * 3)(*names)
        self.lib.herdwick_connect_cluster.argtypes = [
            ctypes.c_void_p,
            size,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        self.check(
            self.lib.herdwick_connect_cluster(servers, 3, options, ctypes.byref(self.client))
        )
        self.lib.herdwick_options_free(options)
        self.lib.herdwick_set.argtypes = [ctypes.c_void_p, number, size, number, size, word, word]
        self.lib.herdwick_get.argtypes = [ctypes.c_void_p, number, size, ctypes.c_void_p]

    def check(self, status):
        assert status >= 0, self.lib.herdwick_error_text()
        return status

    def set(self, key, value):
        assert self.check(self.lib.herdwick_set(self.client, key, len(key), value, len(value), 0, 0)) == 0

    def get(self, key):
        item = self.Item()
        if self.check(self.lib.herdwick_get(self.client, key, len(key), ctypes.byref(item))) == 1:
            return None
        return ctypes.string_at(item.value, item.length)


class Python:
    """The client for Python."""

    def __init__(self, ports, distribution):
        servers = [("127.0.0.1", port) for port in ports]
        self.client = herdwick.HashClient(servers, distribution=distribution)

    def set(self, key, value):
        assert self.client.set(key, value, noreply=False)

    def get(self, key):
        return self.client.get(key)


class Pymemcache:
    def __init__(self, ports):
        self.client = pymemcache.client.hash.HashClient([("127.0.0.1", port) for port in ports])

    def set(self, key, value):
        # It hashes what `str` makes of a key.
        assert self.client.set(key.decode(), value, noreply=False)

    def get(self, key):
        return self.client.get(key.decode())


class Libmemcached:
    def __init__(self, ports):
        self.lib = ctypes.CDLL(ctypes.util.find_library("memcached"))
        pointer, size, text = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p
        self.lib.memcached_create.restype = pointer
        self.lib.memcached_create.argtypes = [pointer]
        self.lib.memcached_behavior_set.argtypes = [pointer, ctypes.c_int, ctypes.c_uint64]
        self.lib.memcached_server_add.argtypes = [pointer, text, ctypes.c_uint16]
        self.lib.memcached_set.argtypes = [pointer, text, size, text, size, ctypes.c_int64, ctypes.c_uint32]
        self.lib.memcached_get.restype = pointer
        self.lib.memcached_get.argtypes = [pointer, text, size] + [pointer] * 3
        # The values of an enum, in the order of its header.
        with open("/usr/include/libmemcached-1.0/types/behavior.h") as header:
            names = re.findall(r"^\s*(MEMCACHED_BEHAVIOR_\w+)", header.read(), re.MULTILINE)
        self.client = self.lib.memcached_create(None)
        weighted = names.index("MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED")
        assert self.lib.memcached_behavior_set(self.client, weighted, 1) == 0
        for port in ports:
            assert self.lib.memcached_server_add(self.client, b"127.0.0.1", port) == 0
        self.free = ctypes.CDLL(None).free
        self.free.argtypes = [pointer]

    def set(self, key, value):
        assert self.lib.memcached_set(self.client, key, len(key), value, len(value), 0, 0) == 0

    def get(self, key):
        length, flags, error = ctypes.c_size_t(), ctypes.c_uint32(), ctypes.c_int()
        places = [ctypes.byref(place) for place in (length, flags, error)]
        value = self.lib.memcached_get(self.client, key, len(key), *places)
        if error.value != 0:
            return None
        found = ctypes.string_at(value, length.value) if value else b""
        self.free(value)
        return found


class Twemproxy:
    """pymemcache, as a client of one server, through the proxy."""

    def __init__(self, ports, folder):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            stats = probe.getsockname()[1]
        servers = "".join("   - 127.0.0.1:%d:1\n" % port for port in ports)
        with open(folder + "/conf", "w") as file:
            file.write(
                f"pool:\n  listen: {folder}/proxy\n  hash: md5\n  distribution: ketama\n"
                f"  timeout: 20000\n  preconnect: true\n  servers:\n{servers}"
            )
        command = ["nutcracker", "-c", folder + "/conf", "-s", str(stats), "-o", folder + "/log"]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        while not os.path.exists(folder + "/proxy"):
            assert self.process.poll() is None, open(folder + "/log").read()
        self.client = pymemcache.client.base.Client(folder + "/proxy")

    def set(self, key, value):
        assert self.client.set(key, value, noreply=False)

    def get(self, key):
        return self.client.get(key)


def exchange(what, members, new_key):
    """Each member sets keys of its own, and each reads all."""
    wanted = {}
    for name, member in members.items():
        for number in range(KEYS):
            key = new_key(name, number)
            # Every size that takes another way, and every byte.
            value = random.randbytes(random.choice([0, 1, 20, 100, 1000, 5000, 20000]))
            member.set(key, value)
            wanted[key] = value
    for name, member in members.items():
        for key, value in wanted.items():
            assert member.get(key) == value, f"{what}: {name} reads another value of {key}"
    print(f"{what}: {', '.join(members)} read {len(wanted)} keys of each other")


def main():
    with tempfile.TemporaryDirectory() as folder:
        servers, ports = [], []
        try:
            for _ in range(3):
                command = [binary, "serve", "-l", "127.0.0.1", "-p", "0", "-u", "root", "-t", "1"]
                server = subprocess.Popen(
                    command + ["--shm-dir", folder], stdout=subprocess.PIPE, text=True
                )
                servers.append(server)
                ports.append(int(re.search(r"127\.0\.0\.1:(\d+)", server.stdout.readline()).group(1)))
            proxy = Twemproxy(ports, folder)
            servers.append(proxy.process)
            exchange(
                "ketama",
                {
                    "C": C(ports, "ketama"),
                    "Python": Python(ports, "ketama"),
                    "libmemcached": Libmemcached(ports),
                    "twemproxy": proxy,
                },
                lambda name, number: b"%s:\xc3\xa9:%d" % (name.encode(), number),
            )
            exchange(
                "rendezvous",
                {
                    "C": C(ports, "rendezvous"),
                    "Python": Python(ports, "rendezvous"),
                    "pymemcache": Pymemcache(ports),
                },
                lambda name, number: b"%s:%d" % (name.encode(), number),
            )
        finally:
            for server in servers:
                server.kill()
                server.wait()


main()
