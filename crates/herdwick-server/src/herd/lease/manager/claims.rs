//! Claims: decides whether a lease is granted, and its window and epoch.

use std::{fs, net::IpAddr, sync::atomic::Ordering, time::Duration};

use herdwick_herd::{
    RECV_BYTES_MIN,
    hello::{Claim, Refusal},
    wire::Window,
};
use rustix::process::{Uid, geteuid};

use super::{
    super::{LeaseCommand, LeaseId, LeaseKind, Terms, quota::Holder},
    LeaseManager,
    unread_grants::{UNREAD_HELD_MAX, is_unread},
};
use crate::{net::stream::Stream, settings::config::OneSidedReads, telemetry::leases::count};

/// The kernel's default for the user that unknown ones show as.
const OVERFLOW_UID: u32 = 65534;

impl LeaseManager {
    pub(super) fn handle_claim(&mut self, id: LeaseId, claim: Claim, now: Duration) {
        let Some(client) = self.clients.get(&id) else {
            return;
        };
        let Some(stream) = client.stream.as_ref() else {
            return;
        };
        let ((local, host), holder) = (whence(stream), client.holder);
        let kind = self.tokens.redeem(claim.token, now);
        // A token of a fabric that passes descriptors is good on the unix socket alone, and the
        // other way round.
        let kind = kind.filter(|kind| (self.config.is_local)(kind.fabric) == local);
        let Some(kind) = kind else {
            count(&self.counters.refused_token);
            return self.refuse(id, Refusal::Token);
        };
        let reads = !self.unread.is_full(holder) && self.leaves_unread(holder) < UNREAD_HELD_MAX;
        let room = reads.then(|| self.room(kind, holder, claim.window));
        let Some((window, bytes)) = room.flatten() else {
            count(&self.counters.refused_full);
            return self.refuse(id, Refusal::Full);
        };
        let Some(epoch) = self.draw_epoch() else {
            count(&self.counters.refused_full);
            return self.refuse(id, Refusal::Memory);
        };
        let most = self.config.reply_bytes_max.get(kind.fabric.rank());
        let terms = Terms {
            epoch,
            window: window.slots() as u16,
            // The grant names what the client gets: a request for more is no error.
            reply_bytes_max: claim
                .reply_bytes_max
                .max(RECV_BYTES_MIN as u32)
                .min(most.copied().unwrap_or(0)),
            path: kind.path,
            reads: claim.reads && may_read(self.config.readers, holder),
            host,
            claim,
        };
        let Some(client) = self.clients.get_mut(&id) else {
            return;
        };
        client.claim(kind, terms, bytes, self.workers);
        // Taken before the workers allocate, and given back when all have revoked.
        self.quotas.take(holder, bytes);
        self.show_bytes();
        self.command(kind.fabric, |_| LeaseCommand::Grant(id, terms));
    }

    /// Returns how many leases of `holder` have an unread grant. A grant once seen to be read is not
    /// checked again.
    fn leaves_unread(&mut self, holder: Holder) -> usize {
        let clients = self.clients.values_mut();
        let granted = clients.filter(|client| client.holder == holder && client.may_be_unread);
        let unread = granted.filter_map(|client| {
            client.may_be_unread = is_unread(client.stream.as_ref()?);
            client.may_be_unread.then_some(())
        });
        unread.count()
    }

    /// Draws an unpredictable epoch that differs from the previous one; `None`: the system has no
    /// random bytes.
    fn draw_epoch(&mut self) -> Option<u16> {
        let mut bytes = [0; 2];
        (self.random)(&mut bytes).ok()?;
        let drawn = u16::from_le_bytes(bytes);
        // 0 is not a valid epoch.
        let others = [drawn.max(1), drawn.checked_add(1).unwrap_or(1)];
        self.epoch = others.into_iter().find(|epoch| *epoch != self.epoch)?;
        Some(self.epoch)
    }

