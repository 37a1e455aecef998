//! What a device reports of its ports: links, addresses and partitions.

use std::{io, net::Ipv6Addr};

use crate::{
    endpoint::mtu_bytes,
    place::{Gid, GidKind, LinkLayer, PortInfo},
    raw::Context,
    sys,
};

/// Maximum GIDs of a device that are read.
const GIDS_MAX: usize = 1024;
/// Maximum P_Keys of a port that are read.
const PKEYS_MAX: u16 = 128;
/// Maximum bytes of a message, whatever the device reports, so that lengths fit 32 bits.
const MESSAGE_BYTES_MAX: usize = 1 << 31;

/// Returns the current state of a device's ports.
pub(crate) fn ports(context: &Context) -> io::Result<Vec<PortInfo>> {
    let gids = context.gids(GIDS_MAX)?;
    let count = context.query_device()?.phys_port_cnt;
    let port = |number| {
        let found = context.query_port(number)?;
        let own = gids.iter().filter(|gid| gid.port_num == u32::from(number));
        // A call of the driver for each.
        let pkeys = (0..found.pkey_tbl_len.min(PKEYS_MAX)).map(|i| context.pkey(number, i));
        Ok(PortInfo {
            number,
            active: found.state == sys::IBV_PORT_ACTIVE,
            link: match i32::from(found.link_layer) {
                // 0, unspecified, is a legacy value that means InfiniBand.
                sys::IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
                _ => LinkLayer::InfiniBand,
            },
            mtu: mtu_bytes(found.active_mtu),
            lid: found.lid,
            message_bytes_max: MESSAGE_BYTES_MAX.min(found.max_msg_sz as usize),
            // GIDs of types that are not known are left out.
            gids: own.filter_map(gid).collect(),
            pkeys: pkeys.collect::<Result<_, _>>()?,
        })
    };
    (1..=count).map(port).collect()
}

fn gid(entry: &sys::GidEntry) -> Option<Gid> {
    Some(Gid {
        index: entry.gid_index,
        address: Ipv6Addr::from(entry.gid),
        kind: match i32::try_from(entry.gid_type).ok()? {
            sys::IBV_GID_TYPE_IB => GidKind::InfiniBand,
            sys::IBV_GID_TYPE_ROCE_V1 => GidKind::RoceV1,
            sys::IBV_GID_TYPE_ROCE_V2 => GidKind::RoceV2,
            _ => return None,
        },
    })
}
