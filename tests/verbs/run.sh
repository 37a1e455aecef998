#!/usr/bin/env bash
# The conformance suite through libibverbs on Linux's software RNIC, in a guest. Says so where that
# cannot be.
set -euo pipefail
cd "$(dirname "$0")/../.."

binary=$(cargo test -p herdwick-verbs --test provider --no-run --message-format=json 2>/dev/null |
    grep -o '"executable":"[^"]*provider-[^"]*"' | cut -d'"' -f4 | tail -1)
mkdir -p target/verbs
cat >target/verbs/conformance.sh <<SCRIPT
set -e
resources() { rdma resource; }
before=\$(resources)
"$binary" --ignored --nocapture --test-threads=1
# Whatever was made, or lost by a panic on the way, is gone with the process.
[ "\$(resources)" = "\$before" ] || { resources; exit 1; }
# Neither does a process that is killed leave anything behind.
"$binary" --ignored >/dev/null 2>&1 &
while [ "\$(resources)" = "\$before" ] && kill -0 \$!; do :; done
kill -9 \$!
wait \$! 2>/dev/null || true
[ "\$(resources)" = "\$before" ] || { resources; exit 1; }
SCRIPT
status=0
bash tests/verbs/guest.sh target/verbs/conformance.sh || status=$?
[ "$status" -eq 77 ] && exit 0
exit "$status"
