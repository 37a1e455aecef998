#!/usr/bin/env python3
"""How long a server with a memory file (-e) takes to start after kill -9: it is filled with small items (16-byte
keys, 32-byte values) until some are evicted, killed, and started again, some times. Printed are the items that each
start has recovered, the seconds until it was ready, its CPU seconds, and the metadata bytes of an item: what is
not key or value of all of -m, until the first item is evicted.

    python3 tests/bench/restart.py [--binary target/release/herdwick] [--megabytes 1024] [--workers 1,2]
        [--runs 3] [--folder /dev/shm]

It fails if a start takes longer than --most seconds, 2 by default, for each GiB and worker.
"""
import argparse
import os
import re
import socket
import subprocess
import sys
import tempfile
import time

KEY, VALUE = 16, 32
# Sets in one piece of a pipeline.
PIECE = 20_000


def parse():
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--binary", default="target/release/herdwick")
    parser.add_argument("--megabytes", type=int, default=1024)
    parser.add_argument("--workers", type=numbers, default=[1, 2])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", default="/dev/shm")
    parser.add_argument("--most", type=float, default=2.0)
    return parser.parse_args()


def start(args, workers, path):
    """Returns the server, its port, and the seconds until it was ready."""
    flags = ["-p", "0", "-m", str(args.megabytes), "-t", str(workers), "-e", path, "--shm", "off", "--verbs", "off"]
    if os.geteuid() == 0:
        flags += ["-u", "root"]
    began = time.monotonic()
    with open(path + ".log", "w+") as log:
        server = subprocess.Popen(
            [args.binary, "serve", *flags], stdout=subprocess.PIPE, stderr=log, text=True)
        ready = server.stdout.readline()
        took = time.monotonic() - began
        found = re.search(r"127\.0\.0\.1:(\d+)", ready)
        if not found:
            server.wait()
            log.seek(0)
            sys.exit(f"the server did not start: {ready}{log.read()}")
    return server, int(found[1]), took


def stats(stream):
    stream.sendall(b"stats\r\n")
    answer = b""
    while not answer.endswith(b"END\r\n"):
        answer += stream.recv(1 << 16)
    return {line.split()[1].decode(): line.split()[2].decode()
            for line in answer.splitlines() if line.startswith(b"STAT") and len(line.split()) == 3}


def fill(port):
    """Stores items until the server evicts; returns its statistics."""
    stored, value = 0, b"v" * VALUE
    with socket.create_connection(("127.0.0.1", port)) as stream:
        while True:
            stream.sendall(b"".join(b"set %0*d 0 0 %d noreply\r\n%b\r\n" % (KEY, n, VALUE, value)
                                    for n in range(stored, stored + PIECE)))
            stored += PIECE
            if stored % (10 * PIECE) == 0:
                now = stats(stream)
                if int(now["evictions"]) + int(now["index_evictions"]) > 0:
                    return now


def items(port):
    with socket.create_connection(("127.0.0.1", port)) as stream:
        return int(stats(stream)["curr_items"])


def cpu_seconds(pid):
    """Returns the CPU seconds of a process, and how many of them were the kernel's."""
    fields = open(f"/proc/{pid}/stat").read().rsplit(")", 1)[1].split()
    user, kernel = (int(field) / os.sysconf("SC_CLK_TCK") for field in fields[11:13])
    return user + kernel, kernel


def measure(args, workers, path):
    server, port, _ = start(args, workers, path)
    slowest = 0
    try:
        full = fill(port)
        before = int(full["curr_items"])
        metadata = args.megabytes * (1 << 20) / before - KEY - VALUE
        print(f"-t {workers}: {before} items in {args.megabytes} MB, {metadata:.1f} bytes of metadata for each")
        for _ in range(args.runs):
            server.kill()
            server.wait()
            server, port, took = start(args, workers, path)
            cpu, kernel = cpu_seconds(server.pid)
            recovered = items(port)
            print(f"-t {workers}: {recovered} items recovered, ready after {took:.2f} s,"
                  f" {cpu:.2f} CPU s, {kernel:.2f} of them in the kernel", flush=True)
            # No request was in flight: nothing is lost, and nothing that was evicted is back.
            assert recovered == before, f"{recovered} items of {before}"
            slowest = max(slowest, took)
    finally:
        server.kill()
        server.wait()
    return slowest


def main():
    args = parse()
    slow = False
    for workers in args.workers:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            slow |= measure(args, workers, folder + "/items") > args.most * max(args.megabytes / 1024, 0.1)
    sys.exit(slow)


main()
