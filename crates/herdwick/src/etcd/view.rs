//! Which servers a client uses, after what etcd has said: the rule by which an etcd that is wiped or slow
//! does not empty a ring that works. No clock and no socket.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{
    api::{Change, KeyValue, Range},
    place::{JOINS, LEAVES},
};
use crate::{Address, Node};

/// How long servers that are missing in doubt stay: time for each to register again.
pub(super) const GRACE: Duration = Duration::from_secs(10);
/// How long a server whose key is gone stays otherwise: leases that end together are reported one by one.
const GATHER: Duration = Duration::from_secs(1);
/// Most servers that are listed: etcd holds no more, or what it holds is none.
const SERVERS_MAX: usize = 4096;

/// The servers of a cluster: what etcd lists, and what is used.
#[derive(Debug, Default)]
pub(super) struct View {
    listed: BTreeMap<String, Node>,
    used: BTreeMap<String, Node>,
    revision: u64,
    /// When those that are missing leave, and whether that is in doubt.
    leaving: Option<(Duration, bool)>,
    /// How many have left lately, and until when they are counted.
    left: (usize, Duration),
}

impl View {
    /// Notes a list.
    pub(super) fn list(&mut self, range: &Range, now: Duration) {
        let nothing_before = self.listed.is_empty();
        let went_back = range.revision < self.revision;
        self.listed.clear();
        for entry in &range.entries {
            self.put(entry, now);
        }
        self.settle(range.revision, went_back || nothing_before, now);
    }

    /// Notes changes.
    pub(super) fn change(&mut self, revision: u64, changes: &[Change], now: Duration) {
        let nothing_before = self.listed.is_empty();
        for change in changes {
            match change {
                Change::Put(entry) => self.put(entry, now),
                Change::Delete(key) => {
                    self.listed.remove(key);
                }
            }
        }
        self.settle(revision, nothing_before, now);
    }

    /// Notes a key. What is no server is passed over.
    fn put(&mut self, entry: &KeyValue, now: Duration) {
        // The key may have got a value that is no server.
        self.listed.remove(&entry.key);
        if entry.value == LEAVES {
            // A cluster has a server: the last one stays.
            if self.used.len() > 1 {
                self.used.remove(&entry.key);
            }
        } else if entry.value == JOINS {
            self.stop(&entry.key, now);
        } else if let Ok(address @ Address::Tcp(_)) = entry.value.parse()
            && self.listed.len() < SERVERS_MAX
        {
            let member = u64::try_from(entry.lease).ok().filter(|lease| *lease > 0);
            let node = Node::new(address).with_member(member);
            self.listed.insert(entry.key.clone(), node);
        }
    }

    /// Stops using a server that was out, and invalidates its items now: what is stored there between that and a later
    /// end of its use would be stale when it is back. In doubt it stays, and what is stored there is there.
    fn stop(&mut self, key: &str, now: Duration) {
        self.forget_left(now);
        let is_in_doubt = self.leaving.is_some_and(|(_, in_doubt)| in_doubt);
        let is_used = self.used.contains_key(key);
        if is_used && !is_in_doubt && !self.are_many(1) {
            self.used.remove(key);
            self.left = (self.left.0 + 1, now + GRACE);
        }
    }

    fn forget_left(&mut self, now: Duration) {
        if self.left.1 <= now {
            self.left.0 = 0;
        }
    }

    /// Whether so many servers, and those that have left lately, are more than half.
    fn are_many(&self, missing: usize) -> bool {
        2 * (missing + self.left.0) > self.used.len() + self.left.0
    }

    /// When a list is due: what is still missing in it then leaves.
    pub(super) fn due(&self) -> Option<Duration> {
        let leaving = self.leaving.filter(|_| !self.listed.is_empty());
        leaving.map(|(at, _)| at)
    }

    /// The revision of the last list or change.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }

    /// The servers to use: one that has registered under several keys once.
    pub(super) fn nodes(&self) -> Vec<Node> {
        let mut names = BTreeSet::new();
        let nodes = self.used.values().filter(|node| names.insert(node.name()));
        nodes.cloned().collect()
    }

