#!/usr/bin/env bash
# Our RNIC against Linux's own: builds the guest, lets both talk, and has Wireshark's dissector look
# at everything that passed. Installs by apt what it needs. Usage: run.sh [ARGUMENT OF THE TESTS...]
set -euo pipefail
cd "$(dirname "$0")/../.."

bash tests/rxe/guest.sh
# One after the other: they share the guest.
cargo test -q -p herdwick-roce --test rxe -- --ignored --test-threads=1 --nocapture "$@"
bash tests/rxe/dissect.sh target/rxe/traffic.pcap
