//! The transport to the secondary store. A thread of its own dials it, so that no call waits for a store that
//! does not answer.
//!
//! Circular import with `hkvs` and `transports`: a session with a secondary store has a transport to each store.

use std::{
    sync::mpsc::{self, Receiver, TryRecvError},
    thread,
    time::Duration,
};

use crate::{Address, Options, due::clock, transports::OpenTransport};

/// Pause before another attempt to dial.
const PAUSE: Duration = Duration::from_secs(1);
/// How long an attempt may take, and a read.
pub(super) const DEADLINE: Duration = Duration::from_secs(1);
/// Reads in flight.
pub(super) const WINDOW: usize = 64;

/// The transport, or the attempt to get one.
#[derive(Debug)]
pub(super) enum Secondary {
    /// None; another attempt may begin at this time.
    Absent(std::time::Instant),
    Dialling(Receiver<Option<Box<OpenTransport>>>),
    Open(Box<OpenTransport>),
}

impl Secondary {
    pub(super) fn new() -> Self {
        Self::Absent(clock())
    }

    pub(super) fn open(&mut self) -> Option<&mut OpenTransport> {
        match self {
            Self::Open(open) => Some(open),
            Self::Absent(_) | Self::Dialling(_) => None,
        }
    }

    /// Returns the name of the transport.
    pub(super) fn name(&self) -> Option<&'static str> {
        match self {
            Self::Open(open) => Some(open.name()),
            Self::Absent(_) | Self::Dialling(_) => None,
        }
    }

    /// Begins to dial, or takes what was dialled. Returns whether a transport was lost, or is a new one.
    pub(super) fn tend(&mut self, address: &Address, options: &Options) -> bool {
        match self {
            Self::Absent(at) if clock() >= *at => self.dial(address.clone(), options.clone()),
            Self::Absent(_) => {}
            Self::Dialling(dialled) => match dialled.try_recv() {
                Ok(Some(open)) => {
                    *self = Self::Open(open);
                    return true;
                }
                Ok(None) | Err(TryRecvError::Disconnected) => self.pause(),
                Err(TryRecvError::Empty) => {}
            },
            Self::Open(open) => {
                if open.broken().is_some() {
                    self.pause();
                    return true;
                }
            }
        }
        false
    }

    fn pause(&mut self) {
        *self = Self::Absent(clock() + PAUSE);
    }

    fn dial(&mut self, address: Address, options: Options) {
        let options = Options {
            deadline: DEADLINE,
            window: WINDOW,
            secret: None,
            ..options
        };
        let (done, dialled) = mpsc::channel();
        let thread = thread::Builder::new().name("herdwick-secondary".into());
        let spawned = thread.spawn(move || {
            let dialled = OpenTransport::dial(&address, &options).ok();
            // Over TCP there is nothing to read there.
            let open = dialled
                .map(|(open, _)| open)
                .filter(OpenTransport::is_read_only);
            // It is not waited for any more if the client has ended.
            let _ = done.send(open.map(Box::new));
        });
        match spawned {
            Ok(_) => *self = Self::Dialling(dialled),
            Err(_) => self.pause(),
        }
    }
}
