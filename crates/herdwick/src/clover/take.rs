//! A lease of a server whose engine is Clover: claiming it, joining its data node and its metadata server,
//! and a first exchange with them.

use std::{io::Write, time::Duration};

use herdwick_clover::{
    Answer, Client, ClientEnd, ClientOptions, Failure, Invitation, Secret, layout::VALUE_BYTES_MAX,
};
use herdwick_fabric::{Device, Port};
use herdwick_herd::{
    handshake::{ClientEvent, ClientHandshake},
    hello::{Claim, FrameError, Part, Parts, StoreId, Token},
};

use crate::{
    due::{Due, clock},
    herd::{Lease, LeaseError, LeaseSocket, TRIAL, TRIAL_MAX, TRIAL_START, receive},
};

/// Most sets and deletes in flight.
const PUTS_MAX: usize = 64;
/// How long a set waits for memory in a secondary store, of which this client is the only writer: what it waits
/// for delays leases of that store.
const SECONDARY_WAIT: Duration = Duration::from_millis(50);
/// The key that the first exchange reads, stored or not.
const TRIAL_KEY: &[u8] = b"herdwick";

/// A claimed lease, and everything that a client needs on it.
pub(crate) struct TakenClover<P> {
    pub(super) port: P,
    pub(super) client: Client,
    pub(super) lease: Lease,
    /// Most requests in flight.
    pub(super) capacity: u32,
    /// The time that the client's clock shows now.
    pub(super) elapsed: Duration,
    /// What names the store that this client has begun, if it is a secondary one and the client its writer.
    pub(super) began: Option<StoreId>,
}

impl<P> TakenClover<P> {
    /// Returns the same over a port of another type.
    pub(crate) fn map<Q>(self, port: impl FnOnce(P) -> Q) -> TakenClover<Q> {
        TakenClover {
            port: port(self.port),
            client: self.client,
            lease: self.lease,
            capacity: self.capacity,
            elapsed: self.elapsed,
            began: self.began,
        }
    }
}

/// The parameters of a claim.
pub(crate) struct AskedClover {
    pub(crate) token: Token,
    /// GETs in flight.
    pub(crate) window: usize,
    /// What is proved, if the client is to write a secondary store.
    pub(crate) secret: Option<Secret>,
    /// What is shown, if the client is to read one.
    pub(crate) store: Option<StoreId>,
}

impl AskedClover {
    /// Returns the two numbers of the claim, which mean something else to HERD.
    fn shown(&self) -> [u32; 2] {
        match (self.secret, self.store) {
            (Some(secret), _) => secret.proof(&self.token.0),
            (None, Some(store)) => store.numbers(),
            (None, None) => Default::default(),
        }
    }
}

/// Claims a lease on `socket` and joins its hosts.
pub(crate) fn take<D: Device>(
    device: D,
    mut socket: LeaseSocket,
    asked: &AskedClover,
) -> Result<TakenClover<D::Port>, LeaseError> {
    let [window, reply_bytes_max] = asked.shown();
    let (mut shake, claim) = ClientHandshake::new(&Claim {
        token: asked.token,
        window,
        reply_bytes_max,
        reads: false,
    });
    socket.write_all(&claim)?;
    let ClientEvent::Parts(parts) = receive(&socket, &mut shake)? else {
        return Err(FrameError::Body.into());
    };
    let invitation = Invitation::of_parts(parts)?;
    let mut options = ClientOptions {
        window: asked.window,
        puts: asked.window.min(PUTS_MAX),
        value_max: VALUE_BYTES_MAX,
        ..ClientOptions::default()
    };
    if asked.secret.is_some() {
        options.entry_wait = SECONDARY_WAIT;
    }
    let (end, accepts) = ClientEnd::join(device, invitation, &options)?;
    let parts = accepts.to_parts().into_iter();
    let parts = parts.map(|blob| Part { blob, fds: 0 });
    socket.write_all(&shake.accept_parts(&Parts(parts.collect())))?;
    let ClientEvent::Go = receive(&socket, &mut shake)? else {
        return Err(FrameError::Body.into());
    };
    let due = socket.due().unwrap_or_else(|| Due::after(TRIAL));
    socket.settle()?;
    // Kept from here on: the trial may take longer than the time between two heartbeats.
    let lease = Lease::keep(socket).map_err(LeaseError::Keeper)?;
    let ClientEnd {
        mut port,
        mut client,
        ..
    } = end;
    let elapsed = try_out(&mut port, &mut client, due.quarter(TRIAL, TRIAL_MAX))?;
    Ok(TakenClover {
        port,
        client,
        lease,
        capacity: (options.window + options.puts) as u32,
        elapsed,
        began: (asked.secret).map(|secret| StoreId(secret.store_id(&asked.token.0))),
    })
}

/// Reads a key: a lease granted on a socket may still carry nothing, because of a firewall or a forwarded
/// port in between. Returns the time of the client's clock after it.
fn try_out<P: Port>(port: &mut P, client: &mut Client, due: Due) -> Result<Duration, LeaseError> {
    let start = clock();
    let now = || TRIAL_START + start.elapsed();
    client.get(TRIAL_KEY, 0).map_err(|_| LeaseError::Silent)?;
    let mut failed = None;
    loop {
        client.post(port, now());
        port.flush(now());
        port.progress(now());
        let ended = client.poll(port, now(), &mut |_, answer| {
            if let Answer::Failed(failure) = answer {
                failed = Some(failure);
            }
        });
        match (ended, failed) {
            (_, Some(Failure::Protocol)) => return Err(FrameError::Body.into()),
            (_, Some(_)) => return Err(LeaseError::Silent),
            (1.., None) => return Ok(now()),
            (0, None) => {}
        }
        due.left().map_err(|_| LeaseError::Silent)?;
        // Other threads of this CPU run between two polls, the server perhaps among them.
        std::thread::yield_now();
    }
}
