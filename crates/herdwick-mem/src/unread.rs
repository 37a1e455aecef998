//! The number of bytes that the peer of a socket has not yet read or acknowledged.

use std::{ffi::c_int, io, os::fd::AsFd};

use rustix::ioctl::{Getter, ioctl};

/// `SIOCOUTQ`, equal to `TIOCOUTQ` of `asm-generic`.
const SIOCOUTQ: rustix::ioctl::Opcode = 0x5411;

/// Returns at least the number of bytes sent by a unix socket that its peer has not read: 0 once
/// all are read, or the peer is closed. Of a TCP socket (tcp(7)), the bytes that the peer has not
/// acknowledged.
///
/// The error of `ioctl` for a descriptor that is no socket.
pub fn unread_bytes(socket: impl AsFd) -> io::Result<usize> {
    // SAFETY: SIOCOUTQ stores one int through its argument and does nothing else; on other
    // descriptors than sockets this number has the same meaning (TIOCOUTQ) or is refused.
    let bytes: c_int = unsafe { ioctl(socket, Getter::<SIOCOUTQ, c_int>::new()) }?;
    // The kernel returns no negative count.
    Ok(usize::try_from(bytes).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use std::{
        io::{Read, Write},
        os::unix::net::UnixStream,
    };

    use super::*;

    #[test]
    fn unread_bytes_are_counted_until_read_or_closed() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        assert_eq!(unread_bytes(&near).unwrap(), 0);
        near.write_all(b"some").unwrap();
        assert!(unread_bytes(&near).unwrap() >= 4);
        far.read_exact(&mut [0; 4]).unwrap();
        assert_eq!(unread_bytes(&near).unwrap(), 0);
        near.write_all(b"more").unwrap();
        far.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(
            unread_bytes(&near).unwrap() >= 4,
            "the bytes may still be read"
        );
        drop(far);
        assert_eq!(unread_bytes(&near).unwrap(), 0);
    }
}
