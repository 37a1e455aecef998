//! Uploads: large values are read from the socket directly to their place in the log, or, if
//! another worker owns the key, into the forwarded batches to it. A connection that uploads
//! executes no other command, and is not read while there is no room for its value.

use std::io::Read;

use herdwick_memcache::Refusal;
use herdwick_mica::{Execute, KeyHash, Op, Put, Request, Staged};

use super::{
    INPUT_BYTES_MAX,
    connection::{Connection, Flow},
    gather::Gather,
    lots::Lot,
    protocol::{Answer, Asked, BatchEncoder, Large},
    run::{Point, Progress},
    service::Service,
};
use crate::{
    cross_core::{Exhausted, PIECE_BYTES_MIN},
    forward::Ticket,
    front::Pass,
    upload_steps::{Step, Uploader},
};

/// Values beyond this size in bytes are uploads: an input buffer does not hold them at once.
pub(super) const UPLOAD_BYTES_MIN: usize = 16 << 10;
/// Maximum bytes read in one turn.
const READ_BYTES: usize = 64 << 10;
/// The line end behind a value in text.
const LINE_END: &[u8] = b"\r\n";

/// An announced command, see [`Decoded::Announced`](herdwick_memcache::Decoded::Announced).
pub(super) struct Announced<'a> {
    pub(super) asked: Asked<'a>,
    /// Bytes of the command before the value.
    pub(super) used: usize,
    pub(super) value_len: usize,
    pub(super) has_line_end: bool,
}

/// One upload, from its command to its reply.
pub(crate) struct Upload {
    key: Box<[u8]>,
    hash: KeyHash,
    /// The worker that owns the key.
    owner: usize,
    put: Put<'static>,
    answer: Answer<'static>,
    opaque: Box<[u8]>,
    value_len: usize,
    /// Bytes of the value that have not been stored or forwarded yet.
    lacking: usize,
    has_line_end: bool,
    lot: Option<Lot>,
    /// It is queued for a lot.
    queued: bool,
    /// The owner has been sent its beginning, or has staged it.
    begun: bool,
    /// The reservation, if this worker owns the key.
    staged: Option<Staged>,
}

/// The result of a step of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Went {
    /// The upload has ended; the next command may be decoded.
    Over,
    /// The upload waits for the peer, for a lot, or for the owner's reply.
    On,
    /// All forwarded batches to the owner are in use.
    Starved,
    /// Close the connection.
    Broken,
}

impl From<Exhausted> for Went {
    fn from(_: Exhausted) -> Self {
        Self::Starved
    }
}

impl Upload {
    pub(super) fn new(announced: &Announced<'_>, service: &Service) -> Option<Box<Self>> {
        let Asked { key, op, answer } = &announced.asked;
        let Op::Put(put) = *op else {
            return None;
        };
        let hash = service.owners.hash_key.hash(key);
        Some(Box::new(Self {
            key: (*key).into(),
            hash,
            owner: hash.partition(service.owners.workers),
            put: Put { value: &[], ..put },
            answer: answer.with_opaque(&[]),
            opaque: answer.opaque().into(),
            value_len: announced.value_len,
            lacking: announced.value_len,
            has_line_end: announced.has_line_end,
            lot: None,
            queued: false,
            begun: false,
            staged: None,
        }))
    }

    /// Returns whether it can make progress with `here` bytes of input.
    pub(crate) fn has_work(&self, here: usize) -> bool {
        if self.queued {
            return false;
        }
        !self.begun || here > 0 && self.lacking > 0 || self.has_come(here)
    }

    /// Returns whether it is complete with `here` bytes of input.
    fn has_come(&self, here: usize) -> bool {
        self.lacking == 0 && here >= self.ending().len()
    }

    fn ending(&self) -> &'static [u8] {
        if self.has_line_end { LINE_END } else { &[] }
    }

    /// Returns whether it is queued for a lot.
    pub(crate) fn is_queued(&self) -> bool {
        self.queued
    }

    /// Returns the bytes that are missing, the line end included.
    pub(crate) fn remains(&self) -> usize {
        self.lacking + self.ending().len()
    }

    /// Returns whether the value is incomplete.
    pub(crate) fn lacks(&self) -> bool {
        self.lacking > 0
    }

    /// Returns its lot and the partition of that, if it has one.
    pub(crate) fn lot(&self) -> Option<(usize, Lot)> {
        Some((self.owner, self.lot?))
    }

    /// Grants it a lot, and ends its wait.
    pub(super) fn grant(&mut self, lot: Lot) {
        self.lot = Some(lot);
        self.queued = false;
    }

    fn put(&self, staged: Staged) -> Op<'static> {
        Op::Put(Put {
            staged: Some(staged),
            ..self.put
        })
    }
}

