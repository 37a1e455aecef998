#!/usr/bin/env bash
# Clients as they install by name, each through what an application does with it, against our
# server with one worker and with three. Needs python3 with python-binary-memcached and
# meta-memcache (pip), node with memjs (npm, in $NODE_PATH).
set -euo pipefail
. "$(dirname "$0")/server.sh"
here=$PWD/tests/peers

for workers in 1 3; do
    start_server -t "$workers"
    python3 "$here/binary_client.py" "$port"
    python3 "$here/meta_client.py" "$port"
    node "$here/memjs_client.js" "$port"
    stop_server
done
