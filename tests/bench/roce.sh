#!/usr/bin/env bash
# HERD over roce on loopback, beside its bars: requests a second with windows of 64 and 256, the round
# trip with one request outstanding beside that of plain datagrams, and 2,000 clients beside as many
# flows of plain datagrams. It needs two CPUs that do nothing else, and fails if a bar is missed.
#
#     tests/bench/roce.sh [SECONDS [RUNS]]
#
# measures each figure RUNS times (5) for SECONDS (3), HERD and the datagrams in turns; the figures are
# medians. 2,000 clients need 16,000 descriptors (`ulimit -n`).
set -euo pipefail
cd "$(dirname "$0")/../.."
seconds=${1:-3} runs=${2:-5}
clients=2000 each=8

ulimit -n "$(ulimit -H -n)"
cargo build --release -q -p herdwick-cli
cargo build --release -q -p herdwick-bench --example flows
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

target/release/herdwick bench herd --fabric roce --bare --window 1,64,256 --keys 100K \
    --seconds "$seconds" --runs "$runs" --json "$folder/bench.json" >"$folder/table" ||
    { cat "$folder/table"; exit 1; }
target/release/examples/flows "$clients" "$each" "$seconds" >"$folder/flows"
exec python3 - "$folder" <<'PY'
import glob, json, re, sys

folder, results = sys.argv[1], []
for name in glob.glob(folder + "/bench*.json"):
    report = json.load(open(name))
    for part in report if isinstance(report, list) else [report]:
        results += part["results"]
by = {(result["system"], result["window"]): result for result in results}
missed = False


def line(what, figure, bar, met, rest):
    global missed
    missed |= not met
    print(f"{what:32} {figure:>10}  {bar:>14}  {'met' if met else 'MISSED':6}  {rest}")


def cpu(result):
    cost = result["cpu_ns_per_op"]
    return f"CPU ns: server {cost['server']:.0f}, client {cost['client']:.0f}"


print(f"{'':32} {'':>10}  {'bar':>14}")
for window, bar in (64, 3.0), (256, 5.0):
    herd, bare = by["herd", window], by["bare", window]
    rate = herd["ops_per_s"] / 1e6
    line(f"window {window}", f"{rate:.2f} M/s", f">= {bar:.0f} M/s", rate >= bar,
         f"datagrams {bare['ops_per_s'] / 1e6:.2f} M/s; {cpu(herd)}")
herd, bare = (by[system, 1]["latency_us"]["p50"] for system in ("herd", "bare"))
line("one outstanding, p50", f"{herd:.2f} us", f"<= 1.25 x {bare:.2f}", herd <= 1.25 * bare,
     f"{herd / bare:.2f} x the datagrams; {cpu(by['herd', 1])}")
text = open(folder + "/flows").read()
herd, bare, share = re.search(r"herd (\d+) k/s, bare (\d+) k/s: ([\d.]+)", text).groups()
line(text.split(",")[0] + ", window 8", f"{int(herd)} k/s", f">= 0.6 x {bare}",
     float(share) >= 0.6, f"{share} x the datagrams")
sys.exit(missed)
PY
