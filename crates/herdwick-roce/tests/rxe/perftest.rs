//! Debian's perftest in the guest, as the client of the memory here: it WRITEs, READs, adds and
//! SENDs, and checks that all arrives.
//!
//! It exchanges parameters in lockstep: the client sends a string and reads one of the same length.
//! The string with its queue pair is answered with the queue pair here; all others (versions, cache
//! lines, path MTU, results) are echoed, so that the client finds both sides equal.

use std::{
    io::Write,
    net::{Ipv6Addr, TcpStream},
};

use herdwick_fabric::Transport;

use crate::{
    guest::status,
    judge::{Judge, MEMORY, Place, QKEY, There},
};

/// "LID:reads:QPN:PSN:rkey:address:GID:SRQN:" and a NUL.
const KEYS: usize = 108;
/// Outstanding READs and atomics that either side serves.
const READS: usize = 16;
/// Depth of the receive queue.
const DEPTH: usize = 128;

/// One run of one of the programs.
pub(crate) struct Run {
    pub(crate) program: &'static str,
    pub(crate) transport: Transport,
    pub(crate) size: usize,
    pub(crate) rounds: usize,
}

impl Run {
    /// Runs the program to its end. Returns how many messages were received here.
    pub(crate) fn run(&self, judge: &mut Judge) -> usize {
        let Self {
            program,
            size,
            rounds,
            ..
        } = self;
        let (gid, transport) = (judge.family.gid_index(), self.transport_name());
        let sized = if *program == "ib_atomic_bw" {
            String::new()
        } else {
            format!("-s {size}")
        };
        let stream = judge.start(|port| {
            format!(
                "{program} -d rxe0 -x {gid} {transport} {sized} -n {rounds} -m 1024 -F -p {port} 10.0.2.2"
            )
        });
        judge.guest.listen(&stream);
        let qp = judge.queue_pair(self.transport, DEPTH, QKEY);
        self.serve(judge, qp, stream)
    }

    fn transport_name(&self) -> &'static str {
        match self.transport {
            _ if self.program == "ib_atomic_bw" || self.program == "ib_read_bw" => "",
            Transport::Rc => "-c RC",
            Transport::Uc => "-c UC",
            Transport::Ud => "-c UD",
        }
    }

    fn serve(&self, judge: &mut Judge, qp: Place, mut stream: TcpStream) -> usize {
        let (mut said, mut connected, mut received) = (Vec::new(), false, 0);
        let exit = loop {
            for done in judge.completions() {
                assert_eq!(done.len, self.size, "message {received}");
                received += 1;
                judge.post_recv(qp, 0, self.size + 40);
            }
            let turn = judge.turn();
            if let Some(line) = turn.shell {
                // The figures are those of an emulated guest; only the exit status counts.
                println!("    {line}");
                if let Some(exit) = status(&line) {
                    break exit;
                }
            }
            let Some(piece) = turn.program else {
                continue;
            };
            said.extend(piece);
            let keys = said.len() > 40 && said.iter().filter(|byte| **byte == b':').count() > 3;
            if !keys {
                stream.write_all(&said).expect("the peer listens");
                said.clear();
            } else if said.len() >= KEYS {
                if !connected {
                    judge.connect(qp, &parse(&said), 1024);
                    for _ in 0..DEPTH {
                        judge.post_recv(qp, 0, MEMORY / 2);
                    }
                    connected = true;
                }
                stream
                    .write_all(&keys_of(judge, qp))
                    .expect("the peer listens");
                said.clear();
            }
        };
        assert_eq!(exit, 0);
        received
    }
}

fn keys_of(judge: &Judge, qp: Place) -> Vec<u8> {
    let ours = judge.here(qp);
    let gid = ours
        .gid
        .octets()
        .map(|byte| format!("{byte:02x}"))
        .join(":");
    let text = format!(
        "0000:{READS:04x}:{:06x}:{:06x}:{:08x}:{:016x}:{gid}:00000000:\0",
        ours.qpn, ours.psn, ours.rkey, ours.addr
    );
    assert_eq!(text.len(), KEYS);
    text.into_bytes()
}

fn parse(keys: &[u8]) -> There {
    let text = std::str::from_utf8(&keys[..KEYS - 1]).expect("text");
    let parts: Vec<&str> = text.split(':').collect();
    let number = |at: usize| u64::from_str_radix(parts[at], 16).expect("hex");
    let short = |at: usize| u32::try_from(number(at)).expect("32 bits");
    let gid: [u8; 16] = std::array::from_fn(|i| u8::try_from(number(6 + i)).expect("a byte"));
    There {
        qpn: short(2),
        psn: short(3),
        rkey: short(4),
        addr: number(5),
        gid: Ipv6Addr::from(gid),
    }
}
