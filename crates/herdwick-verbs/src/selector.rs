//! The user's request for a device, a port, an address and marks, parsed.

use std::str::FromStr;

/// The request: `auto` or `DEVICE[:PORT[:GID]]`, then `,pkey=`, `,sl=` and `,tclass=`. Omitted
/// parts are selected automatically.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceSelector {
    /// The device's name.
    pub device: Option<String>,
    /// The number of its port.
    pub port: Option<u8>,
    /// The index of the GID in the port's table.
    pub gid: Option<u32>,
    /// The P_Key of the partition; `None`: the first of the port's table.
    pub pkey: Option<u16>,
    /// The service level of sent packets, 0 to 15.
    pub sl: Option<u8>,
    /// The traffic class of sent packets; on RoCEv2 the DSCP and ECN bits of the IP header.
    pub traffic_class: Option<u8>,
}

/// A request that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not DEVICE[:PORT[:GID]][,pkey=P_KEY][,sl=0..15][,tclass=0..255], such as mlx5_0:1:3 \
     or auto,tclass=106; `ibv_devices` lists devices"
)]
pub struct SelectorError(String);

impl FromStr for DeviceSelector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        read(text).ok_or_else(|| SelectorError(text.to_owned()))
    }
}

fn read(text: &str) -> Option<DeviceSelector> {
    let mut parts = text.split(',');
    let mut selector = place(parts.next()?)?;
    // The last of two equal names counts.
    for part in parts {
        let (name, value) = part.split_once('=')?;
        match name {
            "pkey" => selector.pkey = Some(number(value, u16::MAX.into())?.try_into().ok()?),
            "sl" => selector.sl = Some(number(value, 15)?.try_into().ok()?),
            "tclass" => selector.traffic_class = Some(number(value, 255)?.try_into().ok()?),
            _ => return None,
        }
    }
    Some(selector)
}

fn place(text: &str) -> Option<DeviceSelector> {
    if text == "auto" {
        return Some(DeviceSelector::default());
    }
    let mut parts = text.split(':');
    let device = parts.next().filter(|name| !name.is_empty())?;
    let port = parts.next().map(str::parse).transpose().ok()?;
    // The source GID index of a work request is one byte.
    let gid = parts.next().map(str::parse::<u8>).transpose().ok()?;
    parts.next().is_none().then(|| DeviceSelector {
        device: Some(device.to_owned()),
        port,
        gid: gid.map(u32::from),
        ..DeviceSelector::default()
    })
}

/// Parses a number of at most `most`, in decimal or, after `0x`, hexadecimal.
fn number(text: &str, most: u32) -> Option<u32> {
    let found = match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
        None => text.parse().ok()?,
    };
    (found <= most).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selector_parses_device_port_and_gid() {
        let selector: DeviceSelector = "mlx5_0:2:3".parse().unwrap();
        assert_eq!(
            (selector.device.as_deref(), selector.port, selector.gid),
            (Some("mlx5_0"), Some(2), Some(3))
        );
        let selector: DeviceSelector = "auto,tclass=106,sl=3,pkey=0x8001".parse().unwrap();
        assert_eq!(
            (
                selector.device,
                selector.traffic_class,
                selector.sl,
                selector.pkey
            ),
            (None, Some(106), Some(3), Some(0x8001))
        );
        for bad in [
            "",
            ":1",
            "a:x",
            "a:1:y",
            "a:1:2:3",
            "a:256",
            "a:1:256",
            "a,",
            "a,sl",
            "a,sl=16",
            "a,tclass=256",
            "a,pkey=0x10000",
            "a,mtu=5",
            ",sl=1",
        ] {
            assert!(bad.parse::<DeviceSelector>().is_err(), "{bad}");
        }
    }
}
