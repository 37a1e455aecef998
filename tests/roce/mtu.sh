#!/usr/bin/env bash
# RC and UC between two network namespaces joined by a veth whose ends have MTUs of 9,000 and 1,500:
# what is longer than the narrower path's packet arrives both ways, and over link-local addresses.
# Needs root.
set -euo pipefail
cd "$(dirname "$0")/../.."

wide=herdwick-w-$$ narrow=herdwick-n-$$
clean() {
    ip netns del "$wide" 2>/dev/null || true
    ip netns del "$narrow" 2>/dev/null || true
}
trap clean EXIT
ip netns add "$wide"
ip netns add "$narrow"
ip -n "$narrow" link add type veth
ip link add hw netns "$wide" mtu 9000 type veth peer name hn netns "$narrow" mtu 1500
ip -n "$wide" address add 10.9.9.1/24 dev hw
ip -n "$narrow" address add 10.9.9.2/24 dev hn
ip -n "$wide" address add fe80::1/64 dev hw nodad
ip -n "$narrow" address add fe80::2/64 dev hn nodad
for end in "$wide hw" "$narrow hn"; do
    set -- $end
    ip -n "$1" link set lo up
    ip -n "$1" link set "$2" up
done
number() {
    ip -n "$1" -o link show dev "$2" | cut -d: -f1
}
export HERDWICK_NETNS=$wide,$narrow
export HERDWICK_LINKS=$(number "$wide" hw),$(number "$narrow" hn)
cargo test -q -p herdwick-roce-udp --test provider -- --ignored namespaces
