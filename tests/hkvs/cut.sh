#!/usr/bin/env bash
# A server, its secondary store and a client in three network namespaces, joined by a fourth that forwards: the link
# between the two servers is cut in one direction, in the other, and in both, while the client reaches both. Needs
# root.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v ip >/dev/null || {
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends iproute2 >/dev/null
}
router=herdwick-r-$$ primary=herdwick-p-$$ secondary=herdwick-s-$$ client=herdwick-c-$$
log=$(mktemp)
clean() {
    rm -f "$log"
    for namespace in "$router" "$primary" "$secondary" "$client"; do
        ip netns del "$namespace" 2>/dev/null || true
    done
}
trap clean EXIT
cargo test -q -p herdwick-cli --test commands --no-run

ip netns add "$router"
ip netns exec "$router" sh -c 'echo 1 >/proc/sys/net/ipv4/ip_forward'
net=0
for host in "$primary" "$secondary" "$client"; do
    net=$((net + 1))
    ip netns add "$host"
    ip link add "r$net" netns "$router" type veth peer name h0 netns "$host"
    ip -n "$router" address add "10.8.$net.1/24" dev "r$net"
    ip -n "$host" address add "10.8.$net.2/24" dev h0
    ip -n "$router" link set "r$net" up
    ip -n "$host" link set h0 up
    ip -n "$host" link set lo up
    ip -n "$host" route add default via "10.8.$net.1"
done
HERDWICK_CUT_NAMESPACES="$router $primary $secondary" ip netns exec "$client" \
    cargo test -p herdwick-cli --test commands -- --ignored --exact --nocapture \
    hkvs::across_a_cut_link_no_value_is_older_than_the_bound | tee "$log"
# A test of another name would be none.
grep -q '^test result: ok. 1 passed' "$log"
