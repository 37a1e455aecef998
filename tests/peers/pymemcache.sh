#!/bin/sh
# pymemcache's own integration suite against our server, with one worker and with three.
# Usage: tests/peers/pymemcache.sh [HERDWICK]; needs python3 with pymemcache and pytest.
set -eu
herdwick=${1:-target/release/herdwick}
suite=$(python3 -c 'import os, pymemcache; print(os.path.dirname(pymemcache.__file__))')/test

ready=$(mktemp)
server=
trap 'test -z "$server" || kill "$server"; rm -f "$ready"' EXIT

for workers in 1 3; do
    # The suite asks for a limit of 50 MB (cache_memlimit), which a server of another cannot keep.
    "$herdwick" serve -p 0 -m 50 -t "$workers" >"$ready" &
    server=$!
    until grep -q ready "$ready"; do kill -0 "$server"; done
    port=$(sed 's/.*:\([0-9]*\) .*/\1/' "$ready")
    python3 -m pytest -q -p no:cacheprovider -c /dev/null --rootdir "$suite" \
        "$suite/test_integration.py" -m integration -W ignore \
        --server 127.0.0.1 --port "$port"
    kill "$server"
    wait "$server"
    server=
done
