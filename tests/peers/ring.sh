#!/usr/bin/env bash
# Which of several servers has a key: `herdwick locate`, compared with libmemcached, twemproxy and
# pymemcache. `bash tests/peers/ring.sh [KEYS [KEYS_PYMEMCACHE]]`; a million, and a tenth of them for
# pymemcache, whose hash is in Python. Needs python3 with pymemcache, libmemcached-dev, and nutcracker.
set -euo pipefail
. "$(dirname "$0")/server.sh"
python3 tests/peers/ring.py "$herdwick" "${1:-1000000}" "${2:-100000}"
