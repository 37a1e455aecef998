//! Executes a message and posts its reply. A message is copied before it is checked, since its client can
//! change the buffer.

use arrayvec::ArrayVec;
use herdwick_fabric::{Local, Payload, Port, PostError, SendWr};
use herdwick_read::ClientId;

use super::peer::{Peer, SIGNALED_EVERY, ScratchBuffers, send};
use crate::{
    ServerCounters,
    message::{
        self, HEAD_BYTES, MESSAGE_BYTES_MAX, Op, PART_BYTES, PARTS_MAX, Reply, ReplyStatus, Request,
    },
    store::{PutError, Store},
};

/// What became of a message.
pub(super) enum MessageOutcome {
    Answered(Reply),
    /// More parts of the request follow, or its reply was posted.
    Silently,
    /// To be executed later.
    NotYet,
}

/// The machine while it serves one client.
pub(super) struct Line<'a> {
    pub(super) id: ClientId,
    pub(super) inline_max: usize,
    pub(super) generation: u32,
    pub(super) may_grow: bool,
    pub(super) put_waits: &'a mut bool,
    pub(super) store: &'a mut Store,
    pub(super) scratch: &'a mut ScratchBuffers,
    pub(super) counters: &'a mut ServerCounters,
}

impl Line<'_> {
    pub(super) fn execute<P: Port>(
        &mut self,
        port: &mut P,
        peer: &mut Peer,
        buffer: u32,
        len: usize,
    ) -> MessageOutcome {
        // A private copy: what is checked is what is executed.
        let message = &mut self.scratch.message[..len];
        peer.objects.requests.read(buffer, message);
        let head = message::head_of(&self.scratch.message[..len]);
        let request = match Request::parse(head, len) {
            Ok(request) => request,
            Err(bad) => {
                self.counters.count_bad(bad);
                // The request that was under way is lost with it.
                peer.upload = None;
                return self.reply(head[1], ReplyStatus::Malformed);
            }
        };
        if !in_order(peer.upload.as_ref(), &request) {
            self.counters.bad_part += 1;
            peer.upload = None;
            return self.reply(request.token, ReplyStatus::Malformed);
        }
        let at = request.part as usize * PART_BYTES;
        let part = &self.scratch.message[HEAD_BYTES..len];
        herdwick_mem::copy(&mut peer.body[at..at + part.len()], part);
        if at + part.len() < request.body_len() {
            peer.upload = Some(request);
            return MessageOutcome::Silently;
        }
        let executed = self.run(port, peer, &request);
        if !matches!(executed, MessageOutcome::NotYet) {
            peer.upload = None;
            self.counters.requests += 1;
        }
        executed
    }

    fn run<P: Port>(&mut self, port: &mut P, peer: &mut Peer, request: &Request) -> MessageOutcome {
        let body = &peer.body[..request.body_len()];
        let (key, value) = body.split_at(request.key_len);
        let status = match request.op {
            Op::Get => return self.get(port, peer, request),
            Op::Put => match self.store.put(key, value) {
                Ok(()) => {
                    self.counters.puts += 1;
                    ReplyStatus::Done
                }
                Err(PutError::Table) if self.may_grow => {
                    *self.put_waits = true;
                    return MessageOutcome::NotYet;
                }
                Err(PutError::Table | PutError::Extents) => {
                    self.counters.full += 1;
                    ReplyStatus::Full
                }
            },
            Op::Delete => {
                self.counters.deletes += 1;
                match self.store.delete(key) {
                    true => ReplyStatus::Done,
                    false => ReplyStatus::NotFound,
                }
            }
            Op::Adopted => ReplyStatus::Done,
        };
        self.reply(request.token, status)
    }

    fn reply(&self, token: u64, status: ReplyStatus) -> MessageOutcome {
        MessageOutcome::Answered(self.bare(token, status))
    }

    /// Returns the message that announces that the table has moved.
    pub(super) fn announcement(&self) -> Reply {
        self.bare(0, ReplyStatus::Moved)
    }

    fn bare(&self, token: u64, status: ReplyStatus) -> Reply {
        Reply {
            status,
            value_len: 0,
            token,
            generation: self.generation,
            part: 0,
        }
    }

    /// Sends a reply without a value; `false`: later.
    pub(super) fn answer<P: Port>(&mut self, port: &mut P, peer: &mut Peer, reply: Reply) -> bool {
        let number = peer.posted.wrapping_add(1);
        let payload = Payload::Words(&reply.words());
        let wr = send(
            self.id,
            number,
            payload,
            number.is_multiple_of(SIGNALED_EVERY),
        );
        let sent = self.post(port, peer, &[wr]);
        if !sent {
            peer.unsent = Some(reply);
        }
        sent
    }

    fn get<P: Port>(&mut self, port: &mut P, peer: &mut Peer, request: &Request) -> MessageOutcome {
        // The buffers of the last value are still being sent from.
        if peer.reply_until.is_some() {
            return MessageOutcome::NotYet;
        }
        let key = &peer.body[..request.key_len];
        let Some(value_len) = self.store.get(key, &mut self.scratch.value) else {
            return self.reply(request.token, ReplyStatus::NotFound);
        };
        self.counters.gets += 1;
        let reply = Reply {
            status: ReplyStatus::Done,
            value_len,
            token: request.token,
            generation: self.generation,
            part: 0,
        };
        let sent = if HEAD_BYTES + value_len <= self.inline_max {
            self.send_value(port, peer, reply)
        } else {
            self.send_parts(port, peer, reply)
        };
        if sent {
            MessageOutcome::Silently
        } else {
            MessageOutcome::NotYet
        }
    }

    /// Sends a value that fits an inline message; `false`: later.
    fn send_value<P: Port>(&mut self, port: &mut P, peer: &mut Peer, reply: Reply) -> bool {
        let len = HEAD_BYTES + reply.value_len;
        let mut whole = [0; MESSAGE_BYTES_MAX];
        message::store_head(reply.words(), &mut whole[..HEAD_BYTES]);
        let value = &self.scratch.value[..reply.value_len];
        herdwick_mem::copy(&mut whole[HEAD_BYTES..len], value);
        let number = peer.posted.wrapping_add(1);
        let payload = Payload::Inline(&whole[..len]);
        let wr = send(
            self.id,
            number,
            payload,
            number.is_multiple_of(SIGNALED_EVERY),
        );
        self.post(port, peer, &[wr])
    }

    /// Sends a value in parts from the client's reply buffers; `false`: later.
    fn send_parts<P: Port>(&mut self, port: &mut P, peer: &mut Peer, reply: Reply) -> bool {
        let (region, span) = &peer.objects.replies;
        let parts = message::parts(reply.value_len);
        let mut batch = ArrayVec::<SendWr<'static>, PARTS_MAX>::new();
        for part in 0..parts {
            let (start, offset) = (part * PART_BYTES, part * MESSAGE_BYTES_MAX);
            let end = reply.value_len.min(start + PART_BYTES);
            let head = Reply {
                part: part as u32,
                ..reply
            };
            span.write_words(offset / 8, &head.words());
            span.write_bytes(offset + HEAD_BYTES, &self.scratch.value[start..end]);
            let payload = Payload::Region(Local {
                region: *region,
                offset,
                len: HEAD_BYTES + end - start,
            });
            let number = peer.posted.wrapping_add(1 + part as u32);
            // The last one shows that the buffers are free again.
            batch.push(send(self.id, number, payload, part + 1 == parts));
        }
        let sent = self.post(port, peer, &batch);
        if sent {
            peer.reply_until = Some(peer.posted);
        }
        sent
    }

    /// Posts replies; `false`: there is no room for them now, or never again.
    fn post<P: Port>(&mut self, port: &mut P, peer: &mut Peer, batch: &[SendWr<'_>]) -> bool {
        match port.post_send(peer.objects.qp, batch) {
            Ok(()) => {
                peer.posted = peer.posted.wrapping_add(batch.len() as u32);
                return true;
            }
            Err(PostError::Full) => self.counters.replies_held += 1,
            Err(_) => peer.failed = true,
        }
        false
    }
}

/// Whether a message is the first of a request, or the next one of the request that is under way.
fn in_order(upload: Option<&Request>, request: &Request) -> bool {
    match upload {
        None => request.part == 0,
        Some(before) => {
            let part = before.part + 1;
            *request
                == Request {
                    part,
                    generation: request.generation,
                    ..*before
                }
        }
    }
}
