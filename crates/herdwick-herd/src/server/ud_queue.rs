//! Requests that complete at the worker: datagrams, copied into their slots, and announced WRITEs.
//! Only completions with the client's own source count.

use arrayvec::ArrayVec;
use herdwick_fabric::{Completion, Opcode, Port, QpId, RecvWr, Status};
use herdwick_mem::WORD;

use super::{ServerSide, chunk::Attached, gather::Intake, job::BATCH};
use crate::{
    ServerCounters,
    wire::{
        CONTROL_WORD, Control, LINE_BYTES, LINE_WORDS, OVERFLOW_BYTES, REQUEST_BYTES_MAX, split_imm,
    },
};

impl ServerSide {
    /// Takes announced requests from the completion queue: copies each datagram into its slot, and
    /// checks the slots of datagrams and announced WRITEs. Leaves at least half of the batch to
    /// polled clients, if there are any.
    pub(super) fn take_announced<P: Port>(&mut self, port: &mut P) {
        let clients = &self.clients;
        let polled = clients.hot_len() + clients.cold_due() + clients.reported_len() > 0;
        let room = if polled { BATCH / 2 } else { BATCH };
        let found = port.poll(self.options.request_cq, &mut self.recv_memory[..room]);
        let mut empty = Empty::default();
        for done in &self.recv_memory[..found.min(room)] {
            // `OpenUdQueue::recv` and `WriteNotify::recv` put the client into the upper half, the
            // RECV into the lower.
            let index = (done.wr_id >> 32) as u32;
            let client = self.clients.client(index);
            // Any other completion here is the end of a connection.
            let Some((client, number)) = client.and_then(|client| client.recv_of(done)) else {
                continue;
            };
            if let Some(slot) = client.take_in(number, done, &mut self.counters) {
                let mut intake = Intake {
                    worker: self.worker,
                    workers: self.options.workers,
                    batch: &mut self.batch,
                    counters: &mut self.counters,
                    left: BATCH,
                };
                intake.check(client, index, slot);
            }
            // Posted again whatever came: otherwise junk would use up the client's RECVs.
            empty.add(port, client.recv(index, number), &mut self.counters);
        }
        empty.post(port, &mut self.counters);
    }
}

impl Attached {
    /// Returns the number of the RECV that `done` completes, if it is one of this client's.
    #[inline]
    fn recv_of(&mut self, done: &Completion) -> Option<(&mut Self, usize)> {
        let (qp, recvs) = match (&self.ud_queue, &self.chunk.notify) {
            (Some(open), _) => (open.ud_queue.qp, open.ud_queue.recvs),
            (None, Some(notify)) => (notify.qp, notify.recvs),
            (None, None) => return None,
        };
        let number = done.wr_id as u32 as usize;
        let ours = qp == done.qp && number < recvs;
        // Do not repost a flushed RECV: it would only be flushed again.
        (ours && done.status != Status::Flushed).then_some((self, number))
    }

    /// Returns the slot to check after `done`, if there is one.
    #[inline]
    fn take_in(
        &mut self,
        number: usize,
        done: &Completion,
        counters: &mut ServerCounters,
    ) -> Option<usize> {
        let Some(notify) = &self.chunk.notify else {
            return self.deliver(number, done, counters);
        };
        if done.status != Status::Success || done.opcode != Opcode::RecvWithImm {
            counters.malformed_datagrams += 1;
            return None;
        }
        counters.announcements += 1;
        let (_, sequence) = split_imm(done.imm?);
        // Where lines are polled, the announcement only wakes the worker.
        if !notify.always {
            return None;
        }
        // A retry's announcement may be taken when the next request in its slot is half visible. That
        // one is whole at its own announcement, not before.
        let slot = self.chunk.window.slot(sequence);
        if self.control(slot).stamp().sequence() != sequence {
            counters.out_of_window += 1;
            return None;
        }
        Some(slot)
    }

    /// RECV `number` of this client, whose index in the client table is `index`, and its queue pair.
    #[inline]
    fn recv(&self, index: u32, number: usize) -> Option<(QpId, RecvWr)> {
        match (&self.ud_queue, &self.chunk.notify) {
            (Some(open), _) => Some((open.ud_queue.qp, open.recv(number))),
            (None, Some(notify)) => Some((notify.qp, notify.recv(index, number))),
            (None, None) => None,
        }
    }

    /// Copies a datagram into its slot and returns the slot; `None` if the datagram is dropped.
    #[inline]
    fn deliver(
        &mut self,
        number: usize,
        done: &Completion,
        counters: &mut ServerCounters,
    ) -> Option<usize> {
        let open = self.ud_queue.as_ref()?;
        let len = done.byte_len as usize;
        let sound = done.status == Status::Success && done.inline.is_none();
        if !sound || !(LINE_BYTES..=REQUEST_BYTES_MAX).contains(&len) {
            counters.malformed_datagrams += 1;
            return None;
        }
        if done.source != Some(open.ud_queue.source) {
            counters.foreign_datagrams += 1;
            return None;
        }
        counters.datagrams += 1;
        // RECV buffers are the worker's own memory: what is checked here does not change.
        let (from, word) = (&open.memory, open.start(number) / WORD);
        let line = from.read_words::<LINE_WORDS>(word);
        let slot = self
            .chunk
            .window
            .slot(Control(line[CONTROL_WORD]).stamp().sequence());
        for n in 1..len.div_ceil(LINE_BYTES) {
            let body = from.read_words::<LINE_WORDS>(word + n * LINE_WORDS);
            let at = slot * OVERFLOW_BYTES / WORD + (n - 1) * LINE_WORDS;
            self.chunk.overflow.write_words(at, &body);
        }
        // After the body: the last word of the line makes it a request.
        self.chunk.lines.write_words(slot * LINE_WORDS, &line);
        Some(slot)
    }
}

/// RECVs to be posted again: those of one queue pair in one post.
#[derive(Default)]
struct Empty {
    qp: Option<QpId>,
    recvs: ArrayVec<RecvWr, BATCH>,
}

impl Empty {
    #[inline]
    fn add<P: Port>(
        &mut self,
        port: &mut P,
        recv: Option<(QpId, RecvWr)>,
        counters: &mut ServerCounters,
    ) {
        let Some((qp, recv)) = recv else {
            return;
        };
        if self.qp != Some(qp) {
            self.post(port, counters);
            self.qp = Some(qp);
        }
        self.recvs.push(recv);
    }

    fn post<P: Port>(&mut self, port: &mut P, counters: &mut ServerCounters) {
        if let Some(qp) = self.qp
            && port.post_recv(qp, &self.recvs).is_err()
        {
            counters.recvs_short += self.recvs.len() as u64;
        }
        self.recvs.clear();
    }
}
