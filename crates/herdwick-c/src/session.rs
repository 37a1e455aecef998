//! Sessions, `herdwick_session`: many requests in flight to one server, driven by the caller's own loop.

use std::{
    collections::VecDeque,
    ffi::{CString, c_char, c_int, c_void},
    os::fd::{AsFd, AsRawFd},
    time::{Duration, Instant},
};

use herdwick::{Answer, Cause, Error, Key, Mode, Op, PollDescriptor, Put, Session};

use crate::{
    bytes::{CItem, bytes, new_put, new_ttl, put, some_text},
    handle::{Handle, create, on, take},
    options::{OptionsHandle, copy},
    status::{Failure, Status, c_text, report},
};

/// A session as C holds it.
pub(crate) type SessionHandle = Handle<Pipeline>;

/// A session, its descriptor, and the tags of the requests in flight.
pub(crate) struct Pipeline {
    session: Session,
    transport: CString,
    descriptor: PollDescriptor,
    origin: Instant,
    deadline: Duration,
    is_armed: bool,
    tags: Tags,
}

/// Tags of requests in flight by the numbers of their tickets.
#[derive(Default)]
struct Tags {
    /// The number of the first in the queue.
    first: u64,
    queue: VecDeque<Option<Tag>>,
}

/// The caller's pointer, which is never followed.
#[derive(Clone, Copy)]
struct Tag(*mut c_void);

// SAFETY: it is a number to this library.
unsafe impl Send for Tag {}

impl Tags {
    fn push(&mut self, number: u64, tag: Tag) {
        if self.queue.is_empty() {
            self.first = number;
        }
        self.queue.push_back(Some(tag));
    }

    fn take(&mut self, number: u64) -> Option<Tag> {
        // Tickets begin anywhere, and may wrap.
        let place = usize::try_from(number.wrapping_sub(self.first)).ok()?;
        let tag = self.queue.get_mut(place)?.take();
        while let Some(None) = self.queue.front() {
            self.queue.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        tag
    }
}

/// What a request does, `herdwick_operation`.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Read an item.
    Get = 0,
    /// Store a value.
    Set = 1,
    /// Store a value if there is no item.
    Add = 2,
    /// Store a value if there is an item.
    Replace = 3,
    /// Add bytes after the value.
    Append = 4,
    /// Add bytes before the value.
    Prepend = 5,
    /// Store a value if the item's version is `number`.
    Cas = 6,
    /// Remove an item.
    Delete = 7,
    /// Set the time to live.
    Touch = 8,
    /// Add `number`.
    Incr = 9,
    /// Subtract `number`.
    Decr = 10,
}

impl Operation {
    const ALL: [Self; 11] = [
        Self::Get,
        Self::Set,
        Self::Add,
        Self::Replace,
        Self::Append,
        Self::Prepend,
        Self::Cas,
        Self::Delete,
        Self::Touch,
        Self::Incr,
        Self::Decr,
    ];
}

/// A request, `herdwick_request`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CRequest {
    /// An [`Operation`]: a number, since C may write any.
    operation: i32,
    flags: u32,
    ttl: u32,
    key: *const c_void,
    key_length: usize,
    value: *const c_void,
    value_length: usize,
    number: u64,
    tag: *mut c_void,
}

/// An answer, `herdwick_answer`.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct CAnswer {
    tag: *mut c_void,
    status: Status,
    item: CItem,
    number: u64,
}

/// Gets an answer.
type OnAnswer = Option<unsafe extern "C" fn(context: *mut c_void, answer: *const CAnswer)>;

/// Connects to a server.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_session_open(
    address: *const c_char,
    options: *const OptionsHandle,
    session: *mut *mut SessionHandle,
) -> Status {
    let make = || {
        // SAFETY: the caller's promise.
        let (text, options) = unsafe { (some_text(address)?, copy(options)?) };
        let address = text.parse()?;
        let dialled = Session::dial(&address, &options.client);
        let unreachable = |reason| Error::Unreachable {
            address: address.to_string(),
            reason,
        };
        let dialled = dialled.map_err(unreachable)?;
        let descriptor = PollDescriptor::new();
        Ok(Pipeline {
            transport: c_text(dialled.transport()),
            session: dialled,
            descriptor: descriptor
                .map_err(|error| Failure::new(Status::System, error.to_string()))?,
            origin: clock(),
            deadline: options.client.deadline,
            is_armed: false,
            tags: Tags::default(),
        })
    };
    // SAFETY: the caller's promise.
    unsafe { create(session, make) }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the shell of C's callers has the clock"
)]
fn clock() -> Instant {
    Instant::now()
}

