#!/usr/bin/env bash
# Instructions that this crate spends on a work request in a postlist of 16, and on a completion,
# over those of a program of raw verbs. Counted by callgrind, over a driver that is not counted.
set -euo pipefail
cd "$(dirname "$0")/../.."
most=60

command -v callgrind_annotate >/dev/null || {
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq valgrind >/dev/null
} || {
    echo "skipped: no valgrind, and it cannot be installed" >&2
    exit 0
}
binary=$(cargo test --release -p herdwick-verbs --test provider --no-run --message-format=json 2>/dev/null |
    grep -o '"executable":"[^"]*provider-[^"]*"' | cut -d'"' -f4 | tail -1)
mkdir -p target/verbs
count() {
    valgrind --tool=callgrind --callgrind-out-file=target/verbs/cost.out "$binary" --ignored \
        "cost::$1" >/dev/null 2>&1
    callgrind_annotate --auto=no --threshold=100 --show-percs=no target/verbs/cost.out | tr -d ,
}
# The crate's own functions, and what was inlined into the three that are counted; 16,000 sends,
# 16,000 RECVs and 32,000 completions.
{
    count cost_of_a_thousand_raw_verbs | sed 's/^/raw /'
    count cost_of_a_thousand_postlists | sed 's/^/ours /'
} | awk -v most=$most '
    /herdwick_verbs_fake/ { next }
    !/herdwick_verbs::|provider::cost/ { next }
    /post_recv|(cost_of|raw)_recvs/ { recvs[$1] += $2; next }
    /post_send|(cost_of|raw)_sends|herdwick_verbs::send::/ { sends[$1] += $2; next }
    /::poll|(cost_of|raw)_completions|complete::/ { completions[$1] += $2 }
    function line(what, counts, times) {
        ours = counts["ours"] / times
        raw = counts["raw"] / times
        printf "%s: %.1f instructions, %.1f over the %.1f of raw verbs\n", what, ours, ours - raw, raw
        return raw > 0 && ours > raw && ours - raw <= most
    }
    END {
        fit = line("send", sends, 16000) + line("RECV", recvs, 16000) + line("completion", completions, 32000)
        exit fit != 3
    }'
