//! Which device, port and address somebody asks for.

use std::str::FromStr;

/// What was asked for: `auto`, or `DEVICE[:PORT[:GID]]`. What is left out is chosen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The device's name.
    pub device: Option<String>,
    /// The number of its port.
    pub port: Option<u8>,
    /// The place of the address in the port's table.
    pub gid: Option<u32>,
}

/// A wish that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not DEVICE[:PORT[:GID]], such as mlx5_0 or mlx5_0:1:3; `ibv_devices` lists devices"
)]
pub struct WishError(String);

impl FromStr for Wish {
    type Err = WishError;

    fn from_str(text: &str) -> Result<Self, WishError> {
        if text == "auto" {
            return Ok(Self::default());
        }
        let bad = || WishError(text.to_owned());
        let mut parts = text.split(':');
        let device = parts.next().filter(|name| !name.is_empty());
        let port = parts.next().map(|port| port.parse().map_err(|_| bad()));
        let gid = parts.next().map(|gid| gid.parse().map_err(|_| bad()));
        if device.is_none() || parts.next().is_some() {
            return Err(bad());
        }
        Ok(Self {
            device: device.map(str::to_owned),
            port: port.transpose()?,
            gid: gid.transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_is_a_device_a_port_and_an_index() {
        let wish: Wish = "mlx5_0:2:3".parse().unwrap();
        assert_eq!(
            (wish.device.as_deref(), wish.port, wish.gid),
            (Some("mlx5_0"), Some(2), Some(3))
        );
        for bad in ["", ":1", "a:x", "a:1:y", "a:1:2:3", "a:256"] {
            assert!(bad.parse::<Wish>().is_err(), "{bad}");
        }
    }
}
