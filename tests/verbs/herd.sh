#!/usr/bin/env bash
# HERD through libibverbs on Linux's software RNIC: in a guest, then between two guests on one wire.
# Every request path, with all values checked; and what a killed client or server leaves behind.
set -euo pipefail
cd "$(dirname "$0")/../.."

cargo build -q -p herdwick-cli
mkdir -p target/verbs
export HERDWICK=$PWD/target/debug/herdwick
status=0

# Where both ends are one host.
bash tests/verbs/guest.sh tests/verbs/herd/alone.sh || status=$?
[ "$status" -eq 77 ] && exit 0
[ "$status" -eq 0 ] || exit "$status"

# Where they are two.
GUEST=1 bash tests/verbs/guest.sh tests/verbs/herd/server.sh &
server=$!
GUEST=2 bash tests/verbs/guest.sh tests/verbs/herd/client.sh || status=$?
wait "$server" || status=$?
exit "$status"
