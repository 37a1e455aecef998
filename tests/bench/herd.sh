#!/usr/bin/env bash
# Instructions of HERD for each request over shared memory, of client and worker together, as
# callgrind counts them: a window of 128, Zipf-distributed keys of 16 bytes, values of 32 bytes. No
# clock and no other thread takes part, so the figure is the same on every run of a build. It fails
# if a read-mostly mix (5 % writes) costs more than MOST, or if the worker finds fewer requests in a
# pass than FOUND: requests that wait for others of their key must not delay the rest.
#
#     tests/bench/herd.sh [FUNCTIONS]
#
# prints also that many of the functions in which most of the instructions are.
set -euo pipefail
cd "$(dirname "$0")/../.."
MOST=1600 FOUND=24

command -v valgrind >/dev/null || {
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq valgrind >/dev/null
} || {
    echo "skipped: no valgrind, and it cannot be installed" >&2
    exit 0
}
# An incremental build is compiled in more parts, and costs more.
CARGO_INCREMENTAL=0 cargo build --release -q -p herdwick-herd --example exchange
exec python3 - "$MOST" "$FOUND" "${1:-0}" <<'PY'
import collections, re, subprocess, sys, tempfile

MOST, FOUND, FUNCTIONS = map(int, sys.argv[1:])
WINDOW, FEW, MANY = 128, 20_000, 60_000


def counted(requests, puts):
    """The instructions of each function, and the batches."""
    with tempfile.NamedTemporaryFile() as out:
        run = subprocess.run(
            ["valgrind", "-q", "--tool=callgrind", "--callgrind-out-file=" + out.name,
             "target/release/examples/exchange", str(WINDOW), str(requests), str(puts)],
            check=True, stdout=subprocess.PIPE, text=True,
        )
        lines = open(out.name, errors="replace").read().split("\n")
    names, own, function, is_call = {}, collections.Counter(), None, False
    for line in lines:
        named = re.match(r"c?fn=\((\d+)\)(?: (.*))?$", line)
        if named:
            names.setdefault(named[1], named[2])
            function = function if line.startswith("c") else names[named[1]]
        elif line.startswith("calls="):
            is_call = True
        elif re.match(r"[+\-*\d]", line):
            # The line behind `calls` holds what the callee took.
            own[function] += 0 if is_call else int(line.split()[1])
            is_call = False
    return own, int(re.search(r"(\d+) batches", run.stdout)[1])


failed = False
for puts in (0, 5, 50):
    (few, few_batches), (many, many_batches) = counted(FEW, puts), counted(MANY, puts)
    each = {name: (many[name] - few[name]) / (MANY - FEW) for name in many}
    found = (MANY - FEW) / (many_batches - few_batches)
    total = sum(each.values())
    print(f"{puts} % writes: {total:.0f} instructions a request, {found:.1f} requests a pass")
    for name in sorted(each, key=each.get, reverse=True)[:FUNCTIONS]:
        print(f"{each[name]:8.1f} {name[:120]}")
    failed |= puts == 5 and (total > MOST or found < FOUND)
sys.exit(failed)
PY
