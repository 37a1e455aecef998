//! Uploads: large values are read from the socket directly to their place in the log, or, if
//! another worker owns the key, into the forwarded batches to it. A connection that uploads
//! executes no other command, and is not read while there is no room for its value.

use std::io::Read;

use herdwick_memcache::Refusal;
use herdwick_request::{Request, Staged};

use super::{
    buffer::INPUT_BYTES_MAX,
    connection::{Connection, Flow},
    gather::Gather,
    run::{Cursor, Progress},
    state::{AbortedUpload, Service},
    upload_state::Upload,
};
use crate::memcached::protocol::{BatchEncoder, Large};
use crate::runtime::{
    cross_core::{Exhausted, PIECE_BYTES_MIN},
    forward::Ticket,
    front::Pass,
    upload_steps::UploadStep,
};

/// Maximum bytes read in one turn.
const READ_BYTES: usize = 64 << 10;
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
        let mut own = pass.own();
        let second = own.clock().second;
        upload.staged = Some(own.store.stage(second, &upload.key, upload.value_len));
    } else {
        let step = UploadStep::Begin(&upload.key, upload.value_len);
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
                pass.own().store.append(staged, bytes);
                here
            }
            None => pass
                .cross_core
                .upload(upload.owner, who, UploadStep::Bytes(bytes))?,
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
            let mut own = pass.own();
            let room = own.store.room(staged);
            if room.is_empty() {
                drop(own);
                // The store has refused it: the bytes are read and dropped in the next turn.
                let flow = connection.read(&mut service.pool, INPUT_BYTES_MAX, pass.counters);
                return broken_or_on(flow);
            }
            let taken = stream.read(&mut room[..most]);
            own.store.fill(staged, *taken.as_ref().unwrap_or(&0));
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
        let mut replies = service.spare.take();
        replies.expect(&[Cursor::FRONT], after);
        connection.gather = Some(Gather::of_replies(1, replies, true));
        return Went::On;
    }
    let mut own = pass.own.lock(pass.start());
    let clock = own.clock();
    let mut batch_encoder = BatchEncoder {
        clock,
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
    own.execute_for(clock, &[request], |_| ticket.caller, &mut batch_encoder);
    drop(own);
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
        pass.own().store.abort(staged);
    }
    match upload.lot {
        Some(lot) if upload.begun && upload.staged.is_none() => {
            // The lot is given back when the forwarded batch returns: only then has the owner
            // freed the reservation.
            let left = AbortedUpload {
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

/// Sends the aborts to the owners, as far as forwarded batches are free.
pub(super) fn send_aborts(service: &mut Service, pass: &mut Pass<'_>) {
    service.left.retain(|left| {
        let step = UploadStep::Abort(left.lot);
        pass.cross_core.upload(left.owner, left.who, step).is_err()
    });
}
