#!/usr/bin/env bash
# Runs each fuzz target for some seconds, beginning with the committed corpus; what it finds beyond
# that stays in target. Skips where there is no nightly toolchain or no cargo-fuzz to be had.
# Usage: tests/fuzz.sh [SECONDS].
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=${1:-30}

cargo +nightly --version >/dev/null 2>&1 || { echo "skipped: no nightly toolchain"; exit 0; }
cargo fuzz --version >/dev/null 2>&1 || cargo install -q cargo-fuzz ||
    { echo "skipped: no cargo-fuzz"; exit 0; }

for target in classic meta binary roce; do
    found=target/fuzz/$target
    mkdir -p "$found"
    cargo +nightly fuzz run --fuzz-dir fuzz --target-dir target/fuzz/build "$target" \
        "$found" "fuzz/corpus/$target" -- -max_total_time="$seconds" -max_len=4096 -verbosity=0
    echo "$target: nothing found in $seconds s"
done
