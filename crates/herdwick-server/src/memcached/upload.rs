//! Uploads: large values are read from the socket directly to their place in the store, under the
//! lock of the partition. If that is another worker's and not free, this and what follows of the
//! value goes into forwarded batches to the owner. A connection that uploads executes no other
//! command, and is not read while there is no room for its value.

use std::{io::Read, time::Duration};

use herdwick_memcache::Refusal;
use herdwick_request::Staged;

use super::{
    buffer::INPUT_BYTES_MAX,
    connection::{Connection, Flow},
    gather::Gather,
    locked_partitions,
    run::Progress,
    service::{AbortedUpload, Service},
    upload_state::{Upload, UploadPlace},
};
use crate::runtime::reply_encoding::{BatchEncoder, Large};
use crate::runtime::{
    cross_core::{Exhausted, PIECE_BYTES_MIN},
    forward::ReplyTo,
    front::Pass,
    partition_lock::Guard,
    upload_steps::UploadStep,
};
use crate::telemetry::snapshot::WorkerCounters;

/// Maximum bytes read in one turn.
const READ_BYTES: usize = 64 << 10;
/// The result of a step of an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Went {
    /// The upload has ended; the next command may be decoded.
    Over,
    /// The upload waits for the peer, for a permit, or for the owner's reply.
    On,
    /// All forwarded batches to the owner are in use.
    NoBatch,
    /// Close the connection.
    Broken,
}

impl From<Exhausted> for Went {
    fn from(_: Exhausted) -> Self {
        Self::NoBatch
    }
}

/// Continues the connection's upload.
pub(super) fn go_on(
    service: &mut Service,
    connection: &mut Connection,
    ticket: ReplyTo,
    pass: &mut Pass<'_>,
) -> Went {
    let Some(mut upload) = connection.upload.take() else {
        return Went::Over;
    };
    let went = advance(service, connection, &mut upload, ticket, pass);
    if went == Went::NoBatch {
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
    ticket: ReplyTo,
    pass: &mut Pass<'_>,
) -> Went {
    if upload.queued {
        return Went::On;
    }
    let filled = begin(service, upload, ticket, pass)
        .and_then(|()| feed(service, connection, upload, ticket, pass));
    // The upload stays as it is, and the step is taken again in a later turn.
    if let Err(went) = filled {
        return went;
    }
    if upload.lacking > 0 {
        return Went::On;
    }
    // The line end behind the value is read into the input buffer, with what follows it.
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
    finish(service, connection, upload, ticket, pass).unwrap_or_else(Went::from)
}

/// Takes a permit and stages the value, here or at the owner.
fn begin(
    service: &mut Service,
    upload: &mut Upload,
    ticket: ReplyTo,
    pass: &mut Pass<'_>,
) -> Result<(), Went> {
    // Staged already, in an earlier turn.
    if upload.place != UploadPlace::Nowhere {
        return Ok(());
    }
    let owner = upload.owner;
    if upload.permit.is_none() {
        upload.permit = service.permits.ask(owner, ticket.connection);
        upload.queued = upload.permit.is_none();
        pass.counters.uploads_queued += u64::from(upload.queued);
    }
    if upload.queued {
        return Err(Went::On);
    }
    let (own, start) = (service.owners.own, pass.start);
    let partition = locked_partitions::lock(owner, own, &mut pass.own, pass.partitions, start);
    upload.place = if let Some(mut partition) = partition {
        let second = partition.clock().second;
        let staged = partition.store.stage(second, &upload.key, upload.value_len);
        UploadPlace::InPlace(staged)
    } else {
        let step = UploadStep::Begin(&upload.key, upload.value_len);
        // If no batch is free the permit is kept: the next turn takes it up here.
        pass.cross_core.upload(owner, ticket.uploader(own), step)?;
        UploadPlace::Forwarded
    };
    pass.counters.uploads += 1;
    Ok(())
}

/// The reservation of an upload, in the partition that it is in.
struct LockedReservation<'a> {
    staged: Staged,
    partition: Guard<'a>,
    counters: &'a mut WorkerCounters,
}

