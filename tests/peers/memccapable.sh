#!/usr/bin/env bash
# libmemcached's server tests, ASCII and binary, against our server with one worker and with three.
# Needs memccapable (apt-get install libmemcached-tools).
set -euo pipefail
. "$(dirname "$0")/server.sh"

for workers in 1 3; do
    start_server -t "$workers"
    said=$(memccapable -h 127.0.0.1 -p "$port" -t 10 2>&1) || { echo "$said" >&2; show_server; exit 1; }
    # Its exit status does not tell whether a test failed.
    passed=$(grep -c '\[pass\]' <<<"$said") || true
    if [ "$passed" -lt 52 ] || [ "$(tail -n 1 <<<"$said")" != "All tests passed" ]; then
        echo "$said" >&2
        show_server
        exit 1
    fi
    echo "memccapable, -t $workers: $passed passed"
    stop_server
done
