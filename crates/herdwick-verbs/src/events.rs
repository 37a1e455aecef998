//! Asynchronous events of a device, and their effect on the state of a port.

use herdwick_fabric::QpState;

use crate::{
    faults::Fault,
    place::Place,
    port::{Health, VerbsPort},
    query,
    raw::Event,
};

/// Processes all queued events; returns whether there were any.
pub(crate) fn take(port: &mut VerbsPort) -> bool {
    let mut any = false;
    // Ends: the descriptor is non-blocking, and each turn takes one event.
    while let Some(event) = port.context.next_event() {
        any = true;
        apply(port, event);
    }
    any
}

#[cold]
fn apply(port: &mut VerbsPort, event: Event) {
    match event {
        Event::Cq(address) => {
            // By address, for comparison only: the queue may be gone.
            let found = port.cqs.iter().find(|(_, cq)| cq.raw.address() == address);
            if let Some(id) = found.map(|(id, _)| id) {
                fail_queue(port, id);
            }
        }
        Event::Qp(address) => {
            port.faults.count(Fault::Qp);
            let mut qps = port.qps.iter_mut();
            if let Some((_, qp)) = qps.find(|(_, qp)| qp.raw.address() == address) {
                qp.state = QpState::Error;
            }
        }
        Event::DeviceFatal => {
            port.faults.count(Fault::Device);
            port.health = Health::DeviceLost;
            port.qps
                .iter_mut()
                .for_each(|(_, qp)| qp.state = QpState::Error);
        }
        Event::PortDown(number) if number == port.place.port.number.into() => {
            port.faults.count(Fault::PortDown);
            // A worse state is kept: only a port that is merely down comes back.
            if port.health == Health::Well {
                port.health = Health::PortDown;
            }
        }
        // Changes made while the port was down are detected when it is up again.
        Event::PortUp(number) if number == port.place.port.number.into() => {
            if port.health == Health::PortDown {
                port.health = Health::Well;
                find_again(port);
            }
        }
        // While the port is down the question is put off until it is up.
        Event::Moved if port.health == Health::Well => find_again(port),
        Event::PortDown(_) | Event::PortUp(_) | Event::Moved | Event::Other => {}
    }
}

fn find_again(port: &mut VerbsPort) {
    if !is_still_there(port) {
        port.faults.count(Fault::Moved);
        port.health = Health::Moved;
    }
}

/// Returns whether peers still reach the port's queue pairs at their endpoints. If the device
/// cannot be queried, the port counts as moved: opening it again will show.
fn is_still_there(port: &VerbsPort) -> bool {
    let Ok(ports) = query::ports(&port.context) else {
        return false;
    };
    let own = ports
        .into_iter()
        .find(|own| own.number == port.place.port.number);
    own.is_some_and(|own| {
        let gid = own
            .gids
            .iter()
            .find(|gid| gid.index == port.place.gid.index);
        let now = gid.map(|gid| Place {
            gid: *gid,
            port: own.clone(),
            ..port.place.clone()
        });
        now.is_some_and(|now| now.is_still(&port.place))
    })
}

/// Fails all queue pairs of a completion queue: no completion can arrive, so no work must be
/// posted.
#[cold]
pub(crate) fn fail_queue(port: &mut VerbsPort, cq: u32) {
    let mut fresh = false;
    for (_, qp) in port.qps.iter_mut() {
        if (qp.send_cq.0 == cq || qp.recv_cq.0 == cq) && qp.state != QpState::Error {
            qp.state = QpState::Error;
            fresh = true;
        }
    }
    if fresh {
        port.faults.count(Fault::Cq);
        // A lost device is worse than a lost queue.
        if port.health != Health::DeviceLost {
            port.health = Health::QueueLost;
        }
    }
}
