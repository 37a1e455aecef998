//! Debian's `ibv_*_pingpong` in the guest: SENDs of any length, back and forth.

use std::{
    io::{Read, Write},
    net::{Ipv6Addr, TcpStream},
};

use herdwick_fabric::Transport;

use crate::{
    guest::status,
    judge::{Judge, Place, QKEY, There},
};

/// The byte with which the programs fill their messages.
const FILLING: u8 = 0x7b;
/// "LID:QPN:PSN:GID" and a NUL.
const ADDRESS: usize = 52;
/// Depth of the receive queue.
const DEPTH: usize = 16;

/// One run: `rounds` messages of `size` bytes in each direction, the guest's first.
pub(crate) struct Rally {
    pub(crate) transport: Transport,
    pub(crate) size: usize,
    pub(crate) rounds: usize,
    pub(crate) mtu: usize,
}

impl Rally {
    pub(crate) fn play(&self, judge: &mut Judge) {
        let (program, mtu) = match self.transport {
            Transport::Rc => ("ibv_rc_pingpong", format!("-m {}", self.mtu)),
            Transport::Uc => ("ibv_uc_pingpong", format!("-m {}", self.mtu)),
            Transport::Ud => ("ibv_ud_pingpong", String::new()),
        };
        let (size, rounds) = (self.size, self.rounds);
        let gid = judge.family.gid_index();
        let stream = judge.start(|port| {
            format!("{program} -d rxe0 -g {gid} -s {size} -n {rounds} -r {DEPTH} {mtu} -p {port} 10.0.2.2")
        });
        let qp = judge.queue_pair(self.transport, DEPTH, QKEY);
        self.exchange(judge, qp, stream);
        self.answer(judge, qp);
    }

    /// Exchanges addresses with the program.
    fn exchange(&self, judge: &mut Judge, qp: Place, mut stream: TcpStream) {
        let mut text = [0; ADDRESS];
        stream.read_exact(&mut text).expect("its address");
        let there = parse(std::str::from_utf8(&text[..ADDRESS - 1]).expect("text"));
        judge.connect(qp, &there, self.mtu);
        for slot in 0..DEPTH {
            judge.post_recv(qp, slot * self.slot(), self.slot());
        }
        let ours = judge.here(qp);
        let gid: String = ours.gid.octets().map(|byte| format!("{byte:02x}")).concat();
        let text = format!("0000:{:06x}:{:06x}:{gid}\0", ours.qpn, ours.psn);
        stream.write_all(text.as_bytes()).expect("the peer listens");
        stream.read_exact(&mut [0; 5]).expect("\"done\"");
    }

    /// Returns the bytes of memory that one message may take.
    fn slot(&self) -> usize {
        (self.size + 40).next_multiple_of(64)
    }

    /// Answers every message with one of the same length, until the program ends.
    fn answer(&self, judge: &mut Judge, qp: Place) {
        let (mut received, mut sent) = (0, 0);
        let filling = vec![FILLING; self.size];
        let exit = loop {
            for done in judge.completions() {
                if done.is_receive {
                    let at = received % DEPTH * self.slot();
                    assert_eq!(done.len, self.size, "message {received}");
                    assert!(
                        judge.received(&done, at, self.size) == filling,
                        "{received}"
                    );
                    received += 1;
                    judge.post_recv(qp, at, self.slot());
                    judge.fill_with(DEPTH * self.slot(), &filling);
                    judge.post_send(qp, DEPTH * self.slot(), self.size);
                } else {
                    sent += 1;
                }
            }
            if let Some(line) = judge.turn().shell {
                println!("    {line}");
                if let Some(exit) = status(&line) {
                    break exit;
                }
            }
        };
        assert_eq!((exit, received), (0, self.rounds));
        assert!(sent + 1 >= self.rounds, "{sent} of {}", self.rounds);
    }
}

fn parse(text: &str) -> There {
    let mut parts = text.split(':').skip(1);
    let mut number = || u32::from_str_radix(parts.next().expect("a part"), 16).expect("hex");
    let (qpn, psn) = (number(), number());
    let gid = u128::from_str_radix(parts.next().expect("a GID"), 16).expect("hex");
    There {
        qpn,
        psn,
        rkey: 0,
        addr: 0,
        gid: Ipv6Addr::from(gid),
    }
}
