#!/usr/bin/env bash
# Instructions that this crate spends on a work request in a postlist of 16, and on a completion,
# over what the driver spends. Counted by callgrind, over a driver that is not counted.
set -euo pipefail
cd "$(dirname "$0")/../.."
most=100

command -v callgrind_annotate >/dev/null || {
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq valgrind >/dev/null
} || {
    echo "skipped: no valgrind, and it cannot be installed" >&2
    exit 0
}
binary=$(cargo test -p herdwick-verbs --test provider --no-run --message-format=json 2>/dev/null |
    grep -o '"executable":"[^"]*provider-[^"]*"' | cut -d'"' -f4 | tail -1)
mkdir -p target/verbs
valgrind --tool=callgrind --callgrind-out-file=target/verbs/cost.out "$binary" --ignored \
    cost::sixteen_datagrams >/dev/null 2>&1
# The crate's own functions, and what was inlined into the three that are counted; 16,000 sends,
# 16,000 RECVs and 32,000 completions.
callgrind_annotate --auto=no --threshold=100 --show-percs=no target/verbs/cost.out | tr -d , | awk -v most=$most '
    /herdwick_verbs_fake/ { next }
    !/herdwick_verbs::|provider::cost/ { next }
    /post_recv|cost_of_recvs/ { recvs += $1; next }
    /post_send|cost_of_sends|send::(fill|carry)/ { sends += $1; next }
    /::poll|cost_of_completions|complete::/ { completions += $1 }
    END {
        printf "send %.1f, RECV %.1f, completion %.1f instructions\n", sends / 16000, recvs / 16000, completions / 32000
        exit !(sends > 0 && sends <= most * 16000 && recvs <= most * 16000 && completions <= most * 32000)
    }'
