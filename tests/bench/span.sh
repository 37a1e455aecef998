#!/usr/bin/env bash
# 4 KiB of a span are read and written by whole words, at any offset: callgrind counts at most four
# instructions for each of the 512 words, and no copy of a word by a call into libc.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v valgrind >/dev/null || {
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq valgrind >/dev/null
} || {
    echo "skipped: no valgrind, and it cannot be installed" >&2
    exit 0
}
cargo build --release -q -p herdwick-mem --example span_bytes
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

# count VERB OFFSET TIMES: the instructions of the whole process.
count() {
    valgrind --tool=callgrind --callgrind-out-file="$folder/calls" \
        target/release/examples/span_bytes "$@" 2>"$folder/said" </dev/null
    sed -n 's/^summary: //p; s/^totals: //p' "$folder/calls" | tail -n 1
}

most=$((512 * 4))
failed=
for verb in read write; do
    for offset in 0 3; do
        few=$(count "$verb" "$offset" 100)
        many=$(count "$verb" "$offset" 1100)
        each=$(((many - few) / 1000))
        echo "$verb of 4 KiB from byte $offset: $each instructions, at most $most"
        [ "$each" -le "$most" ] || failed=1
    done
done
[ -z "$failed" ]
