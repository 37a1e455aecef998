//! What the provider `roce` supports.

use herdwick_fabric::{Atomics, Capabilities, INLINE_RECEIVE};
use herdwick_roce::{
    Config, DATAGRAM_HEADER_BYTES, MESSAGE_BYTES_MAX, Mtu, RD_ATOMIC_MAX, READ_BYTES_MAX,
};

/// Returns the capabilities of a device whose datagrams have at most `mtu` bytes.
pub(crate) fn capabilities(mtu: Mtu) -> Capabilities {
    Capabilities {
        name: "roce",
        rc: true,
        uc: true,
        ud: true,
        read: true,
        // The engine performs atomics with the CPU's own instructions.
        atomics: Atomics::Coherent,
        ordered_write: true,
        wakes_on_write: true,
        reports_writes: true,
        lossless: false,
        acknowledged_sends: true,
        inline_bytes_max: Config::default().inline_bytes_max,
        inline_receive_bytes: INLINE_RECEIVE,
        datagram_header_bytes: DATAGRAM_HEADER_BYTES,
        datagram_bytes_max: mtu.bytes(),
        message_bytes_max: MESSAGE_BYTES_MAX,
        read_bytes_max: READ_BYTES_MAX,
        rd_atomic_max: usize::from(RD_ATOMIC_MAX),
        ordered_read: false,
        gso: true,
        senders: 1,
        postlist_max: 1024,
        scoped_regions: true,
        counted_drops: true,
        windows: true,
        virtual_addresses: false,
    }
}
