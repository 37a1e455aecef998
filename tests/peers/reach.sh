#!/usr/bin/env bash
# What one client of several servers stores is read by the others, in C and in Python, libmemcached, pymemcache, and
# through twemproxy. Needs the client for Python (tests/python/run.sh installs it), libmemcached-dev, and nutcracker.
set -euo pipefail
. "$(dirname "$0")/server.sh"
# As packaging/c.sh builds it.
cargo build -q --profile c --locked -p herdwick-c
target/tools/python/bin/python tests/peers/reach.py "$herdwick" \
    target/c/libherdwick_c.so
