//! Messages between a server and its clients, each in a numbered slot: SENT, or written where the peer
//! polls, over any transport. ECHO in the designs of Fig 5 of the HERD paper is made of them, and so are
//! the PUTs of the systems that section 5.1 emulates.
//!
//! [`port`] is a thread's port with its channels, [`ends`] connects both sides, [`server`] answers,
//! [`asker`] keeps a window of messages in flight, and [`client`] compares each answer.

mod asker;
mod client;
mod ends;
mod port;
mod server;

use herdwick_fabric::{Capabilities, Transport};
use herdwick_mem::WORD;

pub(crate) use asker::Asker;
pub(crate) use client::EchoClient;
pub(crate) use ends::{Attach, EchoParty, connect};
pub(crate) use server::{EchoServer, Work};

/// How the messages of one direction travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// As WRITEs into slots that the receiver polls.
    Write(Transport),
    /// As SENDs.
    Send(Transport),
}

impl Way {
    pub(crate) fn transport(self) -> Transport {
        match self {
            Self::Write(transport) | Self::Send(transport) => transport,
        }
    }
}

/// How a server and its clients exchange messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exchange {
    /// Of requests and of replies.
    pub(crate) ways: [Way; 2],
    /// Words of a request and of a reply, which is the end of its request.
    pub(crate) words: [usize; 2],
    /// Requests of a client in flight.
    pub(crate) window: usize,
    /// Every so many verbs, one is signaled.
    pub(crate) signaled: usize,
    /// Whether payloads are inlined.
    pub(crate) inline: bool,
}

/// Words of the longest message, so that it fits any datagram.
pub(crate) const MESSAGE_WORDS_MAX: usize = 128;

impl Exchange {
    /// Returns why a fabric cannot carry it; `None` if it can.
    pub(crate) fn obstacle(&self, has: &Capabilities) -> Option<String> {
        let writes = self.ways.iter().any(|way| matches!(way, Way::Write(_)));
        if writes && !has.ordered_write {
            return Some("the last word of a WRITE may not be seen last".to_owned());
        }
        let carried = self.ways.iter().all(|way| match way.transport() {
            Transport::Rc => has.rc,
            Transport::Uc => has.uc,
            Transport::Ud => has.ud,
        });
        if !carried {
            return Some("a transport is not there".to_owned());
        }
        let longest = self.words[0].max(self.words[1]) * WORD;
        if self.inline && longest > has.inline_bytes_max {
            return Some(format!("at most {} bytes inline", has.inline_bytes_max));
        }
        None
    }
}
