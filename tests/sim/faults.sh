#!/usr/bin/env bash
# HERD, FaRM-KV, Pilaf and Clover under every kind of fault in virtual time, a few million requests together.
# The seeds are always the same, so it fails on every run of a commit or on none. `herdwick sim` names
# what is wrong and the command that shows it again; a kind of fault that did nothing fails as well.
#
#     tests/sim/faults.sh [SEED]
#
# SEED is the first seed, 1 if not given.
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo build -q --release --bin herdwick
herdwick=$PWD/${CARGO_TARGET_DIR:-target}/release/herdwick
first=${1:-1}

# SYSTEM SEEDS OPERATIONS [KIND...]: the kinds that do nothing to this system.
run() {
    local system=$1 seeds=$2 operations=$3 report
    shift 3
    report=$("$herdwick" sim "$system" --faults all --seed "$first" --seeds "$seeds" \
        --operations "$operations" --workers 2 --clients 16 --machines 4)
    printf '%s\n\n' "$report"
    awk -v but=" $* " '
        /^hash/ { rows = 0 }
        rows && $3 == 0 && index(but, " " $1 " ") == 0 { print $1 " did nothing"; bad = 1 }
        /^fault / { rows = 1; seen = 1 }
        END { exit bad || !seen }
    ' <<<"$report"
}

# What it prints is shown in order, at the end.
reports=$(mktemp -d)
trap 'rm -r "$reports"' EXIT
# HERD takes as long as the others together: a core each.
run herd 220 16000 >"$reports/herd" 2>&1 &
herd=$!
# Not as a condition: `set -e` must end it at its first failure.
(
    # FaRM-KV has no messages that need a RECV.
    run farm 60 16000 not-ready
    run farm-var 60 16000 not-ready
    run pilaf 60 16000
    run clover 30 16000
) >"$reports/stores" 2>&1 &
stores=$!
failed=0
wait "$herd" || failed=1
wait "$stores" || failed=1
cat "$reports/herd" "$reports/stores"
exit $failed
