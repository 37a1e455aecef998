//! One run of those that the options of `herdwick sim` list, and the names of what it has.

use herdwick_sim::Profile;

use super::args::{SimArgs, SimSubject};

/// One combination of what the options list.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point<'a> {
    pub(super) what: &'a SimSubject,
    pub(super) profile: &'a Profile,
    /// As on the command line.
    pub(super) profile_name: &'a str,
    pub(super) workers: usize,
    pub(super) clients: usize,
    pub(super) window: usize,
    pub(super) value_size: usize,
    pub(super) put: u8,
    pub(super) postlist: usize,
}

/// Returns all combinations, those of the last option one after the other.
pub(super) fn points<'a>(args: &'a SimArgs, profiles: &'a [(&'a str, Profile)]) -> Vec<Point<'a>> {
    let Some((first_name, first)) = profiles.first() else {
        return Vec::new();
    };
    let mut points: Vec<_> = args
        .what
        .iter()
        .map(|what| Point {
            what,
            profile: first,
            profile_name: first_name,
            // Set below: each option has a default.
            workers: 0,
            clients: 0,
            window: 0,
            value_size: 0,
            put: 0,
            postlist: 0,
        })
        .collect();
    each(&mut points, profiles, |point, (name, profile)| {
        (point.profile_name, point.profile) = (name, profile);
    });
    each(&mut points, &args.put, |point, put| point.put = *put);
    each(&mut points, &args.value_size, |point, bytes| {
        point.value_size = *bytes;
    });
    each(&mut points, &args.workers, |point, n| point.workers = *n);
    each(&mut points, &args.postlist, |point, n| point.postlist = *n);
    each(&mut points, &args.window, |point, n| point.window = *n);
    each(&mut points, &args.clients, |point, n| point.clients = *n);
    points
}

/// Puts as many points as there are values in the place of each.
fn each<'a, T>(points: &mut Vec<Point<'a>>, values: &'a [T], set: impl Fn(&mut Point<'a>, &'a T)) {
    let with = |point: &Point<'a>, value| {
        let mut point = *point;
        set(&mut point, value);
        point
    };
    let all = points
        .iter()
        .flat_map(|point| values.iter().map(move |value| (point, value)));
    *points = all.map(|(point, value)| with(point, value)).collect();
}

/// What an option of points is called, and its value.
pub(super) type Column = (&'static str, fn(&Point<'_>) -> String);

/// The columns of tables.
pub(super) const COLUMNS: [Column; 8] = [
    ("system", |point| point.what.name()),
    ("profile", |point| point.profile.name.clone()),
    ("put %", |point| point.put.to_string()),
    ("value", |point| point.value_size.to_string()),
    ("cores", |point| point.workers.to_string()),
    ("postlist", |point| point.postlist.to_string()),
    ("window", |point| point.window.to_string()),
    ("clients", |point| point.clients.to_string()),
];
