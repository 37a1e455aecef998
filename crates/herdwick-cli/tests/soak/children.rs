//! Clients in separate processes: killed, stopped for shorter and for longer than a lease lives,
//! and outlived by duplicates of their descriptors in another process, as after a `fork`.

use std::{
    fs::{self, File},
    io::{ErrorKind, Read, Write},
    os::{
        fd::OwnedFd,
        unix::{fs::MetadataExt, net::UnixStream},
    },
    panic::{set_hook, take_hook},
    path::{Path, PathBuf},
    process::Child,
    time::Duration,
};

use herdwick_herd::hello::LEASE_DEADLINE;
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open};

use crate::{
    common::{Clock, TIMEOUT, other_end, signal_to, start, until_dead},
    stage::{Stage, Visit, rest},
    transports::{Kind, Places},
    windows::{Full, burst, drain},
};

/// Duration of a process's stage: longer than any test.
const FOREVER: Duration = Duration::from_secs(1 << 30);
/// Byte that a process sends when it has found an error.
const WRONG: u8 = 2;
/// Longest time that a visit here may take beyond the end of the soak.
const STOPPED_MAX: Duration = Duration::from_secs(13);

/// The other process: keeps full windows until it is killed, or its standard input ends.
#[test]
#[ignore = "the other process of the tests here"]
fn client() {
    let Some(mut stream) = other_end() else {
        return;
    };
    let mut line = String::new();
    let mut byte = [0];
    while byte != *b"\n" {
        stream.read_exact(&mut byte).unwrap();
        line.push(byte[0].into());
    }
    let words: Vec<&str> = line.trim_end().split(' ').collect();
    let [seed, channel, number, name, kind, strict, address] = words[..] else {
        panic!("{line}")
    };
    let (kind, places) = (Kind::parse(kind), Places::at(address));
    say_failures(stream.try_clone().unwrap());
    let strict = strict == "true";
    let stage = Stage::new(places, vec![kind], seed.parse().unwrap(), FOREVER, strict);
    let [number, name] = [number, name].map(|word| word.parse().unwrap());
    let mut visit = Visit::new(&stage, channel.parse().unwrap(), number, name);
    let opened = Full::open(&mut visit, kind, true);
    stream.write_all(&[u8::from(opened.is_some())]).unwrap();
    if let Some(full) = opened {
        stream.set_nonblocking(true).unwrap();
        work(&mut visit, full, kind, &mut stream);
    }
}

/// Reports a failure to the other end at once, because it may kill this process at any moment.
fn say_failures(stream: UnixStream) {
    let print = take_hook();
    set_hook(Box::new(move |panic| {
        let _ = (&stream).write_all(&[WRONG]);
        print(panic);
    }));
}

/// Keeps full windows until the other end closes. A lease that ends meanwhile is that of a process
/// stopped for too long.
fn work(visit: &mut Visit<'_>, mut full: Full, kind: Kind, stream: &mut UnixStream) {
    let mut sessions = 0;
    loop {
        burst(visit, &mut full);
        match stream.read(&mut [0]) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
        if visit.percent(50) {
            full.fill(visit);
        }
        visit.rest(30);
        if full.has_ended() {
            drain(visit.stage, &mut full);
            sessions += 1;
            if !full.reopen(visit, kind, sessions) {
                return;
            }
        }
    }
    drain(visit.stage, &mut full);
}

/// The process of a visit, and a socket to it.
struct Process {
    child: Child,
    stream: UnixStream,
    kind: Kind,
}

impl Process {
    fn new(visit: &mut Visit<'_>, suits: impl Fn(Kind) -> bool) -> Self {
        let kind = visit.kind(suits);
        let (child, mut stream) = start("children::client");
        let stage = visit.stage;
        let (seed, strict, address) = (stage.seed, stage.strict, &stage.places.main);
        let (channel, number, name) = (visit.channel, visit.number, visit.name);
        visit.in_doubt = true;
        writeln!(
            stream,
            "{seed} {channel} {number} {name} {kind:?} {strict} {address}"
        )
        .unwrap();
        Self {
            child,
            stream,
            kind,
        }
    }

    /// Waits until it has tried to open its session. Returns whether it has one.
    fn is_open(&mut self) -> bool {
        let mut byte = [0];
        self.stream.read_exact(&mut byte).unwrap();
        byte == [1]
    }

    /// Kills the process, and checks that it has found no error until then.
    fn kill(mut self) {
        self.child.kill().unwrap();
        until_dead(&self.child);
        self.child.wait().unwrap();
        let mut said = Vec::new();
        // Everything it sent is here. There may be no end of file: another process may hold a
        // duplicate of its socket, or it has read nothing yet and so reset the connection.
        self.stream.set_nonblocking(true).unwrap();
        let _ = self.stream.read_to_end(&mut said);
        assert!(!said.contains(&WRONG), "a client found something wrong");
    }

    /// Lets the process end, and checks that it has found no error.
    fn end(mut self) {
        self.stream.shutdown(std::net::Shutdown::Both).unwrap();
        let clock = Clock::start();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            if clock.now() > 2 * TIMEOUT {
                self.child.kill().unwrap();
                panic!("a client does not end");
            }
            rest(Duration::from_millis(5));
        };
        assert!(status.success(), "a client found something wrong");
    }
}

