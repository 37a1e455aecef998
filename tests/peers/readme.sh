#!/usr/bin/env bash
# The README's commands, and a newcomer's first mistakes.
set -euo pipefail
source "$(dirname "$0")/server.sh"

grep -q '^cargo run --release --bin herdwick -- serve$' README.md
grep -q '^cargo test$' README.md

start_server -t 2
address=127.0.0.1:$port
"$herdwick" set --server "$address" greeting hello --ttl 60
expect hello "$herdwick" get --server "$address" greeting

say() { printf '%s' "$1" | python3 -c '
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
s.sendall(sys.stdin.buffer.read().replace(b"\n", b"\r\n"))
s.shutdown(socket.SHUT_WR)
while block := s.recv(65536): sys.stdout.buffer.write(block)
' 127.0.0.1 "$port"; }
expect $'VALUE greeting 0 5\nhello\nEND' say $'get greeting\nquit\n'

# A port in use: the cause, and what to type next; no panic, no success.
if "$herdwick" serve -p "$port" 2>/tmp/herdwick-in-use.$$; then
    echo "a second server took the port" >&2; exit 1
fi
grep -qi 'in use' /tmp/herdwick-in-use.$$ && grep -q -- '-p' /tmp/herdwick-in-use.$$
rm /tmp/herdwick-in-use.$$
! "$herdwick" serve --no-such-flag 2>/dev/null

"$herdwick" doctor >/dev/null
"$herdwick" doctor --json | python3 -c 'import json, sys; json.load(sys.stdin)["fabrics"]["shm"]'

"$herdwick" bench --fabric shm --fabric tcp --keys 10K --seconds 0.2 --runs 1 --json /tmp/herdwick-bench.$$
python3 - /tmp/herdwick-bench.$$ <<'PY'
import json, sys
report = json.load(open(sys.argv[1]))
assert report["schema"] == 1 and len(report["results"]) == 2, report
for result in report["results"]:
    assert result["ops_per_s"] > 0 and result["wrong_values"] == 0 and result["errors"] == 0, result
PY
rm /tmp/herdwick-bench.$$

stop_server # SIGTERM ends it with success
echo "readme: the commands do what the README says"
