//! Debian's perftest on the guest's side, as the client of our memory: it WRITEs, READs, adds, and
//! SENDs, and finds nothing missing.
//!
//! Its exchange goes in lockstep: the client says something and reads as much. What it says of its
//! queue pair is answered by what there is to say of ours; of all else (versions, cache lines, path
//! MTU, results) it hears its own echo, and so finds both sides alike.

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
/// Outstanding READs and atomics that either side takes.
const READS: usize = 16;
/// SENDs that may wait for us.
const DEPTH: usize = 128;

/// One run of one of the programs.
pub(crate) struct Run {
    pub(crate) program: &'static str,
    pub(crate) transport: Transport,
    pub(crate) size: usize,
    pub(crate) rounds: usize,
}

impl Run {
    /// Runs it to its end. Returns how many messages we received.
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
                // Its figures are the guest's, which is emulated: what counts is that it ends.
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
                stream.write_all(&said).expect("it listens");
                said.clear();
            } else if said.len() >= KEYS {
                if !connected {
                    judge.connect(qp, &parse(&said), 1024);
                    for _ in 0..DEPTH {
                        judge.post_recv(qp, 0, MEMORY / 2);
                    }
                    connected = true;
                }
                stream.write_all(&keys_of(judge, qp)).expect("it listens");
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