    /// Returns the window for a client of `holder` that requests `asked` slots, and its bytes;
    /// `None`: there is no room for any window.
    ///
    /// As memory gets scarce, windows shrink: each takes at most half of what is left, so that
    /// further clients find some too. Only the smallest window may take all of it.
    fn room(&self, kind: LeaseKind, holder: Holder, asked: u32) -> Option<(Window, usize)> {
        let left = self.quotas.left(holder)?;
        let asked = (asked as usize).clamp(1, Window::MAX).next_power_of_two();
        let halves = (0..=asked.ilog2()).map(|halved| asked >> halved);
        halves
            .filter_map(Window::new)
            .map(|window| {
                (
                    window,
                    (self.config.lease_bytes)(kind, window, self.workers),
                )
            })
            .find(|(window, bytes)| bytes * 2 <= left || (window.slots() == 1 && *bytes <= left))
    }

    pub(super) fn show_bytes(&self) {
        let bytes = self.quotas.bytes() as u64;
        self.counters.bytes.store(bytes, Ordering::Relaxed);
    }
}

/// Returns whether clients of `holder` may read the stores.
fn may_read(readers: OneSidedReads, holder: Holder) -> bool {
    let Holder::User(user) = holder else {
        return false;
    };
    match readers {
        OneSidedReads::Off => false,
        OneSidedReads::Owner => is_owner(user, geteuid().as_raw(), |path| {
            // What cannot be read is taken as in a namespace that knows few users.
            fs::read_to_string(path).unwrap_or_default()
        }),
        OneSidedReads::All => true,
    }
}

/// Returns whether `user` is root or the server's own user, and that one is known: `read` returns the text of a file.
fn is_owner(user: u32, own: u32, read: impl Fn(&str) -> String) -> bool {
    let is_unknown = || {
        let overflow = read("/proc/sys/kernel/overflowuid");
        stands_for_others(user, &overflow, &read("/proc/self/uid_map"))
    };
    user == Uid::ROOT.as_raw() || user == own && !is_unknown()
}

/// Returns whether all users that this user namespace does not know show as `user`.
fn stands_for_others(user: u32, overflow: &str, uid_map: &str) -> bool {
    let overflow = overflow.trim().parse().unwrap_or(OVERFLOW_UID);
    let knows_all = uid_map.split_whitespace().eq(["0", "0", "4294967295"]);
    user == overflow && !knows_all
}

/// Returns whether a client is connected by the unix socket; if not, the host it connected from.
fn whence(stream: &Stream) -> (bool, Option<IpAddr>) {
    let (_, from) = stream.origin();
    let local = matches!(stream, Stream::Unix(_));
    (local, from.map(|from| from.ip().to_canonical()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stores_are_read_by_whom_the_option_names() {
        let own = geteuid().as_raw();
        let users = [own, 0, own.wrapping_add(1).max(1)].map(Holder::User);
        let host = Holder::Host([127, 0, 0, 1].into());
        let may = |readers| users.map(|user| may_read(readers, user));
        assert_eq!(may(OneSidedReads::Off), [false; 3]);
        assert_eq!(may(OneSidedReads::Owner)[1..], [true, false]);
        let read = |path: &str| match path {
            "/proc/self/uid_map" => "0 1000 1\n".to_owned(),
            _ => "65534\n".to_owned(),
        };
        let owners =
            [0, 1000, 65534].map(|own| [0, 1000, 65534].map(|user| is_owner(user, own, read)));
        assert_eq!(
            owners,
            [
                [true, false, false],
                [true, true, false],
                [true, false, false]
            ]
        );
        assert_eq!(may(OneSidedReads::All), [true; 3]);
        assert!(!may_read(OneSidedReads::All, host));
    }

    #[test]
    fn user_that_unknown_ones_show_as_is_no_owner() {
        let (all, one) = ("         0          0 4294967295\n", "0 1000 1\n");
        assert!(!stands_for_others(65534, "65534\n", all));
        assert!(stands_for_others(65534, "65534\n", one));
        assert!(stands_for_others(65534, "", ""));
        assert!(!stands_for_others(1000, "65534\n", one));
        assert!(stands_for_others(1000, "1000\n", one));
    }
}
