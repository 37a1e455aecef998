#!/usr/bin/env python3
"""Gets and sets of one server with 1, 2 and 4 workers (-t), each through memcached's text protocol: what
a second worker costs a client that waits for each reply, and what it earns many. The servers run
side by side and are measured by turns; printed are medians, and how much slower than one worker that is:
by operations per second, and by the median latency, which a busy host changes less.

    python3 tests/bench/workers.py [--binary target/release/herdwick] [--runs 5] [--seconds 0.5]
        [--workers 1,2,4] [--sizes 100,1000,100000] [--connections 1,4,16]
"""
import argparse
import json
import socket
import statistics
import subprocess
import tempfile

SIZES = [100, 1_000, 100_000]
MEGABYTES = 256
# Of all values of a size, so that none is evicted.
BYTES = 50 << 20


def parse():
    numbers = lambda text: [int(number) for number in text.split(",")]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--binary", default="target/release/herdwick")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", default="0.5")
    parser.add_argument("--workers", type=numbers, default=[1, 2, 4])
    parser.add_argument("--sizes", type=numbers, default=SIZES)
    parser.add_argument("--connections", type=numbers, default=[1, 4, 16])
    return parser.parse_args()


def serve(binary, workers):
    flags = ["-p", "0", "-m", str(MEGABYTES), "-t", str(workers), "--shm", "off", "--verbs", "off"]
    server = subprocess.Popen([binary, "serve", *flags], stdout=subprocess.PIPE, text=True)
    ready = server.stdout.readline()
    # "... on 127.0.0.1:PORT ..."
    address = next(word for word in ready.replace(",", " ").split() if word.startswith("127.0.0.1:"))
    touch_all(address)
    return server, address


def touch_all(address):
    """Stores more than the memory holds: the first use of a page takes longer than all others."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port))) as stream:
        for n in range(3 * MEGABYTES):
            stream.sendall(b"set fill%d 0 0 1000000 noreply\r\n%b\r\n" % (n, bytes(1_000_000)))
        stream.sendall(b"flush_all\r\n")
        assert stream.recv(100) == b"OK\r\n"


def measure(args, address, reads, size, connections):
    """Returns operations per second and the median latency in microseconds."""
    keys = min(10_000, BYTES // size)
    with tempfile.NamedTemporaryFile() as report:
        subprocess.run([
            args.binary, "bench", "herd", "--fabric", "tcp", "--server", address, "--runs", "1",
            "--seconds", args.seconds, "--get-share", str(reads), "--value-size", str(size), "--keys", str(keys),
            "--connections", str(connections), "--pipeline", "1", "--clients", "1", "--json", report.name,
        ], check=True, stdout=subprocess.DEVNULL)
        result = json.load(open(report.name))["results"][0]
    assert result["wrong_values"] == 0 and result["errors"] == 0, result
    return result["ops_per_s"], result["latency_us"]["p50"]


def compare(args, servers, reads, size, connections):
    runs = {workers: [] for workers in servers}
    for _ in range(args.runs):
        for workers, (_, address) in servers.items():
            runs[workers].append(measure(args, address, reads, size, connections))
    first = None
    for workers, figures in runs.items():
        rate, p50 = (statistics.median(column) for column in zip(*figures))
        first = first or (rate, p50)
        lowest, highest = min(rate for rate, _ in figures), max(rate for rate, _ in figures)
        name = "get" if reads else "set"
        print(f"{name} {size:>7} {connections:>5} {workers:>3} {rate:>8.0f} {first[0] / rate:>6.2f}"
              f" {p50:>8.1f} {p50 / first[1]:>6.2f}  {lowest:.0f} - {highest:.0f}", flush=True)


def main():
    args = parse()
    servers = {workers: serve(args.binary, workers) for workers in args.workers}
    print(f"{'op':3} {'bytes':>7} {'conns':>5} {'-t':>3} {'op/s':>8} {'slower':>6} {'p50 us':>8} {'slower':>6}"
          "  range of op/s")
    try:
        for reads in (1, 0):
            for size in args.sizes:
                for connections in args.connections:
                    compare(args, servers, reads, size, connections)
    finally:
        for server, _ in servers.values():
            server.terminate()
            server.wait()


main()