    /// Decides about the servers that are used and not listed. They leave after [`GATHER`], unless that makes more
    /// than half within [`GRACE`], or `is_odd`: the revision went back, or nothing was listed before. That is an etcd
    /// that was wiped, or could not renew leases. Then all that are missing stay for [`GRACE`], and for as long as
    /// nothing is listed.
    fn settle(&mut self, revision: u64, is_odd: bool, now: Duration) {
        self.revision = revision;
        self.forget_left(now);
        let missing = self.missing();
        self.leaving = match self.leaving {
            _ if missing == 0 => None,
            _ if is_odd || self.listed.is_empty() => Some((now + GRACE, true)),
            None | Some((_, false)) if self.are_many(missing) => Some((now + GRACE, true)),
            None => Some((now + GATHER, false)),
            leaving => leaving,
        };
        if self.leaving.is_some_and(|(at, _)| at <= now) {
            self.used.retain(|key, _| self.listed.contains_key(key));
            self.left = (self.left.0 + missing, now + GRACE);
            self.leaving = None;
        }
        let listed = self.listed.iter();
        self.used
            .extend(listed.map(|(key, node)| (key.clone(), node.clone())));
    }

    fn missing(&self) -> usize {
        let used = self.used.keys();
        used.filter(|key| !self.listed.contains_key(*key)).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::from_secs(100);

    fn range(revision: u64, names: &[&str]) -> Range {
        let entries = names.iter().map(|name| put(name)).collect();
        Range { revision, entries }
    }

    fn put(name: &str) -> KeyValue {
        KeyValue {
            key: format!("p/{name}"),
            value: format!("{name}:1"),
            created: 1,
            lease: 1,
        }
    }

    fn names(view: &View) -> String {
        let names = view.nodes().into_iter().map(|node| node.name());
        let names: Vec<_> = names.map(|name| name.replace(":1", "")).collect();
        names.join("")
    }

    fn view(names: &[&str]) -> View {
        let mut view = View::default();
        view.list(&range(50, names), NOW);
        view
    }

    /// Sets the key of a server to what is no address.
    fn set(view: &mut View, name: &str, value: &str) {
        let entry = KeyValue {
            value: value.into(),
            ..put(name)
        };
        view.change(view.revision() + 1, &[Change::Put(entry)], NOW);
    }

    fn delete(view: &mut View, name: &str, now: Duration) {
        let revision = view.revision() + 1;
        view.change(revision, &[Change::Delete(format!("p/{name}"))], now);
    }

    #[test]
    fn a_server_joins_and_leaves_at_once() {
        let mut view = view(&["a", "b", "c"]);
        view.change(51, &[Change::Put(put("d"))], NOW);
        assert_eq!(names(&view), "abcd");
        set(&mut view, "a", LEAVES);
        assert_eq!((names(&view), view.due()), ("bcd".into(), None));
        delete(&mut view, "a", NOW);
        assert_eq!((names(&view), view.due()), ("bcd".into(), None));
    }

    #[test]
    fn a_server_whose_lease_ends_leaves_when_no_others_have_followed() {
        let mut view = view(&["a", "b", "c", "d"]);
        delete(&mut view, "a", NOW);
        delete(&mut view, "b", NOW);
        let due = NOW + GATHER;
        assert_eq!((names(&view), view.due()), ("abcd".into(), Some(due)));
        view.list(&range(60, &["c", "d"]), due);
        assert_eq!(
            (names(&view), view.due()),
            ("cd".into(), None),
            "half of them"
        );
    }

    /// A client that has not yet given it up would store there what is stale later.
    #[test]
    fn a_server_that_is_about_to_join_again_is_not_used_at_once() {
        let mut view = view(&["a", "b", "c", "d", "e"]);
        delete(&mut view, "a", NOW);
        assert_eq!(names(&view), "abcde");
        set(&mut view, "a", JOINS);
        assert_eq!((names(&view), view.due()), ("bcde".into(), None));
        set(&mut view, "b", JOINS);
        assert_eq!(names(&view), "cde");
        set(&mut view, "c", JOINS);
        assert_eq!(names(&view), "cde", "three of five are in doubt");
        view.change(90, &[Change::Put(put("a"))], NOW);
        assert_eq!(names(&view), "acde");
    }

    #[test]
    fn the_last_server_stays_though_it_leaves() {
        let mut view = view(&["a", "b"]);
        set(&mut view, "a", LEAVES);
        set(&mut view, "b", LEAVES);
        assert_eq!(names(&view), "b");
        view.list(&range(60, &["c"]), NOW);
        assert_eq!(names(&view), "bc");
        view.list(&range(60, &["c"]), NOW + GRACE);
        assert_eq!(names(&view), "c");
    }

    #[test]
    fn an_empty_list_is_never_believed() {
        let mut view = view(&["a", "b"]);
        view.list(&range(51, &[]), NOW);
        assert_eq!((names(&view), view.due()), ("ab".into(), None));
        view.list(&range(51, &[]), NOW + 100 * GRACE);
        assert_eq!(names(&view), "ab");
        let back = NOW + 100 * GRACE;
        view.list(&range(52, &["a"]), back);
        assert_eq!(names(&view), "ab", "the other one has its time, too");
        view.change(53, &[Change::Put(put("b"))], back);
        assert_eq!((names(&view), view.due()), ("ab".into(), None));
    }

    #[test]
    fn servers_of_a_wiped_etcd_stay_until_they_had_time_to_register() {
        let mut view = view(&["a", "b", "c", "d"]);
        view.list(&range(3, &["a", "b", "c"]), NOW);
        assert_eq!(names(&view), "abcd", "the revision went back");
        view.list(&range(4, &["a", "b", "c", "d"]), NOW);
        assert_eq!((names(&view), view.due()), ("abcd".into(), None));
        view.list(&range(1, &["a", "b", "c"]), NOW);
        assert_eq!(view.due(), Some(NOW + GRACE));
        view.list(
            &range(1, &["a", "b", "c"]),
            NOW + GRACE - Duration::from_nanos(1),
        );
        assert_eq!(names(&view), "abcd");
        view.list(&range(1, &["a", "b", "c"]), NOW + GRACE);
        assert_eq!((names(&view), view.due()), ("abc".into(), None));
    }

    #[test]
    fn servers_whose_leases_end_together_stay_until_they_had_time_to_register() {
        let mut view = view(&["a", "b", "c"]);
        delete(&mut view, "a", NOW);
        delete(&mut view, "b", NOW);
        assert_eq!(view.due(), Some(NOW + GRACE), "two of three are in doubt");
        delete(&mut view, "c", NOW);
        assert_eq!(names(&view), "abc");
        let back = NOW + 5 * GRACE;
        view.change(72, &[Change::Put(put("a"))], back);
        assert_eq!(names(&view), "abc", "the others have their time");
        view.change(73, &[Change::Put(put("c"))], back);
        view.list(&range(74, &["a", "c"]), back + GRACE);
        assert_eq!(names(&view), "ac");
    }

    #[test]
    fn an_etcd_that_is_wiped_while_servers_are_in_doubt_gives_them_their_time_anew() {
        let mut view = view(&["a", "b", "c"]);
        delete(&mut view, "a", NOW);
        delete(&mut view, "b", NOW);
        let wiped = NOW + GRACE - GATHER;
        view.list(&range(1, &["c"]), wiped);
        view.list(&range(2, &["c"]), NOW + GRACE);
        assert_eq!(names(&view), "abc");
        assert_eq!(view.due(), Some(wiped + GRACE));
    }

    #[test]
    fn servers_that_leave_at_long_intervals_are_believed_each() {
        let mut view = view(&["a", "b", "c"]);
        for (name, at) in [("a", NOW), ("b", NOW + 2 * GRACE)] {
            delete(&mut view, name, at);
            view.change(view.revision(), &[], at + GATHER);
        }
        assert_eq!(names(&view), "c");
    }

    #[test]
    fn a_server_under_several_keys_is_used_once() {
        let mut view = view(&["a", "b"]);
        let again = KeyValue {
            key: "p/again".into(),
            ..put("a")
        };
        view.change(51, &[Change::Put(again)], NOW);
        assert_eq!(names(&view), "ab");
        delete(&mut view, "a", NOW);
        assert_eq!(names(&view), "ab", "the other key is there");
    }

    #[test]
    fn what_is_no_server_is_passed_over() {
        let mut view = view(&["a"]);
        for value in ["http://x y:z", "/run/b.sock", "b:1:2 name", JOINS] {
            set(&mut view, "b", value);
            assert_eq!(names(&view), "a");
        }
    }
}
