//! The system calls that need `unsafe`: each takes borrowed, sized memory and keeps no pointer to
//! it after return.
//!
//! Circular import with `socket`: it calls the functions here, which fill and read its buffers.

use std::{
    io,
    mem::{MaybeUninit, zeroed},
    net::SocketAddr,
    os::fd::{AsRawFd, BorrowedFd},
    ptr,
};

use super::{
    Arrival, DATAGRAM, Outgoing, RECEIVES, RECV_CONTROL_BYTES, ReceiveBuffers, SENDS, SendControl,
};

/// Sets the options that every socket of this crate has.
pub(super) fn prepare(fd: BorrowedFd<'_>, address: &SocketAddr) -> io::Result<()> {
    const ON: libc::c_int = 1;
    let any = address.ip().is_unspecified();
    // IPv4 packets of an IPv6 socket obey the IPv4 options, so both are set.
    set(
        fd,
        libc::IPPROTO_IP,
        libc::IP_MTU_DISCOVER,
        // Never fragment: an ICRC covers the whole packet, and only the first fragment would have the
        // ports.
        &libc::IP_PMTUDISC_DO,
    )?;
    set(fd, libc::IPPROTO_IP, libc::IP_RECVTOS, &ON)?;
    if address.is_ipv6() {
        let level = libc::IPPROTO_IPV6;
        set(fd, level, libc::IPV6_MTU_DISCOVER, &libc::IPV6_PMTUDISC_DO)?;
        set(fd, level, libc::IPV6_RECVTCLASS, &ON)?;
        if any {
            set(fd, level, libc::IPV6_RECVPKTINFO, &ON)?;
        }
    } else if any {
        set(fd, libc::IPPROTO_IP, libc::IP_PKTINFO, &ON)?;
    }
    // The kernel then adds its count of dropped datagrams to each receive.
    set(fd, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &ON)?;
    // Ignored: a kernel older than 5.0 has no UDP_GRO and delivers each datagram singly.
    let _ = set(fd, libc::SOL_UDP, libc::UDP_GRO, &ON);
    Ok(())
}

/// Attaches the filter of [`super::Socket::steer`] to the socket's group.
pub(super) fn steer(fd: BorrowedFd<'_>, sockets: usize) -> io::Result<()> {
    const LOW_BYTE_OF_DEST_QP: u32 = 7;
    let statement = |code: u32, k: u32| libc::sock_filter {
        code: u16::try_from(code).expect("opcodes are small"),
        jt: 0,
        jf: 0,
        k,
    };
    let count = u32::try_from(sockets).map_err(|_| io::ErrorKind::InvalidInput)?;
    // Load the byte, take it modulo the number of sockets, return that as the socket's index.
    let mut program = [
        statement(
            libc::BPF_LD | libc::BPF_B | libc::BPF_ABS,
            LOW_BYTE_OF_DEST_QP,
        ),
        // Never 0, which the kernel refuses: a group has two sockets at least.
        statement(libc::BPF_ALU | libc::BPF_MOD | libc::BPF_K, count),
        statement(libc::BPF_RET | libc::BPF_A, 0),
    ];
    let program = libc::sock_fprog {
        len: 3,
        filter: program.as_mut_ptr(),
    };
    set(
        fd,
        libc::SOL_SOCKET,
        libc::SO_ATTACH_REUSEPORT_CBPF,
        &program,
    )
}

fn set<T>(fd: BorrowedFd<'_>, level: i32, name: i32, value: &T) -> io::Result<()> {
    let len = libc::socklen_t::try_from(size_of::<T>()).expect("options are small");
    // SAFETY: `value` is `len` readable bytes that outlive the call. The only option that holds a
    // pointer is a `sock_fprog`, and its only caller keeps the program alive.
    let done = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            level,
            name,
            ptr::from_ref(value).cast(),
            len,
        )
    };
    if done == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Returns the MTU of the route of a connected socket.
pub(super) fn path_mtu(fd: BorrowedFd<'_>, v6: bool) -> io::Result<usize> {
    let (level, name) = if v6 {
        (libc::IPPROTO_IPV6, libc::IPV6_MTU)
    } else {
        (libc::IPPROTO_IP, libc::IP_MTU)
    };
    let mut value: libc::c_int = 0;
    let mut len = libc::socklen_t::try_from(size_of_val(&value)).expect("4");
    // SAFETY: `value` has `len` writable bytes, and any bytes are a valid int.
    let done = unsafe {
        libc::getsockopt(
            fd.as_raw_fd(),
            level,
            name,
            ptr::from_mut(&mut value).cast(),
            &raw mut len,
        )
    };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    usize::try_from(value).map_err(io::Error::other)
}