/// Continues the connection's upload.
pub(super) fn go_on(
    service: &mut Service,
    connection: &mut Connection,
    ticket: Ticket,
    pass: &mut Pass<'_>,
) -> Went {
    let Some(mut upload) = connection.upload.take() else {
        return Went::Over;
    };
    let went = advance(service, connection, &mut upload, ticket, pass);
    if went == Went::Starved {
        pass.counters.forward_batches_exhausted += 1;
    }
    if went != Went::Over {
        connection.upload = Some(upload);
    }
    went
}

fn advance(
    service: &mut Service,
    connection: &mut Connection,
    upload: &mut Upload,
    ticket: Ticket,
    pass: &mut Pass<'_>,
) -> Went {
    if upload.queued {
        return Went::On;
    }
    let filled = begin(service, upload, ticket, pass)
        .and_then(|()| feed(service, connection, upload, ticket, pass));
    if let Err(went) = filled {
        return went;
    }
    if upload.lacking > 0 {
        return Went::On;
    }
    if !upload.has_come(connection.input.data().len())
        && connection.may_read()
        && connection.read(&mut service.pool, INPUT_BYTES_MAX, pass.counters) == Flow::Broken
    {
        return Went::Broken;
    }
    if !upload.has_come(connection.input.data().len()) {
        return Went::On;
    }
    if !connection.input.data().starts_with(upload.ending()) {
        return refuse(service, connection, upload, ticket, pass);
    }
    finish(service, connection, upload, ticket, pass)
}

/// Takes a lot and stages the value, here or at the owner.
fn begin(
    service: &mut Service,
    upload: &mut Upload,
    ticket: Ticket,
    pass: &mut Pass<'_>,
) -> Result<(), Went> {
    if upload.begun {
        return Ok(());
    }
    let owner = upload.owner;
    if upload.lot.is_none() {
        upload.lot = service.lots.ask(owner, ticket.connection);
        upload.queued = upload.lot.is_none();
        pass.counters.uploads_queued += u64::from(upload.queued);
    }
    if upload.queued {
        return Err(Went::On);
    }
    if owner == service.owners.own {
        let store = &mut pass.store.store;
        upload.staged = Some(store.stage(pass.clock.second, &upload.key, upload.value_len));
    } else {
        let step = Step::Begin(&upload.key, upload.value_len);
        let who = ticket.uploader(service.owners.own);
        pass.cross_core.upload(owner, who, step)?;
    }
    upload.begun = true;
    pass.counters.uploads += 1;
    Ok(())
}

/// Stores or forwards the buffered input, then reads more from the socket.
fn feed(
    service: &mut Service,
    connection: &mut Connection,
    upload: &mut Upload,
    ticket: Ticket,
    pass: &mut Pass<'_>,
) -> Result<(), Went> {
    let who = ticket.uploader(service.owners.own);
    let here = connection.input.data().len().min(upload.lacking);
    if here > 0 {
        let bytes = &connection.input.data()[..here];
        let count = match upload.staged {
            Some(staged) => {
                pass.store.store.append(staged, bytes);
                here
            }
            None => pass
                .cross_core
                .upload(upload.owner, who, Step::Bytes(bytes))?,
        };
        connection.input.consume(count);
        upload.lacking -= count;
        if count < here {
            return Ok(());
        }
    }
    if upload.lacking == 0 || !connection.may_read() {
        return Ok(());
    }
    let most = upload.lacking.min(READ_BYTES);
    let stream = &mut connection.stream;
    let (taken, least) = match upload.staged {
        Some(staged) => {
            let room = pass.store.store.room(staged);
            if room.is_empty() {
                // The store has refused it: the bytes are read and dropped in the next turn.
                let flow = connection.read(&mut service.pool, INPUT_BYTES_MAX, pass.counters);
                return broken_or_on(flow);
            }
            let taken = stream.read(&mut room[..most]);
            pass.store.store.fill(staged, *taken.as_ref().unwrap_or(&0));
            (taken, most)
        }
        None => {
            let read = |room: &mut [u8]| stream.read(room);
            let taken = pass.cross_core.receive(upload.owner, who, most, read)?;
            // A batch may have room for less than `most`, but at least for `PIECE_BYTES_MIN`: a
            // read of as much counts as filled, and the next turn tries again.
            (taken, most.min(PIECE_BYTES_MIN))
        }
    };
    upload.lacking -= *taken.as_ref().unwrap_or(&0);
    let taken = taken.map(|count| (count, count >= least));
    broken_or_on(connection.took(taken, pass.counters))
}

