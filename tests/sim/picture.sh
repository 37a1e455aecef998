#!/usr/bin/env bash
# Draws the README's picture anew, and compares it with docs/figure-9-sim-apt.svg. It is drawn in virtual
# time, so that it is the same, byte by byte, on every host.
#
#     tests/sim/picture.sh            fails if it differs
#     tests/sim/picture.sh --write    puts it there
set -euo pipefail
cd "$(dirname "$0")/../.."
cargo build -q --release --bin herdwick
herdwick=$PWD/${CARGO_TARGET_DIR:-target}/release/herdwick
picture=docs/figure-9-sim-apt.svg
out=$(mktemp -d)
trap 'rm -r "$out"' EXIT
"$herdwick" figure 9 --fabric sim:apt --out "$out" >"$out/log" 2>&1 || {
    cat "$out/log"
    exit 1
}
if [ "${1:-}" = --write ]; then
    cp "$out/figure-9-sim-apt.svg" "$picture"
elif ! cmp "$out/figure-9-sim-apt.svg" "$picture"; then
    echo "$picture is not what is drawn now; draw it again by: bash tests/sim/picture.sh --write"
    exit 1
fi
