//! UD: each message is one packet, stored behind a header like the GRH.

use core::net::IpAddr;

use herdwick_fabric::{INLINE_RECEIVE, Opcode, Qpn, Received, Source, Status};

use super::{Qp, inbound::inline_data};
use crate::{
    Arrival, Drop, Memory,
    icrc::IpId,
    packet::{LOW_24, Packet},
    shared::Shared,
};

/// Bytes in front of a datagram in its buffer: the GRH, or a substitute.
pub const DATAGRAM_HEADER_BYTES: usize = 40;

impl Qp {
    /// Stores or inlines a datagram and completes a RECV.
    #[inline(always)]
    pub(crate) fn receive_datagram<M: Memory>(
        &mut self,
        shared: &mut Shared,
        arrival: &Arrival<'_>,
        packet: &Packet<'_>,
        memory: &mut M,
    ) -> Result<(), Drop> {
        let deth = packet.deth().ok_or(Drop::Short)?;
        if deth.qkey.get() != self.qkey {
            return Err(Drop::Qkey);
        }
        let len = packet.payload.len();
        // Longer than the MTU that this end has announced.
        if len > shared.config.mtu.bytes() {
            return Err(Drop::Length);
        }
        // Copied, not taken: the RECV stays if the datagram does not fit.
        let recv = *self.recvs.ring.front().ok_or(Drop::NoRecv)?;
        let mut received = Received {
            status: Status::Success,
            opcode: Opcode::Recv,
            len,
            imm: packet.imm(),
            source: Some(Source {
                qpn: Qpn(deth.source.get() & LOW_24),
            }),
            inline: None,
        };
        // Inlined first: the completion carries it, and the buffer, whatever its state, is not
        // touched.
        if len <= INLINE_RECEIVE {
            received.inline = Some(inline_data(packet.payload));
        } else if shared.regions.get(recv.into.region).is_none() {
            received = Received::failed(Status::LocalError);
        } else if DATAGRAM_HEADER_BYTES + len > recv.into.len {
            // UD: the datagram is lost and the RECV remains, unlike RC, which fails.
            return Err(Drop::ShortBuffer);
        } else {
            let (region, offset) = (recv.into.region, recv.into.offset);
            // The header first: the last word of the payload is what a poller of the buffer sees
            // last.
            memory.write(region, offset, &global_header(arrival));
            memory.write(region, offset + DATAGRAM_HEADER_BYTES, packet.payload);
        }
        self.recvs.ring.pop_front();
        self.finish_recv(&mut shared.cqs, &recv, received);
        Ok(())
    }
}

/// Returns the header that verbs put in front of a datagram: an IPv6 header, or 20 zeros and an
/// IPv4 header. Fields that a UDP socket does not show (hop limit, flow label, checksum) are 0.
fn global_header(arrival: &Arrival<'_>) -> [u8; DATAGRAM_HEADER_BYTES] {
    const UDP_PROTOCOL: u8 = 17;
    let mut header = [0; DATAGRAM_HEADER_BYTES];
    // 8 is the length of the UDP header.
    let udp_len = u16::try_from(arrival.bytes.len() + 8).unwrap_or(u16::MAX);
    match (
        arrival.from.ip().to_canonical(),
        arrival.to.ip().to_canonical(),
    ) {
        (IpAddr::V4(from), IpAddr::V4(to)) => {
            let ip = &mut header[20..];
            // Version 4, a header of five words, as the socket's packets are: without options.
            ip[0] = 0x45;
            ip[1] = arrival.tos;
            ip[2..4].copy_from_slice(&udp_len.saturating_add(20).to_be_bytes());
            if let IpId::Known(id) = arrival.ip_id {
                ip[4..6].copy_from_slice(&id.to_be_bytes());
            }
            // The don't-fragment bit.
            ip[6] = 0x40;
            ip[9] = UDP_PROTOCOL;
            ip[12..16].copy_from_slice(&from.octets());
            ip[16..20].copy_from_slice(&to.octets());
        }
        (IpAddr::V6(from), IpAddr::V6(to)) => {
            header[0] = 0x60 | arrival.tos >> 4;
            header[1] = arrival.tos << 4;
            header[4..6].copy_from_slice(&udp_len.to_be_bytes());
            header[6] = UDP_PROTOCOL;
            header[8..24].copy_from_slice(&from.octets());
            header[24..40].copy_from_slice(&to.octets());
        }
        // One socket does not receive between two families. Zeros are as good as anything then.
        _ => {}
    }
    header
}