/// Calls sendmmsg(2) with at most [`SENDS`] GSO batches; returns how many were sent.
pub(super) fn send(fd: BorrowedFd<'_>, batches: &[Outgoing<'_>]) -> io::Result<usize> {
    let batches = &batches[..batches.len().min(SENDS)];
    // Not zeroed: the arrays are large, and most sends use few of their entries.
    let mut controls = [const { MaybeUninit::<SendControl>::uninit() }; SENDS];
    let mut parts = [const { MaybeUninit::<libc::iovec>::uninit() }; SENDS];
    let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; SENDS];
    let slots = controls.iter_mut().zip(&mut parts).zip(&mut messages);
    for (batch, ((control, part), message)) in batches.iter().zip(slots) {
        // A copy, because the segment size is added to it.
        let control = control.write(batch.to.control);
        // A single datagram goes without the option: a path that cannot segment would refuse it.
        if batch.bytes.len() > batch.segment {
            control.segment(u16::try_from(batch.segment).map_err(|_| io::ErrorKind::InvalidInput)?);
        }
        let part = part.write(libc::iovec {
            // The kernel only reads it; iovec has no const form.
            iov_base: batch.bytes.as_ptr().cast_mut().cast(),
            iov_len: batch.bytes.len(),
        });
        let (name, control) = (batch.to.name.as_bytes(), control.as_bytes());
        // SAFETY: an all-zero msghdr is valid and has no pointers.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_name = name.as_ptr().cast_mut().cast();
        header.msg_namelen = u32::try_from(name.len()).expect("28 at most");
        header.msg_iov = part;
        header.msg_iovlen = 1;
        if !control.is_empty() {
            header.msg_control = control.as_ptr().cast_mut().cast();
            header.msg_controllen = control.len();
        }
        message.write(libc::mmsghdr {
            msg_hdr: header,
            msg_len: 0,
        });
    }
    let count = u32::try_from(batches.len()).expect("a few");
    // SAFETY: the first `count` messages were written above and point to memory that is borrowed or
    // on this frame for the duration of the call; the kernel only reads through them, except for
    // `msg_len`, which is in this frame's array.
    let sent = unsafe {
        libc::sendmmsg(
            fd.as_raw_fd(),
            messages.as_mut_ptr().cast(),
            count,
            libc::MSG_DONTWAIT,
        )
    };
    // sendmmsg returns an error only if the first message failed; another one that failed is the first
    // of the next call.
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Calls recvmmsg(2) for at most [`RECEIVES`] GSO batches; returns how many arrived.
pub(super) fn receive(fd: BorrowedFd<'_>, inbox: &mut ReceiveBuffers) -> io::Result<usize> {
    let mut parts = [const { MaybeUninit::<libc::iovec>::uninit() }; RECEIVES];
    let mut messages = [const { MaybeUninit::<libc::mmsghdr>::uninit() }; RECEIVES];
    let buffers = inbox.buffers.chunks_exact_mut(DATAGRAM);
    let slots = parts.iter_mut().zip(&mut messages);
    for ((buffer, arrival), (part, message)) in buffers.zip(&mut inbox.arrivals).zip(slots) {
        let part = part.write(libc::iovec {
            iov_base: buffer.as_mut_ptr().cast(),
            iov_len: buffer.len(),
        });
        let name = arrival.from.as_mut_bytes();
        // SAFETY: an all-zero msghdr is valid and has no pointers.
        let mut header: libc::msghdr = unsafe { zeroed() };
        header.msg_name = name.as_mut_ptr().cast();
        header.msg_namelen = u32::try_from(name.len()).expect("28");
        header.msg_iov = part;
        header.msg_iovlen = 1;
        header.msg_control = arrival.control.as_mut_ptr().cast();
        header.msg_controllen = RECV_CONTROL_BYTES;
        message.write(libc::mmsghdr {
            msg_hdr: header,
            msg_len: 0,
        });
    }
    // SAFETY: all RECEIVES messages were written above; each points to a buffer, a name and a
    // control area of its own, borrowed by this call only, with their true lengths.
    let count = unsafe {
        libc::recvmmsg(
            fd.as_raw_fd(),
            messages.as_mut_ptr().cast(),
            RECEIVES as u32,
            libc::MSG_DONTWAIT,
            // No timeout: with MSG_DONTWAIT the call returns what is there.
            ptr::null_mut(),
        )
    };
    let count = usize::try_from(count).map_err(|_| io::Error::last_os_error())?;
    for (message, arrival) in messages.iter().zip(&mut inbox.arrivals).take(count) {
        // SAFETY: all messages were written above.
        let message = unsafe { message.assume_init_ref() };
        take(arrival, message);
    }
    Ok(count)
}

fn take(arrival: &mut Arrival, message: &libc::mmsghdr) {
    let header = &message.msg_hdr;
    arrival.len = message.msg_len as usize;
    arrival.control_len = header.msg_controllen;
    // Without its control messages a batch has no segment length, so it cannot be cut into packets.
    let cut = libc::MSG_TRUNC | libc::MSG_CTRUNC;
    arrival.truncated = header.msg_flags & cut != 0;
}
