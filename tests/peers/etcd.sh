#!/usr/bin/env bash
# Servers that register in a real etcd (Debian's etcd-server): tests/peers/etcd.py, and a load while etcd fails
# (herdwick/tests/client/etcd.rs). Skipped without etcd. `bash tests/peers/etcd.sh [HERDWICK]`.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v etcd >/dev/null || { echo "skipped: no etcd (apt-get install etcd-server)"; exit 0; }
python3 tests/peers/etcd.py "${1:-target/release/herdwick}"
cargo test -q -p herdwick --test client -- --ignored etcd
