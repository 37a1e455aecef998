//! Writes packets to a file that tcpdump, tshark and Wireshark read (pcap 2.4, raw IP).
//!
//! A UDP socket does not show IP headers, so those in the file are made of what is known:
//! addresses, ports, lengths, and the identification with which the ICRC was correct.

use std::{
    fs::{File, OpenOptions},
    io::{self, BufWriter, Write},
    net::{IpAddr, SocketAddr},
    os::unix::fs::OpenOptionsExt,
    path::Path,
    time::Duration,
};

use herdwick_roce::icrc::Route;

/// The pcap link type of frames that begin with an IP header.
const LINKTYPE_RAW: u32 = 101;
/// Snapshot length; an IP packet cannot be longer.
const SNAP: u32 = 65_535;
const UDP: u8 = 17;
/// File mode: the file contains keys and values in clear text.
const OWNER_ONLY: u32 = 0o600;

/// An open capture file.
#[derive(Debug)]
pub(crate) struct Capture {
    file: BufWriter<File>,
    /// The time of day, since 1970, when the port's clock is zero.
    origin: Duration,
    /// Packets added since the last successful flush.
    pending: u64,
    /// Packets that the file may lack. After a failed write, nothing more is written.
    lost: u64,
}

impl Capture {
    /// Makes or truncates `path`, or, if it `appends`, adds to what is there; a pipe has had its header then.
    /// `origin` is the time of day, since 1970, at which `now` is zero.
    pub(crate) fn open(path: &Path, origin: Duration, appends: bool) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.create(true).mode(OWNER_ONLY);
        match appends {
            true => options.append(true),
            false => options.write(true).truncate(true),
        };
        let file = options.open(path)?;
        let known = file.metadata()?;
        let mut file = BufWriter::new(file);
        // A pipe has no length to tell whether its reader had the header.
        if !appends || (known.is_file() && known.len() == 0) {
            // The pcap header: magic number (microsecond timestamps), version 2.4, time zone, accuracy,
            // snapshot length, link type.
            for word in [0xa1b2_c3d4, 0x0004_0002, 0, 0, SNAP, LINKTYPE_RAW] {
                file.write_all(&word.to_le_bytes())?;
            }
        }
        Ok(Self {
            file,
            origin,
            pending: 0,
            lost: 0,
        })
    }

    /// Adds a packet, given from the BTH on.
    pub(crate) fn packet(&mut self, now: Duration, route: &Route, id: u16, packet: &[u8]) {
        // A file with a gap in the middle would pass for complete.
        if self.lost > 0 {
            self.lost += 1;
            return;
        }
        let mut frame = Vec::with_capacity(48 + packet.len());
        ip(&mut frame, route, id, packet.len());
        udp(&mut frame, route, packet);
        self.pending += 1;
        if self.record(now, &frame).is_err() {
            // The buffer held all of these.
            self.lost = self.pending;
        }
    }

    /// Flushes buffered packets to the file.
    pub(crate) fn flush(&mut self) {
        if self.lost == 0 && self.file.flush().is_err() {
            // Bytes of earlier packets may be what failed.
            self.lost = self.pending.max(1);
        }
        self.pending = 0;
    }

    /// Returns the number of packets that the file may lack because a write failed.
    pub(crate) fn lost(&self) -> u64 {
        self.lost
    }

    fn record(&mut self, now: Duration, frame: &[u8]) -> io::Result<()> {
        let at = self.origin + now;
        let len = u32::try_from(frame.len()).map_err(io::Error::other)?;
        // pcap has 32 bits for the seconds, unsigned until 2106.
        let seconds = u32::try_from(at.as_secs()).map_err(io::Error::other)?;
        for word in [seconds, at.subsec_micros(), len, len] {
            self.file.write_all(&word.to_le_bytes())?;
        }
        self.file.write_all(frame)
    }
}

fn ip(frame: &mut Vec<u8>, route: &Route, id: u16, packet: usize) {
    // 8 is the length of the UDP header.
    let udp = u16::try_from(8 + packet).unwrap_or(u16::MAX);
    let ends = (
        route.source.ip().to_canonical(),
        route.destination.ip().to_canonical(),
    );
    match ends {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            let flags = if route.dont_fragment { 0x40 } else { 0 };
            // Version 4, five words; the type of service is not known for sent packets, so it is 0.
            frame.extend([0x45, 0]);
            frame.extend(udp.saturating_add(20).to_be_bytes());
            frame.extend(id.to_be_bytes());
            // A time to live of 64, Linux's default.
            frame.extend([flags, 0, 64, UDP, 0, 0]);
            frame.extend(source.octets());
            frame.extend(destination.octets());
            // Over a checksum of zero, as RFC 791 has it.
            let sum = checksum(0, frame);
            frame[10..12].copy_from_slice(&sum.to_be_bytes());
        }
        (source, destination) => {
            frame.extend([0x60, 0, 0, 0]);
            frame.extend(udp.to_be_bytes());
            frame.extend([UDP, 64]);
            for end in [source, destination] {
                // Of two families, which no socket reports.
                let end = match end {
                    IpAddr::V4(end) => end.to_ipv6_mapped(),
                    IpAddr::V6(end) => end,
                };
                frame.extend(end.octets());
            }
        }
    }
}

fn udp(frame: &mut Vec<u8>, route: &Route, packet: &[u8]) {
    let start = frame.len();
    let len = u16::try_from(8 + packet.len()).unwrap_or(u16::MAX);
    let port = |end: SocketAddr| end.port().to_be_bytes();
    frame.extend(port(route.source));
    frame.extend(port(route.destination));
    frame.extend(len.to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(packet);
    // The UDP checksum is optional over IPv4 and mandatory over IPv6.
    if frame[0] >> 4 == 6 {
        // The pseudo header has the addresses, which begin at byte 8 of an IPv6 header, length and
        // protocol.
        let pseudo = u32::from(len) + u32::from(UDP);
        // 0 would mean that there is no checksum (RFC 8200, section 8.1).
        let sum = match checksum(pseudo, &frame[8..]) {
            0 => 0xffff,
            sum => sum,
        };
        frame[start + 6..start + 8].copy_from_slice(&sum.to_be_bytes());
    }
}

/// Returns the Internet checksum (RFC 1071) of `bytes`, continued from the sum `before`.
fn checksum(before: u32, bytes: &[u8]) -> u16 {
    let pairs = bytes.chunks(2).map(|pair| {
        let low = pair.get(1).copied().unwrap_or(0);
        u32::from(u16::from_be_bytes([pair[0], low]))
    });
    let mut sum = before + pairs.sum::<u32>();
    // The carries are added to the sum (one's complement).
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).expect("folded above")
}
