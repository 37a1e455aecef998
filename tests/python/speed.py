"""How fast the client for Python is beside pymemcache, on one server: speed.py HERDWICK [SECONDS].

Prints, for each way, thousands of keys a second in the median span of some calls, and in the fastest tenth of the
spans with what that is of pymemcache's: the others were disturbed. Five rounds of SECONDS each of all ways
alternate."""

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
    """Calls until the time is over. Returns thousands of keys a second, in each span of 1,000 keys."""
    rates, start = [], time.perf_counter()
    end = start + seconds
    while start < end:
        for _ in range(1000 // keys):
            call()
        now = time.perf_counter()
        rates.append(1 / (now - start))
        start = now
    return rates


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
            return [calls / (time.perf_counter() - start) / 1000]

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
                results[name] += way()
        server.kill()
        fast = {name: sorted(rates)[len(rates) * 9 // 10] for name, rates in results.items()}
        print("%-28s %8s %8s" % ("k keys/s", "median", "fastest"))
        for name, rate in fast.items():
            base = "pymemcache get_many(100)" if "many" in name else "pymemcache get"
            figures = (name, statistics.median(results[name]), rate, rate / fast[base])
            print("%-28s %8.1f %8.1f  %5.1f x" % figures)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 1.0)
