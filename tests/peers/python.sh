#!/usr/bin/env bash
# A client in another language, made from docs/wire.md alone, with one worker and with two.
set -euo pipefail
source "$(dirname "$0")/server.sh"

for workers in 1 2; do
    start_server -t "$workers"
    python3 -B tests/peers/herd_client.py "$port"
    stop_server
done
