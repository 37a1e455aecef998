#!/usr/bin/env bash
# libmemcached's server tests, ASCII and binary, against our server with one worker and with three.
# Needs memccapable (apt-get install libmemcached-tools).
set -euo pipefail
. "$(dirname "$0")/server.sh"

# memcached 1.6.45 executes `delete KEY WORD`, which these tests expect to be refused: it fails them, too.
differ='ascii delete
ascii delete noreply'

capable() {
    local said passed failed
    said=$(memccapable -h 127.0.0.1 -p "$port" -t 10 2>&1) || true
    # Its exit status does not tell whether a test failed.
    passed=$(grep -c '\[pass\]' <<<"$said") || true
    failed=$(sed -n 's/  *\[FAIL\]$//p' <<<"$said")
    if [ "$passed" -ne 52 ] || [ "$failed" != "$differ" ]; then
        echo "$said"
        show_server
        return 1
    fi
    echo "memccapable, -t $1: $passed passed"
}

for workers in 1 3; do
    start_server -t "$workers"
    # A machine that stood still fails its timeouts; a server that does so fails them again.
    capable "$workers" || { answers && capable "$workers"; } || exit 1
    stop_server
done
