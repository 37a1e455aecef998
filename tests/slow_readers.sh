#!/usr/bin/env bash
# Readers of large values across a path with a round trip of 100 ms that loses 1 % of the packets,
# while others wait for the room that their replies take, and some never read: a reader that takes
# what comes is never cut, and gets every byte. Network namespaces, and a program between them
# (`slow_path.py`), since not every kernel has netem; needs root.
#
#   bash tests/slow_readers.sh [HERDWICK] [READERS]
set -euo pipefail
cd "$(dirname "$0")/.."

herdwick=$(realpath "${1:-target/release/herdwick}") readers=${2:-40}
here=herdwick-c-$$ there=herdwick-s-$$ path=herdwick-p-$$ server= carrier=
clean() {
    for process in $server $carrier; do kill "$process" 2>/dev/null || true; done
    for space in "$here" "$there" "$path"; do ip netns del "$space" 2>/dev/null || true; done
}
trap clean EXIT
for space in "$here" "$there" "$path"; do ip netns add "$space"; done
ip link add c0 netns "$here" type veth peer name c1 netns "$path"
ip link add s0 netns "$there" type veth peer name s1 netns "$path"
ip -n "$here" address add 10.8.7.2/24 dev c0
ip -n "$there" address add 10.8.7.1/24 dev s0
for end in "$here c0" "$there s0" "$path c1" "$path s1"; do
    set -- $end
    ip -n "$1" link set "$2" up
done
ip netns exec "$here" python3 tests/slow_path.py --off c0
ip netns exec "$there" python3 tests/slow_path.py --off s0
ip netns exec "$path" python3 tests/slow_path.py c1 s1 &
carrier=$!

# One worker with the least room: some twenty such replies at a time.
ip netns exec "$there" "$herdwick" serve -u root -t 1 -m 64 -l 10.8.7.1 -p 11211 --shm off &
server=$!

ip netns exec "$here" python3 - "$readers" <<'PYTHON'
import selectors, socket, sys, time

READERS, TIMES, LEN, STALLED = int(sys.argv[1]), 4, 900_000, 8
ADDRESS = ("10.8.7.1", 11211)
value = bytes((i * 31 + (i >> 10)) % 251 for i in range(LEN))

def connect():
    for _ in range(600):
        try:
            return socket.create_connection(ADDRESS, timeout=60)
        except OSError:
            time.sleep(0.1)
    sys.exit("the server does not listen")

def stats(control):
    control.sendall(b"stats\r\n")
    said = b""
    while not said.endswith(b"END\r\n"):
        said += control.recv(1 << 16)
    lines = (line.split(" ", 2) for line in said.decode().splitlines())
    return {line[1]: line[2] for line in lines if line[0] == "STAT"}

control = connect()
control.sendall(b"set x 0 0 %d\r\n" % LEN + value + b"\r\n")
assert control.recv(64) == b"STORED\r\n"
reply = b"VALUE x 0 %d\r\n" % LEN + value + b"\r\nEND\r\n"

# They ask for much, and read nothing.
stalled = []
for _ in range(STALLED):
    stalled.append(connect())
    stalled[-1].sendall(b"get x\r\n" * 40)

ready, heard = selectors.DefaultSelector(), {}
for _ in range(READERS):
    reader = connect()
    reader.sendall(b"get x\r\n" * TIMES)
    reader.setblocking(False)
    ready.register(reader, selectors.EVENT_READ)
    heard[reader] = 0
begun, expected = time.monotonic(), memoryview(reply * TIMES)
queued = 0
while heard:
    events = ready.select(60)
    if not events:
        sys.exit(f"{len(heard)} readers get nothing; {stats(control)}")
    for key, _ in events:
        reader = key.fileobj
        try:
            some = reader.recv(1 << 16)
        except BlockingIOError:
            continue
        except OSError as error:
            sys.exit(f"a reader is cut: {error}, after {heard[reader]} bytes")
        at = heard[reader]
        if not some or some != expected[at:at + len(some)]:
            sys.exit(f"a reader is cut, or reads a wrong byte, after {at} of {len(expected)} bytes")
        heard[reader] += len(some)
        if heard[reader] == len(expected):
            ready.unregister(reader)
            reader.close()
            del heard[reader]
took, found = time.monotonic() - begun, stats(control)
cut, queued = int(found["closed_stalled"]), int(found["replies_queued"])
print(f"{READERS} readers of {TIMES} times {LEN} bytes in {took:.1f} s: none cut; "
      f"{queued} replies had to wait for room; {cut} of {STALLED} that never read were cut")
if queued == 0:
    sys.exit("nothing waited: the test shows nothing")
if cut > STALLED:
    sys.exit("more are cut than never read")
PYTHON
kill "$server"
wait "$server" || true
server=
