#!/usr/bin/env bash
# No call into libc for short runs of memory: callgrind counts the calls of memcpy, memmove, memcmp,
# memset and bcmp while keys and values of 8 to 20 bytes are read and written, and no function of ours
# may make one for every eighth operation. Counted are a worker's pass, over shared memory and
# over TCP; the client; the benchmark's loops; the store alone; and both ends of FaRM-KV. Pilaf is not
# counted: its client calls memcpy some four times an operation. The start of a run and its report are no
# loops: what parses the arguments and writes the report is left out.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v valgrind >/dev/null || {
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq valgrind >/dev/null
} || {
    echo "skipped: no valgrind, and it cannot be installed" >&2
    exit 0
}
cargo build --release -q --bin herdwick
herdwick=$PWD/target/release/herdwick
folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null || true; rm -rf "$folder"' EXIT
# On one CPU: the cache line's round trip is not measured, which takes minutes under valgrind.
cpu=$(python3 -c 'import os; print(min(os.sched_getaffinity(0)))')
plain=(taskset -c "$cpu" "$herdwick")
counted=(taskset -c "$cpu" valgrind --tool=callgrind --callgrind-out-file="$folder/calls" "$herdwick")
shm_keys="--fabric shm --window 16 --key-size 12 --value-size 20"
shm="herd $shm_keys"
# A whole `set` of 29 bytes.
tcp="herd --fabric tcp --connections 4 --pipeline 4 --key-size 8 --value-size 8"

# start COMMAND..: a server, and its address.
start() {
    mkfifo "$folder/ready"
    "$@" serve -l 127.0.0.1 -p 0 -u root -t 1 -m 64 --shm-dir "$folder" \
        >"$folder/ready" 2>"$folder/errors" </dev/null &
    server=$!
    read -r ready <"$folder/ready"
    rm "$folder/ready"
    address=$(grep -o '127.0.0.1:[0-9]*' <<<"$ready")
}
stop() {
    kill "$server"
    wait "$server" || true
    server=
}
ask() {
    local mix="--get-share .5"
    [[ $1 != store* ]] || mix= # It measures reads and writes one after the other.
    "${@:2}" bench $1 $mix --keys 500 --dist uniform --seconds "${seconds:-2}" --runs 1 \
        --json "$folder/report.json" >/dev/null 2>"$folder/errors" </dev/null || {
        cat "$folder/errors" >&2
        return 1
    }
}

# judge NAME [FUNCTION..]: what was counted last; the functions named may call, for what they move is long.
judge() {
    python3 - "$folder/calls" "$folder/report.json" "${seconds:-2}" "$@" <<'PY'
import collections, json, re, sys
path, report, seconds, name, *movers = sys.argv[1:]
results = json.load(open(report))["results"]
operations = sum(result["ops_per_s"] for result in results) * float(seconds)
names, calls, caller, callee = {}, collections.Counter(), None, None
def full(text):
    number, _, name = text.partition(" ")
    return names.setdefault(number, name) if name else names.get(number, number)
for line in open(path, errors="replace"):
    key, _, rest = line.rstrip("\n").partition("=")
    if key == "fn":
        caller = full(rest)
    elif key == "cfn":
        callee = full(rest)
    elif key == "calls" and re.match(r"_*(mem(cpy|move|cmp|set)|bcmp)", callee):
        calls[caller, callee] += int(rest.split()[0])
assert operations > 500, f"{name}: {operations} operations are too few to judge"
assert names, f"{name}: callgrind counted nothing"
outside = [*movers, "clap_builder::", "serde_json::", "serde_core::"]
found = {
    pair: count
    for pair, count in calls.items()
    if count > operations / 8 and not any(part in pair[0] for part in outside)
}
for (caller, callee), count in found.items():
    print(f"{name}: {caller} calls {callee} {count / operations:.2f} times an operation")
print(f"{name}: {operations:.0f} operations, {len(found)} functions that call libc for short runs")
sys.exit(bool(found))
PY
}

failed=0
start "${counted[@]}"
ask "$shm --server $address" "${plain[@]}"
stop
judge worker-shm || failed=1

start "${counted[@]}"
ask "$tcp --server $address" "${plain[@]}"
stop
# It moves what a socket has brought.
judge worker-tcp Connection::read || failed=1

start "${plain[@]}"
ask "$shm --server $address" "${counted[@]}"
# It takes RECVs many at a time.
judge client Port\>::post_recv || failed=1
ask "$tcp --server $address" "${counted[@]}"
# It moves what is left of many replies; the other is the server of the calibration.
judge generator-tcp '<S>::receive' __rust_begin_short_backtrace || failed=1
stop

ask "store --key-size 12 --value-size 20" "${counted[@]}"
judge store || failed=1

# Both ends are in this process, which makes it slow: it is given longer, so that a call that a run makes
# some hundred times is less than one for every eighth operation.
seconds=8
for system in farm farm-var; do
    ask "$system $shm_keys" "${counted[@]}"
    # It takes RECVs many at a time.
    judge "$system" Port\>::post_recv || failed=1
done
exit "$failed"