/// Returns the upload's reservation, with its partition locked; `None` if the value is forwarded,
/// from now on too: the owner of a partition that is not free is handed the reservation.
fn in_place<'a>(
    own: usize,
    upload: &mut Upload,
    ticket: ReplyTo,
    pass: &'a mut Pass<'_>,
) -> Result<Option<LockedReservation<'a>>, Exhausted> {
    let UploadPlace::InPlace(staged) = upload.place else {
        return Ok(None);
    };
    let start = pass.start;
    let partition =
        locked_partitions::lock(upload.owner, own, &mut pass.own, pass.partitions, start);
    if let Some(partition) = partition {
        return Ok(Some(LockedReservation {
            staged,
            partition,
            counters: pass.counters,
        }));
    }
    // The owner has to know the reservation before the first bytes: steps of a batch keep their
    // order.
    let (who, step) = (ticket.uploader(own), UploadStep::Adopt(staged));
    pass.cross_core.upload(upload.owner, who, step)?;
    upload.place = UploadPlace::Forwarded;
    Ok(None)
}

/// Stores or forwards the buffered input, then reads more from the socket.
fn feed(
    service: &mut Service,
    connection: &mut Connection,
    upload: &mut Upload,
    ticket: ReplyTo,
    pass: &mut Pass<'_>,
) -> Result<(), Went> {
    let own = service.owners.own;
    let buffered = connection.input.data().len().min(upload.lacking);
    if buffered > 0 {
        let bytes = &connection.input.data()[..buffered];
        let count = if let Some(mut locked) = in_place(own, upload, ticket, pass)? {
            locked.partition.store.append(locked.staged, bytes);
            buffered
        } else {
            let step = UploadStep::Bytes(bytes);
            pass.cross_core
                .upload(upload.owner, ticket.uploader(own), step)?
        };
        connection.input.consume(count);
        upload.lacking -= count;
        // The batch is full: the next turn goes on in the next one.
        if count < buffered {
            return Ok(());
        }
    }
    if upload.lacking == 0 || !connection.may_read() {
        return Ok(());
    }
    read(service, connection, upload, ticket, pass)
}