fn broken_or_on(flow: Flow) -> Result<(), Went> {
    match flow {
        Flow::Broken => Err(Went::Broken),
        Flow::Moved | Flow::Blocked => Ok(()),
    }
}

/// Refuses a value without a line end at its length.
fn refuse(
    service: &mut Service,
    connection: &mut Connection,
    upload: &mut Upload,
    ticket: Ticket,
    pass: &mut Pass<'_>,
) -> Went {
    pass.counters.refused_lines += 1;
    if !upload.answer.is_silent() {
        let out = connection.output.buffer(&mut service.pool);
        out.extend_from_slice(Refusal::DataChunk.line());
    }
    connection.advance(Progress::past(upload.ending().len()));
    abort(service, upload, ticket, pass);
    Went::Over
}

/// Executes the command, here or at the owner.
fn finish(
    service: &mut Service,
    connection: &mut Connection,
    upload: &mut Upload,
    ticket: Ticket,
    pass: &mut Pass<'_>,
) -> Went {
    let staged = upload.staged;
    let request = Request {
        hash: upload.hash,
        key: &upload.key,
        op: upload.put(staged.unwrap_or_else(|| Staged::unknown(upload.value_len))),
    };
    let answer = upload.answer.with_opaque(&upload.opaque);
    let after = Progress::past(upload.ending().len());
    connection.activity.used(upload.value_len);
    if staged.is_none() {
        let sent = pass
            .cross_core
            .send(upload.owner, &request, &answer, ticket, true);
        if let Err(exhausted) = sent {
            return exhausted.into();
        }
        let mut replies = service.spare.pop().unwrap_or_default();
        replies.expect(&[Point::FRONT], after);
        connection.gather = Some(Gather::of_replies(1, replies, true));
        return Went::On;
    }
    let mut batch_encoder = BatchEncoder {
        clock: pass.clock,
        requests: &[request],
        answers: &[answer],
        out: connection.output.buffer(&mut service.pool),
        marks: &mut service.marks,
        large: Large::All(true),
        refused_large: false,
        counters: pass.counters,
    };
    batch_encoder.marks.clear();
    batch_encoder.counters.tcp_batches += 1;
    pass.store
        .execute(pass.clock, &[request], &mut batch_encoder);
    connection.advance(after);
    over(service, upload);
    Went::Over
}

/// Gives back the lot of an upload that has ended at its owner.
pub(super) fn over(service: &mut Service, upload: &mut Upload) {
    if let Some(lot) = upload.lot.take() {
        service.lots.give_back(upload.owner, lot);
    }
}

/// Aborts an upload that cannot be completed, or that belongs to a closed connection.
pub(super) fn abort(
    service: &mut Service,
    upload: &mut Upload,
    ticket: Ticket,
    pass: &mut Pass<'_>,
) {
    if upload.queued {
        service.lots.forget(upload.owner, ticket.connection);
    }
    if let Some(staged) = upload.staged {
        pass.store.store.abort(staged);
    }
    match upload.lot {
        Some(lot) if upload.begun && upload.staged.is_none() => {
            // The lot is given back when the forwarded batch returns: only then has the owner
            // freed the reservation.
            let left = Left {
                owner: upload.owner,
                who: ticket.uploader(service.owners.own),
                lot,
            };
            upload.lot = None;
            service.left.push(left);
            send_aborts(service, pass);
        }
        _ => over(service, upload),
    }
}

/// An upload that is to be aborted at its owner.
pub(super) struct Left {
    owner: usize,
    who: Uploader,
    lot: Lot,
}

/// Sends the aborts to the owners, as far as forwarded batches are free.
pub(super) fn send_aborts(service: &mut Service, pass: &mut Pass<'_>) {
    service.left.retain(|left| {
        let step = Step::Abort(left.lot);
        pass.cross_core.upload(left.owner, left.who, step).is_err()
    });
}