/// Closes a session; requests in flight get no answer.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_session_free(session: *mut SessionHandle) {
    // SAFETY: the caller's promise.
    unsafe { take(session) };
}

/// Accepts a request.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_submit(
    session: *mut SessionHandle,
    request: *const CRequest,
) -> Status {
    let call = |pipeline: &mut Pipeline| {
        // SAFETY: null, or a request, by the caller's promise.
        let request = unsafe { request.as_ref() };
        let request = request.ok_or_else(|| Failure::usage("a request is null"))?;
        // SAFETY: likewise.
        let (key, op) = unsafe { (bytes(request.key, request.key_length)?, op(request)?) };
        pipeline.submit(Key::new(key)?, &op, Tag(request.tag))
    };
    // SAFETY: the caller's promise.
    unsafe { on(session, call) }
}

/// Returns what a request does, and looks at nothing else of it.
///
/// # Safety
/// If the operation has a value, that is as [`bytes`] needs it.
unsafe fn op<'a>(request: &CRequest) -> Result<Op<'a>, Failure> {
    let mut all = Operation::ALL.into_iter();
    // C may store any number there. As a field of an enum's type it would be undefined behaviour.
    let asked = all.find(|operation| *operation as i32 == request.operation);
    let unknown = || Failure::usage(format!("{} is no operation", request.operation));
    // SAFETY: the caller's promise, for this is called for an operation that has a value.
    let value = || unsafe { bytes(request.value, request.value_length) };
    let put = || Ok::<_, Failure>(new_put(value()?, request.flags, request.ttl));
    Ok(match asked.ok_or_else(unknown)? {
        Operation::Get => Op::Get,
        Operation::Set => Op::Store(Mode::Set, put()?),
        Operation::Add => Op::Store(Mode::Add, put()?),
        Operation::Replace => Op::Store(Mode::Replace, put()?),
        Operation::Append => Op::Store(Mode::Append, Put::new(value()?)),
        Operation::Prepend => Op::Store(Mode::Prepend, Put::new(value()?)),
        Operation::Cas => Op::Cas(request.number, put()?),
        Operation::Delete => Op::Delete,
        Operation::Touch => Op::Touch(new_ttl(request.ttl)),
        Operation::Incr => Op::Incr(request.number),
        Operation::Decr => Op::Decr(request.number),
    })
}

/// Sends what was submitted.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_session_flush(session: *mut SessionHandle) -> Status {
    let call = |pipeline: &mut Pipeline| {
        let now = pipeline.now();
        pipeline.session.flush(now);
        Ok(Status::Ok)
    };
    // SAFETY: the caller's promise.
    unsafe { on(session, call) }
}

/// Passes the answers that have arrived to a callback.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_session_poll(
    session: *mut SessionHandle,
    on_answer: OnAnswer,
    context: *mut c_void,
    count: *mut usize,
) -> Status {
    let call = |pipeline: &mut Pipeline| {
        let on_answer = on_answer.ok_or_else(|| Failure::usage("there is no callback"))?;
        let mut answers = 0;
        pipeline.poll(&mut |answer| {
            answers += 1;
            // SAFETY: the caller's function; the answer lives until it returns.
            unsafe { on_answer(context, answer) };
        });
        // SAFETY: the caller's promise.
        unsafe { put(count, answers) };
        // Behind the answers: those that came before the end count.
        match pipeline.session.broken() {
            Some(cause) => Err(Error::Disconnected(cause).into()),
            None => Ok(Status::Ok),
        }
    };
    // SAFETY: the caller's promise.
    unsafe { on(session, call) }
}

/// Sleeps until there may be an answer.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_session_wait(session: *mut SessionHandle) -> Status {
    let call = |pipeline: &mut Pipeline| {
        // The descriptor was armed for another wait, maybe.
        pipeline.end_wait();
        let now = pipeline.now();
        pipeline.session.wait(now);
        Ok(Status::Ok)
    };
    // SAFETY: the caller's promise.
    unsafe { on(session, call) }
}

/// Returns a descriptor that becomes readable, once the session is armed.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_session_descriptor(session: *mut SessionHandle) -> c_int {
    let mut descriptor = -1;
    let call = |pipeline: &mut Pipeline| {
        descriptor = pipeline.descriptor.as_fd().as_raw_fd();
        Ok(Status::Ok)
    };
    // SAFETY: the caller's promise.
    unsafe { on(session, call) };
    descriptor
}

