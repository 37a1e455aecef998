"""What is resident of a full server, by -m and the size of values: a table, which fails where it is
more than -m and a tenth, or 24 MiB where that is more. Usage: resident.py [PROGRAM]."""

import re
import socket
import subprocess
import sys

PROGRAM = sys.argv[1] if len(sys.argv) > 1 else "target/release/herdwick"
MIB = 1 << 20


def fill(port, memory, size):
    """Stores half as much again as fits; returns the statistics."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        value, lines, waiting = b"v" * size, [], 0
        for n in range(3 * memory // 2 // (size + 40)):
            lines.append(b"set k%09d 0 0 %d noreply\r\n%s\r\n" % (n, size, value))
            waiting += size + 40
            if waiting > MIB:
                connection.sendall(b"".join(lines))
                lines, waiting = [], 0
        connection.sendall(b"".join(lines) + b"stats\r\n")
        said = connection.makefile("rb")
        stats = {}
        while (line := said.readline().split())[0] != b"END":
            stats[line[1].decode()] = line[2].decode()
        return stats


def resident(pid):
    with open(f"/proc/{pid}/status") as status:
        return int(re.search(r"VmRSS:\s+(\d+)", status.read())[1]) / 1024


print(f"{'-m':>6} {'value':>8} {'resident MiB':>13} {'bound MiB':>10} {'items':>9}")
beyond = False
for memory in (64, 256, 1024):
    bound = memory + max(memory / 10, 24)
    for size in (100, 1000, 100_000):
        command = [PROGRAM, "serve", "-p", "-1", "-m", str(memory)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            port = int(re.search(r" on 127\.0\.0\.1:(\d+)", server.stdout.readline())[1])
            stats = fill(port, memory * MIB, size)
            held = resident(server.pid)
        finally:
            server.terminate()
            server.wait()
        assert int(stats["evictions"]) > 0, "it is not full"
        print(f"{memory:6} {size:8} {held:13.1f} {bound:10.1f} {stats['curr_items']:>9}", flush=True)
        beyond |= held > bound
sys.exit(beyond)
