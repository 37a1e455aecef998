//! One thread's port and its channels: messages of one length in numbered slots, each sent as a SEND or
//! written where the peer polls.

use std::time::Duration;

use arrayvec::ArrayVec;
use herdwick_fabric::{
    AddressHandle, Completion, CqId, Device, Local, Opcode, Payload, Port, PostError, QpId, RecvWr,
    RegionId, Remote, SendOp, SendWr, Status,
};
use herdwick_mem::{Span, WORD, Words};

/// Completions that one poll takes.
const POLL: usize = 64;
/// Messages in a post.
const POSTLIST: usize = 16;
/// Bits of a message's last word that number its attempt. The others number the message.
const ATTEMPT_SHIFT: u32 = 56;

/// The last word of message `number`, from 1 on, at an attempt.
pub(super) fn mark(number: u64, attempt: u8) -> u64 {
    number | u64::from(attempt) << ATTEMPT_SHIFT
}

/// The number of the message with this last word.
pub(super) fn number_of(mark: u64) -> u64 {
    mark & ((1 << ATTEMPT_SHIFT) - 1)
}

/// How a channel sends.
pub(super) struct Out {
    pub(super) qp: QpId,
    /// The destination of datagrams.
    pub(super) to: Option<AddressHandle>,
    /// Where the peer's slots are; `None`: SENDs.
    pub(super) slots: Option<Remote>,
    /// A slot for each message, where payloads are not inlined.
    pub(super) staging: RegionId,
    pub(super) inline: bool,
    /// Every so many, one is signaled.
    pub(super) signaled: usize,
    pub(super) unsignaled: usize,
}

/// How a channel receives.
pub(super) enum In {
    /// The peer writes into slots; what the last word of each was.
    Slots(Span, Vec<u64>),
    /// RECVs, in the order in which they are posted, again and again.
    Recvs {
        qp: QpId,
        recvs: Vec<RecvWr>,
        /// Bytes in front of a payload in the buffer.
        header: usize,
        next: usize,
        consumed: usize,
    },
}

pub(super) struct Channel {
    pub(super) out: Out,
    pub(super) inward: In,
}

/// Words of the messages that a thread sends, and of those that it receives.
#[derive(Clone, Copy, Debug)]
pub(super) struct MessageWords {
    pub(super) out: usize,
    pub(super) inward: usize,
}

/// A thread's port with a channel to each peer.
pub(crate) struct MessagePort<D: Device> {
    // The device stays open as long as its port is used.
    _device: D,
    pub(crate) port: D::Port,
    cq: CqId,
    channels: Vec<Channel>,
    pub(super) words: MessageWords,
    /// Messages in flight on a channel.
    window: usize,
    completions: [Completion; POLL],
}

/// Messages that arrived: of each the index of its channel, then its words.
pub(super) type Arrived = Vec<u64>;

impl<D: Device> MessagePort<D> {
    pub(super) fn new(
        (device, port, cq): (D, D::Port, CqId),
        channels: Vec<Channel>,
        (words, window): (MessageWords, usize),
    ) -> Self {
        Self {
            _device: device,
            port,
            cq,
            channels,
            words,
            window,
            completions: [Completion::BLANK; POLL],
        }
    }

    /// Returns room for every message that can arrive between two passes.
    pub(super) fn arrived(&self) -> Arrived {
        Vec::with_capacity((1 + self.words.inward) * 2 * self.window * self.channels.len())
    }

    /// Posts the first RECVs.
    ///
    /// # Errors
    /// [`PostError`].
    pub(super) fn start(&mut self) -> Result<(), PostError> {
        for (index, channel) in self.channels.iter_mut().enumerate() {
            if let In::Recvs { qp, recvs, .. } = &mut channel.inward {
                recvs.iter_mut().for_each(|recv| recv.wr_id = index as u64);
                self.port.post_recv(*qp, recvs)?;
            }
        }
        Ok(())
    }

    /// Moves the port, and appends each message that arrived to `arrived`.
    ///
    /// # Errors
    /// The status of a work request that failed.
    #[inline]
    pub(super) fn receive(&mut self, now: Duration, arrived: &mut Arrived) -> Result<(), Status> {
        self.port.progress(now);
        loop {
            let count = self.port.poll(self.cq, &mut self.completions);
            for index in 0..count {
                let completion = self.completions[index];
                match (completion.status, completion.opcode) {
                    (Status::Success, Opcode::Recv) => self.take(&completion, arrived),
                    (Status::Success, _) => (),
                    (status, _) => return Err(status),
                }
            }
            if count < POLL {
                break;
            }
        }
        let Self {
            port,
            channels,
            words,
            ..
        } = self;
        for (index, channel) in channels.iter_mut().enumerate() {
            match &mut channel.inward {
                In::Slots(span, seen) => look(span, seen, words.inward, index, arrived),
                // A RECV that cannot be posted shows as a message that is not answered.
                recvs @ In::Recvs { .. } => {
                    let _ = recvs.repost(port);
                }
            }
        }
        Ok(())
    }