/// Arms the descriptor; returns the timeout for `poll(2)`.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_session_arm(session: *mut SessionHandle) -> c_int {
    // After a failure the loop must not sleep: its next poll reports what is wrong.
    let mut timeout = 0;
    let call = |pipeline: &mut Pipeline| {
        timeout = pipeline.arm();
        Ok(Status::Ok)
    };
    // SAFETY: the caller's promise.
    unsafe { on(session, call) };
    timeout
}

/// Names the transport.
///
/// # Safety
/// As the header declares.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn herdwick_session_transport(
    session: *mut SessionHandle,
) -> *const c_char {
    let mut name = c"".as_ptr();
    let call = |pipeline: &mut Pipeline| {
        name = pipeline.transport.as_ptr();
        Ok(Status::Ok)
    };
    // SAFETY: the caller's promise.
    unsafe { on(session, call) };
    name
}

impl Pipeline {
    fn now(&self) -> Duration {
        self.origin.elapsed()
    }

    fn submit(&mut self, key: Key<'_>, op: &Op<'_>, tag: Tag) -> Result<Status, Failure> {
        let now = self.now();
        match self.session.submit(now, key, op) {
            Some(ticket) => {
                self.tags.push(ticket.number(), tag);
                if self.is_armed {
                    // Arming has not seen this request: the caller's loop has to poll, and to arm again.
                    self.descriptor.wake();
                }
                Ok(Status::Ok)
            }
            None => match self.session.broken() {
                Some(cause) => Err(Error::Disconnected(cause).into()),
                None => Ok(Status::Full),
            },
        }
    }

    fn poll(&mut self, sink: &mut impl FnMut(&CAnswer)) {
        self.end_wait();
        let now = self.now();
        let (tags, deadline) = (&mut self.tags, self.deadline);
        self.session.poll(now, &mut |ticket, answer| {
            if let Some(Tag(tag)) = tags.take(ticket.number()) {
                sink(&c_answer(tag, answer, deadline));
            }
        });
    }

    fn arm(&mut self) -> c_int {
        self.end_wait();
        let now = self.now();
        self.is_armed = true;
        let longest = self.session.arm(now, &mut self.descriptor);
        // poll(2) takes a negative timeout for none.
        if longest == Duration::MAX {
            return -1;
        }
        // Rounded up: a timeout that ends too early is one wakeup too many.
        let milliseconds = longest.as_nanos().div_ceil(1_000_000);
        c_int::try_from(milliseconds).unwrap_or(c_int::MAX)
    }

    fn end_wait(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            self.session.end_wait(&mut self.descriptor);
        }
    }
}

fn c_answer(tag: *mut c_void, answer: Answer<'_>, deadline: Duration) -> CAnswer {
    let mut item = CItem::none(Status::NotFound);
    let (status, number) = match answer {
        Answer::Hit(hit) => {
            item = CItem::of(hit.value, hit.flags, hit.version);
            (Status::Ok, 0)
        }
        Answer::Miss => (Status::NotFound, 0),
        Answer::Done => (Status::Ok, 0),
        Answer::NotStored => (Status::NotStored, 0),
        Answer::Exists => (Status::Changed, 0),
        Answer::Number(number) => (Status::Ok, number),
        Answer::Refused(refusal) => (report(refusal.into()), 0),
        Answer::Lost(lost) => {
            let error = match (lost.perhaps_done, lost.cause) {
                (true, cause) => Error::UnknownOutcome(cause),
                (false, Cause::Timeout) => Error::Timeout(deadline),
                (false, cause) => Error::Disconnected(cause),
            };
            (report(error.into()), 0)
        }
        // Of a command that lists, which no request of C's is.
        Answer::Line { .. } => (report(Error::Disconnected(Cause::Unexpected).into()), 0),
    };
    if (status as i32) < 0 {
        // An item that was not read is not a miss.
        item = CItem::none(status);
    }
    CAnswer {
        tag,
        status,
        item,
        number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tags_are_found_in_any_order() {
        let mut tags = Tags::default();
        let tag = |number: u64| Tag(std::ptr::without_provenance_mut(number as usize));
        for number in 7..12 {
            tags.push(number, tag(number));
        }
        for number in [9, 7, 8] {
            assert_eq!(
                tags.take(number).map(|tag| tag.0.addr() as u64),
                Some(number)
            );
        }
        assert!(tags.take(8).is_none() && tags.take(12).is_none() && tags.take(6).is_none());
        tags.push(12, tag(12));
        for number in [12, 10, 11] {
            assert_eq!(
                tags.take(number).map(|tag| tag.0.addr() as u64),
                Some(number)
            );
        }
        assert!(tags.queue.is_empty());
        tags.push(40, tag(40));
        assert_eq!(tags.take(40).map(|tag| tag.0.addr()), Some(40));
    }
}
