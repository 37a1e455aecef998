"""How fast the client for Python is beside pymemcache, on one server: speed.py HERDWICK [SECONDS].

Prints, for each way, the median of five rounds of SECONDS each, in thousands of keys a second, and what it is
of pymemcache's. The rounds of all ways alternate, because other load on the host changes."""

import asyncio
import re
import statistics
import subprocess
import sys
import tempfile
import time

import herdwick
import herdwick.asyncio
import pymemcache.client.base

KEYS = ["key:%012d" % number for number in range(100)]


def repeat(call, keys, seconds):
    """Calls until the time is over. Returns thousands of keys a second."""
    calls, start = 0, time.perf_counter()
    while True:
        for _ in range(20):
            call()
        calls += 20
        span = time.perf_counter() - start
        if span >= seconds:
            return calls * keys / span / 1000


def tasks(address, count, seconds):
    async def run():
        async with herdwick.asyncio.AsyncClient(address) as client:
            calls, start = 0, time.perf_counter()

            async def one(key):
                nonlocal calls
                while time.perf_counter() - start < seconds:
                    await client.get(key)
                    calls += 1

            await asyncio.gather(*(one(KEYS[number % 100]) for number in range(count)))
            return calls / (time.perf_counter() - start) / 1000

    return asyncio.run(run())


def main(herdwick_binary, seconds):
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen(
            [herdwick_binary, "serve", "-l", "127.0.0.1", "-p", "0", "-u", "root", "-t", "1"]
            + ["--shm-dir", folder],
            stdout=subprocess.PIPE,
            text=True,
        )
        port = int(re.search(r"127\.0\.0\.1:(\d+)", server.stdout.readline()).group(1))
        address = ("127.0.0.1", port)
        theirs = pymemcache.client.base.Client(address, no_delay=True)
        shm = herdwick.Client(address)
        tcp = herdwick.Client(address, transport="tcp")
        shm.set_many({key: b"v" * 32 for key in KEYS})
        assert shm.transport == "shm" and len(shm.get_many(KEYS)) == 100
        ways = {
            "pymemcache get": lambda: repeat(lambda: theirs.get(KEYS[7]), 1, seconds),
            "herdwick get, shm": lambda: repeat(lambda: shm.get(KEYS[7]), 1, seconds),
            "herdwick get, tcp": lambda: repeat(lambda: tcp.get(KEYS[7]), 1, seconds),
            "pymemcache get_many(100)": lambda: repeat(lambda: theirs.get_many(KEYS), 100, seconds),
            "herdwick get_many(100), shm": lambda: repeat(lambda: shm.get_many(KEYS), 100, seconds),
            "herdwick get_many(100), tcp": lambda: repeat(lambda: tcp.get_many(KEYS), 100, seconds),
            "herdwick 100 tasks, shm": lambda: tasks(address, 100, seconds),
        }
        results = {name: [] for name in ways}
        for _ in range(5):
            for name, way in ways.items():
                results[name].append(way())
        server.kill()
        medians = {name: statistics.median(rates) for name, rates in results.items()}
        for name, rate in medians.items():
            base = "pymemcache get_many(100)" if "many" in name else "pymemcache get"
            print("%-28s %8.1f k keys/s  %5.1f x" % (name, rate, rate / medians[base]))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1.0)