    /// Takes a message out of its completion or its buffer.
    #[inline]
    fn take(&mut self, completion: &Completion, arrived: &mut Arrived) {
        let words = self.words.inward;
        let Some(channel) = self.channels.get_mut(completion.wr_id as usize) else {
            return;
        };
        let In::Recvs {
            recvs,
            header,
            next,
            consumed,
            ..
        } = &mut channel.inward
        else {
            return;
        };
        let into = recvs[(*next + *consumed) % recvs.len()].into;
        *consumed += 1;
        if completion.byte_len as usize != words * WORD {
            return;
        }
        arrived.push(completion.wr_id);
        match (&completion.inline, self.port.region(into.region)) {
            (Some(inline), _) => arrived.extend(&inline.words()[..words]),
            (None, Some(span)) => {
                // Buffers and headers are whole words.
                let first = (into.offset + *header) / WORD;
                arrived.extend((first..first + words).map(|word| span.load(word)));
            }
            // A mark of 0 is no message's.
            (None, None) => arrived.extend(std::iter::repeat_n(0, words)),
        }
    }

    /// Sends messages on `channel`, one after the other in `messages`; returns the words that found
    /// room.
    ///
    /// # Errors
    /// [`PostError`], except for a full queue.
    #[inline]
    pub(super) fn send(&mut self, channel: usize, messages: &[u64]) -> Result<usize, PostError> {
        let words = self.words.out;
        let mut sent = 0;
        for messages in messages.chunks(POSTLIST * words) {
            match self.post(channel, messages) {
                Ok(()) => sent += messages.len(),
                Err(PostError::Full) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    /// Posts up to [`POSTLIST`] messages, all or none.
    #[inline]
    fn post(&mut self, channel: usize, messages: &[u64]) -> Result<(), PostError> {
        let (words, window) = (self.words.out, self.window);
        let Self { port, channels, .. } = self;
        let out = &mut channels[channel].out;
        let slot = |message: &[u64]| (number_of(message[words - 1]) % window as u64) as usize;
        if let (false, Some(staging)) = (out.inline, port.region(out.staging)) {
            for message in messages.chunks_exact(words) {
                staging.write_words(slot(message) * words, message);
            }
        }
        let mut unsignaled = out.unsignaled;
        let mut batch = ArrayVec::<_, POSTLIST>::new();
        for message in messages.chunks_exact(words) {
            let offset = slot(message) * words * WORD;
            let payload = match out.inline {
                true => Payload::Words(message),
                false => Payload::Region(Local {
                    region: out.staging,
                    offset,
                    len: words * WORD,
                }),
            };
            let op = match out.slots {
                Some(slots) => SendOp::Write {
                    payload,
                    to: slots.offset(offset as u64),
                    imm: None,
                },
                None => SendOp::Send {
                    payload,
                    imm: None,
                    to: out.to,
                },
            };
            unsignaled = (unsignaled + 1) % out.signaled;
            batch.push(SendWr {
                wr_id: channel as u64,
                op,
                signaled: unsignaled == 0,
                solicited: false,
                fence: false,
            });
        }
        // Noted only if the post succeeds.
        port.post_send(out.qp, &batch)?;
        out.unsignaled = unsignaled;
        Ok(())
    }
}

/// Appends the messages that were written since the last call.
fn look(span: &Span, seen: &mut [u64], words: usize, channel: usize, arrived: &mut Arrived) {
    for (slot, seen) in seen.iter_mut().enumerate() {
        let first = slot * words;
        // Acquire: the last word is written last, so that the others are there.
        let mark = span.load_acquire(first + words - 1);
        if mark == *seen {
            continue;
        }
        *seen = mark;
        arrived.push(channel as u64);
        arrived.extend((first..first + words - 1).map(|word| span.load(word)));
        arrived.push(mark);
    }
}

impl In {
    /// Posts the consumed RECVs again.
    fn repost<P: Port>(&mut self, port: &mut P) -> Result<(), PostError> {
        let Self::Recvs {
            qp,
            recvs,
            next,
            consumed,
            ..
        } = self
        else {
            return Ok(());
        };
        while *consumed > 0 {
            let batch = (*consumed).min(recvs.len() - *next);
            port.post_recv(*qp, &recvs[*next..][..batch])?;
            *next = (*next + batch) % recvs.len();
            *consumed -= batch;
        }
        Ok(())
    }
}
