use std::{ffi::c_int, io, os::fd::AsFd};

use rustix::ioctl::{Getter, ioctl};

/// `SIOCOUTQ`, as `TIOCOUTQ` of `asm-generic`.
const SIOCOUTQ: rustix::ioctl::Opcode = 0x5411;

/// Bytes, or more, that were sent by a unix socket and that nobody has read: 0 once all of them were,
/// or the peer is closed.
///
/// # Errors
/// What `ioctl` says of a descriptor that is no socket.
pub fn unread_bytes(socket: impl AsFd) -> io::Result<usize> {
    // SAFETY: SIOCOUTQ stores one int through its argument and does nothing else, and of other
    // descriptors than sockets this number asks the same or is refused.
    let bytes: c_int = unsafe { ioctl(socket, Getter::<SIOCOUTQ, c_int>::new()) }?;
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
    fn what_lies_unread_is_told_until_it_is_read_or_nobody_can() {
        let (mut near, mut far) = UnixStream::pair().unwrap();
        assert_eq!(unread_bytes(&near).unwrap(), 0);
        near.write_all(b"some").unwrap();
        assert!(unread_bytes(&near).unwrap() >= 4);
        far.read_exact(&mut [0; 4]).unwrap();
        assert_eq!(unread_bytes(&near).unwrap(), 0);
        near.write_all(b"more").unwrap();
        far.shutdown(std::net::Shutdown::Both).unwrap();
        assert!(unread_bytes(&near).unwrap() >= 4, "it may be read yet");
        drop(far);
        assert_eq!(unread_bytes(&near).unwrap(), 0);
    }
}
