#!/usr/bin/env bash
# Has Wireshark's dissector judge captured RoCEv2 traffic: every packet is InfiniBand's, and none is
# malformed. Usage: dissect.sh FILE.pcap
set -euo pipefail
file=$1

command -v tshark >/dev/null || {
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends tshark >/dev/null
}
# What guesses at protocols inside the payload finds some in random bytes.
guesses=(--disable-protocol nvme-rdma --disable-protocol infiniband.eoib)
for guess in eth_over_ib fc_infiniband iser_infiniband lnet_ib rpcrdma_infiniband sdp_infiniband \
    smb_direct_infiniband smcr_infiniband; do
    guesses+=(--disable-heuristic "$guess")
done
show() { # FILTER [OPTION...]: the packets that pass it
    tshark -r "$file" "${guesses[@]}" -Y "$1" "${@:2}" 2>/dev/null
}

roce=$(show 'udp.port == 4791' | wc -l)
known=$(show 'infiniband.bth.opcode' | wc -l)
malformed=$(show '_ws.malformed' | wc -l)
opcodes=$(show 'infiniband.bth.opcode' -T fields -e infiniband.bth.opcode | sort -u | wc -l)
echo "$roce packets of $opcodes opcodes, $malformed malformed"
[ "$roce" -gt 0 ] && [ "$known" -eq "$roce" ] && [ "$malformed" -eq 0 ] || {
    show '_ws.malformed' | head
    exit 1
}
