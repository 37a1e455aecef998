#!/usr/bin/env bash
# Instructions of a server for each request, as callgrind counts them:
#
#     tests/bench/instructions.sh [BINARY..]
#
# prints a table with a column for each binary, by default the release build of this tree. Counted are
# reads and writes of 100 bytes and of 1 KB over memcached's port, one at a time and 32 deep, with one
# worker and with two. What the kernel does is not counted. A figure is the least of ROUNDS. One at a time the
# client pauses before each request, so that each finds the worker asleep: without, a worker finds the next
# request before or after a pass for nothing, as the scheduler likes, and figures vary by 10 %. Hot keys are off:
# of a server that is so slow they sample every request.
set -euo pipefail
[ $# = 0 ] || mapfile -t binaries < <(realpath -- "$@")
cd "$(dirname "$0")/../.."

command -v callgrind_control >/dev/null || {
    echo "valgrind is missing: apt-get install valgrind" >&2
    exit 1
}
if [ $# = 0 ]; then
    # An incremental build is compiled in more parts, and costs more.
    CARGO_INCREMENTAL=0 cargo build --release -q --bin herdwick
    binaries=("$PWD/target/release/herdwick")
fi
exec python3 - "${binaries[@]}" <<'PY'
import glob, os, re, signal, socket, subprocess, sys, tempfile, time

KEYS, VALUE, ROUNDS, PAUSE = 64, b"v" * 100, 5, 0.001
LINES = {
    "get": lambda n: b"get key:%07d\r\n" % (n % KEYS),
    "set": lambda n: b"set key:%07d 0 0 %d\r\n%s\r\n" % (n % KEYS, len(VALUE), VALUE),
    "mg": lambda n: b"mg key:%07d v\r\n" % (n % KEYS),
    "ms": lambda n: b"ms key:%07d %d\r\n%s\r\n" % (n % KEYS, len(VALUE), VALUE),
    "set 1 KB": lambda n: b"set big:%07d 0 0 1024\r\n%s\r\n" % (n % KEYS, b"v" * 1024),
}
ENDS = {"get": b"END\r\n", "set": b"STORED\r\n", "mg": VALUE + b"\r\n", "ms": b"HD\r\n", "set 1 KB": b"STORED\r\n"}
# Requests at a time, and how many are counted.
DEPTHS = {1: 300, 32: 8000}


class Server:
    def __init__(self, binary, workers):
        self.folder = tempfile.TemporaryDirectory()
        out = self.folder.name + "/calls"
        self.process = subprocess.Popen(
            ["valgrind", "--tool=callgrind", "--callgrind-out-file=" + out, "-q", binary, "serve"]
            + ["-l", "127.0.0.1", "-p", "0", "-u", "root", "-t", str(workers), "-m", "64"]
            + ["--spin", "0", "--hot-keys", "off", "--shm-dir", self.folder.name],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL,
        )
        ready = self.process.stdout.readline().decode()
        self.port = int(re.search(r"127\.0\.0\.1:(\d+)", ready)[1])

    def counted(self):
        """The instructions since the last call."""
        subprocess.run(["callgrind_control", "-d", str(self.process.pid)], check=True, capture_output=True)
        newest = max(glob.glob(self.folder.name + "/calls.*"), key=lambda path: int(path.rsplit(".")[-1]))
        text = open(newest, errors="replace").read()
        os.remove(newest)
        return int(re.findall(r"^(?:totals|summary): (\d+)", text, re.M)[-1])

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait()
        self.folder.cleanup()


def ask(connection, verb, depth, count):
    end = ENDS[verb]
    for first in range(0, count, depth):
        time.sleep(PAUSE if depth == 1 else 0)
        connection.sendall(b"".join(LINES[verb](n) for n in range(first, first + depth)))
        got = b""
        while got.count(end) < depth:
            got += connection.recv(1 << 16)


def over_tcp(server, verb, depth):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask(connection, "set", 32, 64)
        ask(connection, verb, depth, depth)
        seen = []
        for _ in range(ROUNDS):
            server.counted()
            ask(connection, verb, depth, DEPTHS[depth])
            seen.append(server.counted())
        return min(seen) / DEPTHS[depth]


def counts(binary):
    for workers in (1, 2):
        server = Server(binary, workers)
        for verb in LINES:
            for depth in DEPTHS:
                name = f"{verb}, {'32 deep' if depth > 1 else 'one at a time'}, -t {workers}"
                yield name, over_tcp(server, verb, depth)
        server.stop()


binaries = sys.argv[1:]
print(f"{'instructions a request':34}", *(f"{os.path.basename(binary):>12}" for binary in binaries))
for rows in zip(*map(counts, binaries)):
    figures = [f"{count:12.0f}" for _, count in rows]
    more = [f"{(count / rows[0][1] - 1) * 100:+11.1f}%" for _, count in rows[1:]]
    print(f"{rows[0][0]:34}", *figures, *more, flush=True)
PY
