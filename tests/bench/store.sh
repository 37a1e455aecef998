#!/usr/bin/env bash
# Instructions of the store alone for each request, as callgrind counts them:
#
#     tests/bench/store.sh [EXAMPLE..]
#
# prints a table with a column for each build of `crates/herdwick-mica/examples/requests.rs`, by default the
# release build of this tree. Requests are executed 32 at a time, as a worker does. Keys have 16 bytes. No clock
# and no other thread takes part, so the figures are the same on every run of a build. The row `restart` is for each
# item that is found again in a file.
set -euo pipefail
[ $# = 0 ] || mapfile -t examples < <(realpath -- "$@")
cd "$(dirname "$0")/../.."
command -v valgrind >/dev/null || {
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq valgrind >/dev/null
} || {
    echo "skipped: no valgrind, and it cannot be installed" >&2
    exit 0
}
if [ -z "${examples+given}" ]; then
    # An incremental build is compiled in more parts, and costs more.
    CARGO_INCREMENTAL=0 cargo build --release -q -p herdwick-mica --example requests
    examples=(target/release/examples/requests)
fi
COUNT=64000
for bytes in 32 500; do
    for kind in get miss touch put evict delete restart; do
        row=$(printf '%-7s %4d' "$kind" "$bytes")
        for example in "${examples[@]}"; do
            counted=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null --toggle-collect='*execute_all*' \
                "$example" "$kind" "$COUNT" "$bytes" 2>&1 >/dev/null | sed -n 's/.*Collected : \([0-9]*\).*/\1/p')
            row+=$(printf '%9.1f' "$(echo "$counted $COUNT" | awk '{ print $1 / $2 }')")
        done
        echo "$row"
    done
done
