//! The exported functions by which tests raise events.

use std::{ffi::c_int, thread};

use herdwick_verbs::sys;

use crate::world;

/// Raises an event of `kind` on the contexts that this thread opened. A queue pair event names the
/// queue pair made last, a completion queue event the queue at the highest address.
#[unsafe(no_mangle)]
pub extern "C" fn fake_event(kind: c_int) {
    let here = thread::current().id();
    world::lock().tell_all(|opener| opener == here, kind);
}

/// Raises an event of `kind` on the contexts that other threads opened.
#[unsafe(no_mangle)]
pub extern "C" fn fake_event_elsewhere(kind: c_int) {
    let here = thread::current().id();
    world::lock().tell_all(|opener| opener != here, kind);
}

/// Connects or disconnects the loopback's link, and raises the event on all contexts.
#[unsafe(no_mangle)]
pub extern "C" fn fake_link(plugged: c_int) {
    let mut world = world::lock();
    world.unplugged = plugged == 0;
    let kind = if world.unplugged {
        sys::IBV_EVENT_PORT_ERR
    } else {
        sys::IBV_EVENT_PORT_ACTIVE
    };
    world.tell_all(|_| true, kind);
}