/// A process that is killed with full windows, or during the lease handshake.
pub(crate) fn killed(visit: &mut Visit<'_>) {
    let mut process = Process::new(visit, Kind::is_session);
    let early = visit.percent(30);
    if early {
        visit.rest(40);
    } else if !process.is_open() {
        visit.stage.count("refused a lease", 1);
        process.end();
        return;
    } else {
        visit.rest(300);
    }
    let kind = process.kind;
    process.kill();
    visit.stage.count(&format!("killed over {kind:?}"), 1);
}

/// A process that is stopped from time to time.
pub(crate) fn stopped(visit: &mut Visit<'_>) {
    let long = visit.number.is_multiple_of(4) && visit.stage.left() > STOPPED_MAX;
    let mut process = Process::new(visit, Kind::is_session);
    if !process.is_open() {
        visit.stage.count("refused a lease", 1);
        return process.end();
    }
    let times = if long { 1 } else { visit.between(1, 4) };
    for _ in 0..times {
        visit.rest(100);
        signal_to(&process.child, Signal::STOP);
        let millis = match long {
            true => LEASE_DEADLINE.as_millis() as u64 + visit.between(500, 2000),
            false => visit.between(1, 2500),
        };
        visit.stage.rest(Duration::from_millis(millis));
        signal_to(&process.child, Signal::CONT);
        visit.rest(200);
    }
    let (kind, span) = (process.kind, if long { "long" } else { "briefly" });
    process.end();
    visit
        .stage
        .count(&format!("stopped {span} over {kind:?}"), 1);
}

/// A process that is killed while another one has its memory files and, in some cases, its sockets,
/// as after a `fork`: the server gives the memory of the files back all the same.
pub(crate) fn outlived(visit: &mut Visit<'_>) {
    let mut process = Process::new(visit, |kind| kind == Kind::Shm);
    if !process.is_open() {
        visit.stage.count("refused a lease", 1);
        return process.end();
    }
    // If its sockets live on, only the missing heartbeats show that it is dead.
    let sockets = visit.stage.left() > STOPPED_MAX && visit.percent(50);
    let held = memory_files(&process.child).zip(match sockets {
        true => duplicates(&process.child),
        false => Some(Vec::new()),
    });
    process.kill();
    let Some((mut files, _sockets)) = held else {
        visit.stage.count("not allowed to hold descriptors", 1);
        return;
    };
    let boards = &visit.stage.places.boards;
    files.retain(|(_, file)| !boards.contains(&file.metadata().unwrap().ino()));
    assert!(!files.is_empty(), "a lease of shared memory has files");
    let silent = if sockets {
        LEASE_DEADLINE
    } else {
        Duration::ZERO
    };
    let (clock, bound) = (Clock::start(), silent + TIMEOUT);
    let taken = |file: &File| file.metadata().unwrap().blocks();
    while files.iter().any(|(_, file)| taken(file) > 0) && visit.stage.fault().is_none() {
        let blocks = files.iter().map(|(name, file)| (name, taken(file)));
        assert!(
            clock.now() < bound,
            "the memory of an ended lease is not freed: {:?}",
            blocks.collect::<Vec<_>>()
        );
        rest(Duration::from_millis(20));
    }
    visit
        .stage
        .count(&format!("outlived by files, sockets: {sockets}"), 1);
}

/// Returns the memory files that a process has mapped. `None`: only root may open them.
fn memory_files(child: &Child) -> Option<Vec<(String, File)>> {
    let mut files = Vec::new();
    for (path, target) in links(child, "map_files")? {
        if target.contains("memfd:herdwick") {
            files.push((target, File::open(path).ok()?));
        }
    }
    Some(files)
}

/// Returns duplicates of a process's sockets. `None`: the kernel or a sandbox forbids it.
fn duplicates(child: &Child) -> Option<Vec<OwnedFd>> {
    let process = pidfd_open(Pid::from_child(child), PidfdFlags::empty()).ok()?;
    let mut sockets = Vec::new();
    for (path, target) in links(child, "fd")? {
        if target.starts_with("socket:") {
            let number = path.file_name()?.to_str()?.parse().ok()?;
            match pidfd_getfd(&process, number, PidfdGetfdFlags::empty()) {
                Ok(fd) => sockets.push(fd),
                Err(rustix::io::Errno::BADF) => {}
                Err(_) => return None,
            }
        }
    }
    Some(sockets)
}

/// Returns the targets of the links in a directory of a process in /proc. Some disappear meanwhile.
fn links(child: &Child, name: &str) -> Option<Vec<(PathBuf, String)>> {
    let folder = Path::new("/proc").join(child.id().to_string()).join(name);
    let paths = fs::read_dir(folder)
        .ok()?
        .filter_map(|entry| Some(entry.ok()?.path()));
    let target = |path: PathBuf| {
        let target = fs::read_link(&path).ok()?;
        Some((path, target.display().to_string()))
    };
    Some(paths.filter_map(target).collect())
}