/// Reads a part of the value from the socket to its place.
fn read(
    service: &mut Service,
    connection: &mut Connection,
    upload: &mut Upload,
    ticket: ReplyTo,
    pass: &mut Pass<'_>,
) -> Result<(), Went> {
    let own = service.owners.own;
    // The partition is locked while the socket is read, so this bounds how long its owner waits.
    let most = upload.lacking.min(READ_BYTES);
    let stream = &mut connection.stream;
    let (taken, least) = if let Some(locked) = in_place(own, upload, ticket, pass)? {
        let (staged, mut partition) = (locked.staged, locked.partition);
        let room = partition.store.room(staged);
        if room.is_empty() {
            drop(partition);
            // The store has refused it: the bytes are read and dropped in the next turn.
            let flow = connection.read(&mut service.pool, INPUT_BYTES_MAX, locked.counters);
            return broken_or_on(flow);
        }
        let taken = stream.read(&mut room[..most]);
        // An error has moved no bytes. It is judged below, without the lock.
        let count = *taken.as_ref().unwrap_or(&0);
        partition.store.fill(staged, count);
        (taken, most)
    } else {
        let who = ticket.uploader(own);
        let read = |room: &mut [u8]| stream.read(room);
        let taken = pass.cross_core.receive(upload.owner, who, most, read)?;
        // A batch may have room for less than `most`, but at least for `PIECE_BYTES_MIN`: a
        // read of as much counts as filled, and the next turn tries again.
        (taken, most.min(PIECE_BYTES_MIN))
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
    ticket: ReplyTo,
    pass: &mut Pass<'_>,
) -> Went {
    pass.counters.refused_lines += 1;
    if !upload.answer.is_silent() {
        let out = connection.output.buffer(&mut service.pool);
        out.extend_from_slice(Refusal::DataChunk.line());
    }
    // As memcached: the bytes where the line end should be are dropped, and the connection goes on
    // behind them.
    connection.advance(Progress::past(upload.ending().len()));
    abort(service, upload, ticket, pass);
    Went::Over
}

/// Executes the command, here or at the owner.
fn finish(
    service: &mut Service,
    connection: &mut Connection,
    upload: &mut Upload,
    ticket: ReplyTo,
    pass: &mut Pass<'_>,
) -> Result<Went, Exhausted> {
    let after = Progress::past(upload.ending().len());
    connection.activity.used(upload.value_len);
    let now = pass.start.now;
    if let Some(locked) = in_place(service.owners.own, upload, ticket, pass)? {
        execute(service, connection, upload, locked, ticket);
        time(service, connection, upload, now);
        connection.advance(after);
        over(service, upload);
        Ok(Went::Over)
    } else {
        forward(service, connection, upload, ticket, pass)
    }
}

/// Executes the command in the owner's partition, and unlocks that.
fn execute(
    service: &mut Service,
    connection: &mut Connection,
    upload: &Upload,
    mut locked: LockedReservation<'_>,
    ticket: ReplyTo,
) {
    let (request, answer) = upload.request(locked.staged);
    let clock = locked.partition.clock();
    let mut batch_encoder = BatchEncoder {
        clock,
        requests: &[request],
        answers: &[answer],
        out: connection.output.buffer(&mut service.pool),
        marks: &mut service.marks,
        large: Large::All(true),
        refused_large: false,
        counters: locked.counters,
    };
    batch_encoder.marks.clear();
    batch_encoder.counters.tcp_batches += 1;
    if upload.owner != service.owners.own {
        batch_encoder.counters.executed_in_place += 1;
    }
    let caller = |_| ticket.caller;
    locked
        .partition
        .execute_for(clock, &[request], caller, &mut batch_encoder);
}

/// Measures the time of the command, if that is wanted, from when its value is complete: what the client took
/// to send it is not the server's.
fn time(service: &Service, connection: &mut Connection, upload: &Upload, now: Duration) {
    if let Some(times) = &service.times {
        let (request, _) = upload.request(Staged::unknown(upload.value_len));
        times.start(&mut connection.timer, &[request], now);
    }
}

/// Sends the command to the owner, which has its value.
fn forward(
    service: &mut Service,
    connection: &mut Connection,
    upload: &Upload,
    ticket: ReplyTo,
    pass: &mut Pass<'_>,
) -> Result<Went, Exhausted> {
    // The owner fills in the reservation that it keeps for this connection
    // (`ForwardBatch::execute`).
    let (request, answer) = upload.request(Staged::unknown(upload.value_len));
    pass.cross_core
        .send(upload.owner, &request, &answer, ticket, true)?;
    time(service, connection, upload, pass.start.now);
    let after = Progress::past(upload.ending().len());
    // Only now that the batch has taken the request: an upload that found none free tries all of it
    // again.
    let mut replies = service.spare.take();
    replies.expect(1);
    connection.advance(after);
    connection.gather = Some(Gather::of_replies(1, replies, true));
    Ok(Went::On)
}

/// Gives back the permit of an upload that has ended at its owner.
pub(super) fn over(service: &mut Service, upload: &mut Upload) {
    if let Some(permit) = upload.permit.take() {
        service.permits.give_back(upload.owner, permit);
    }
}

/// Aborts an upload that cannot be completed, or that belongs to a closed connection.
pub(super) fn abort(
    service: &mut Service,
    upload: &mut Upload,
    ticket: ReplyTo,
    pass: &mut Pass<'_>,
) {
    let (owner, own) = (upload.owner, service.owners.own);
    if upload.queued {
        service.permits.forget(owner, ticket.connection);
    }
    let staged = match upload.place {
        // Nothing is staged. A permit that it was granted goes back at once.
        UploadPlace::Nowhere => return over(service, upload),
        UploadPlace::Forwarded => None,
        UploadPlace::InPlace(staged) => {
            let start = pass.start;
            let partition =
                locked_partitions::lock(owner, own, &mut pass.own, pass.partitions, start);
            if let Some(mut partition) = partition {
                partition.store.abort(staged);
                drop(partition);
                return over(service, upload);
            }
            Some(staged)
        }
    };
    // The permit is given back when the forwarded batch returns: only then has the owner freed the
    // reservation.
    if let Some(permit) = upload.permit.take() {
        service.left.push(AbortedUpload {
            owner,
            who: ticket.uploader(own),
            permit,
            staged,
        });
        send_aborts(service, pass);
    }
}

/// Sends the aborts to the owners, as far as forwarded batches are free.
pub(super) fn send_aborts(service: &mut Service, pass: &mut Pass<'_>) {
    service.left.retain(|left| {
        let step = UploadStep::Abort(left.permit, left.staged);
        pass.cross_core.upload(left.owner, left.who, step).is_err()
    });
}
