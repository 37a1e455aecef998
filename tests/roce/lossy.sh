#!/usr/bin/env bash
# HERD between two network namespaces joined by a veth, with frames of 1,500 and of 9,000 bytes, and
# a network that loses nothing, one and ten packets of a hundred. Needs root; installs nftables.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v nft >/dev/null && command -v ip >/dev/null || {
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends nftables iproute2 >/dev/null
}
server=herdwick-s-$$ client=herdwick-c-$$
clean() {
    ip netns del "$server" 2>/dev/null || true
    ip netns del "$client" 2>/dev/null || true
}
trap clean EXIT
cargo test -q -p herdwick-cli --test lossy --no-run

for mtu in 1500 9000; do
    clean
    ip netns add "$server"
    ip netns add "$client"
    ip link add hs netns "$server" mtu "$mtu" type veth peer name hc netns "$client" mtu "$mtu"
    ip -n "$server" address add 10.8.0.1/24 dev hs
    ip -n "$client" address add 10.8.0.2/24 dev hc
    # GSO batches are segmented before the link, as on a real one, so that single packets get lost and
    # not whole batches.
    for end in "$server hs" "$client hc"; do
        set -- $end
        ip -n "$1" link set lo up
        ip -n "$1" link set "$2" gso_max_segs 1 up
    done
    echo "-- frames of $mtu bytes"
    HERDWICK_SERVER_NETNS=$server ip netns exec "$client" \
        cargo test -q -p herdwick-cli --test lossy -- --ignored --nocapture
done
