//! Items that survive the server (`-e`): however it ends, they are restored, and nothing else is.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    net::TcpStream,
    os::unix::fs::FileExt,
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicU64, Ordering},
};

use crate::common::{self, Clock, Folder, Server, TIMEOUT};
use herdwick::{Client, Options};
use rustix::process::Signal;

const WORKERS: usize = 2;
const MEMORY_MB: &str = "64";
/// Number of keys that are written and overwritten.
const KEYS: u64 = 20_000;

fn file(folder: &Folder) -> PathBuf {
    folder.0.join("items")
}

fn server(folder: &Folder) -> Server {
    let file = file(folder);
    let file = file.to_str().unwrap();
    let flags = ["-m", MEMORY_MB, "-p", "0", "-e", file];
    Server::run(folder, WORKERS, &flags)
}

fn key(n: u64) -> String {
    format!("key-{n}")
}

/// Returns the value of one version of a key; it differs for every version and key.
fn value(n: u64, version: u64) -> Vec<u8> {
    let word = format!("{n}.{version}.");
    word.repeat(1 + (n % 5) as usize).into_bytes()
}

/// Returns the version of a value; panics if it is not a complete value of the key.
fn version(n: u64, found: &[u8]) -> u64 {
    let text = std::str::from_utf8(found).unwrap();
    let version = text.split('.').nth(1).unwrap().parse().unwrap();
    assert_eq!(found, value(n, version), "a value that was never written");
    version
}

/// Writes all keys, round after round, until the server is gone; returns the error. `done` counts
/// the acknowledged writes.
fn write(client: &mut Client, done: &AtomicU64) -> herdwick::Error {
    for n in 0.. {
        if let Err(error) = client.set(key(n % KEYS), &value(n % KEYS, 1 + n / KEYS)[..]) {
            return error;
        }
        done.fetch_add(1, Ordering::Relaxed);
    }
    unreachable!("servers do not live so long")
}

#[test]
fn items_survive_a_kill_under_load_and_deleted_items_stay_deleted() {
    let folder = Folder::new();
    let first = server(&folder);
    let mut client = first.client();
    for n in 0..1000 {
        client.set(format!("gone-{n}"), b"x").unwrap();
        client.delete(format!("gone-{n}")).unwrap();
    }
    let done = AtomicU64::new(0);
    std::thread::scope(|scope| {
        // Other writes to the disk may stall a worker.
        let patient = Options {
            deadline: TIMEOUT,
            ..Options::default()
        };
        let mut writer = Client::connect_with(&first.address, patient).unwrap();
        let done = &done;
        let writer = scope.spawn(move || write(&mut writer, done));
        let clock = Clock::start();
        // Until the middle of the second round: some keys are new, some are overwritten.
        while done.load(Ordering::Relaxed) < KEYS + KEYS / 4 {
            assert!(clock.now() < 6 * TIMEOUT);
            assert!(!writer.is_finished(), "{:?}", writer.join());
            std::thread::yield_now();
        }
        first.kill();
    });
    let done = done.into_inner();
    let second = server(&folder);
    let mut client = second.client();
    let mut lost = 0;
    for n in 0..KEYS {
        match client.get(key(n)).unwrap() {
            // The write that was in progress may or may not have taken effect.
            Some(found) => {
                let rounds = done / KEYS + u64::from(n < done % KEYS);
                let found = version(n, &found);
                let perhaps = u64::from(n == done % KEYS);
                assert!((rounds..=rounds + perhaps).contains(&found), "{n}: {found}");
            }
            None => lost += 1,
        }
    }
    assert!(lost * 1000 <= KEYS, "{lost} of {KEYS} keys are lost");
    for n in 0..1000 {
        assert_eq!(client.get(format!("gone-{n}")).unwrap(), None);
    }
    second.stop();
}

/// Starts a server and returns whether it runs, and its first line about the file; then ends it.
fn first_words(folder: &Folder) -> (bool, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_herdwick"))
        .args(["serve", "-p", "0", "-m", MEMORY_MB, "-t", "2"])
        .arg("--shm-dir")
        .arg(&folder.0)
        .arg("-e")
        .arg(file(folder))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut words = String::new();
    stderr.read_line(&mut words).unwrap();
    let runs = child.try_wait().unwrap().is_none() && !words.contains("in use");
    if runs {
        common::signal_to(&child, Signal::TERM);
    }
    let ended = child.wait().unwrap();
    assert_eq!(ended.success(), runs, "{words}");
    (runs, words)
}

#[test]
fn warm_restart_after_sigterm_keeps_all_items() {
    let folder = Folder::new();
    let first = server(&folder);
    let mut client = first.client();
    client.set("flushed", b"1").unwrap();
    client.flush_all().unwrap();
    client.set("stays", b"2").unwrap();
    client.set("deleted", b"3").unwrap();
    client.delete("deleted").unwrap();
    client.set("counted", b"7").unwrap();
    client.incr("counted", 5).unwrap();
    client.set("grown", b"ab").unwrap();
    client.append("grown", [b'c'; 300]).unwrap();
    let before = client.gets("stays").unwrap().unwrap().version;
    first.stop();
    let second = server(&folder);
    let mut client = second.client();
    let path = file(&folder).to_str().unwrap().to_owned();
    let settings = client.stats("settings").unwrap();
    assert!(
        settings.contains(&("memory_file".to_owned(), path)),
        "{settings:?}"
    );
    for gone in ["flushed", "deleted"] {
        assert_eq!(client.get(gone).unwrap(), None, "{gone}");
    }
    assert_eq!(client.get("counted").unwrap().as_deref(), Some(&b"12"[..]));
    assert_eq!(client.get("grown").unwrap().unwrap().len(), 302);
    assert_eq!(client.gets("stays").unwrap().unwrap().version, before);
    client.set("stays", b"3").unwrap();
    assert!(client.gets("stays").unwrap().unwrap().version > before);
    second.stop();
}

#[test]
fn failed_start_keeps_the_items_for_the_next() {
    let folder = Folder::new();
    let first = server(&folder);
    first.client().set("kept", b"1").unwrap();
    first.stop();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let port = taken.rsplit(':').next().unwrap();
    for wrong in [
        ["-p", port],
        ["--metrics", &taken],
        ["-Y", "/nowhere/users"],
        ["-P", "/nowhere/number"],
    ] {
        // With another -m the file would begin anew.
        let failed = Command::new(env!("CARGO_BIN_EXE_herdwick"))
            .args(["serve", "-u", "root", "-p", "0", "-m", "96", "-t", "2"])
            .args(["--shm", "off", "-e"])
            .arg(file(&folder))
            .args(wrong)
            .output()
            .unwrap();
        assert!(!failed.status.success(), "{wrong:?}");
    }
    let second = server(&folder);
    let kept = second.client().get("kept").unwrap();
    assert_eq!(kept.as_deref(), Some(&b"1"[..]));
    second.stop();
}

/// The limit of file sizes stops every allocation beyond it, as a full file system does.
#[test]
fn a_start_that_may_not_allocate_leaves_the_items_to_the_next() {
    let folder = Folder::new();
    let first = server(&folder);
    first.client().set("kept", b"1").unwrap();
    first.stop();
    // With another -m the file would begin anew, at a size that is beyond each limit.
    for mib in [1, 70] {
        let failed = Command::new("prlimit")
            .arg(format!("--fsize={}", mib << 20))
            .arg(env!("CARGO_BIN_EXE_herdwick"))
            .args(["serve", "-u", "root", "-p", "0", "-m", "96", "-t", "2"])
            .args(["--shm", "off", "-e"])
            .arg(file(&folder))
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&failed.stderr);
        assert!(failed.status.code().is_some(), "ended by a signal: {said}");
        assert!(said.contains("ulimit -f"), "{mib} MiB: {said}");
        // Where there was no file, there is none.
        let new = folder.0.join("new");
        let failed = Command::new("prlimit")
            .arg(format!("--fsize={}", mib << 20))
            .arg(env!("CARGO_BIN_EXE_herdwick"))
            .args(["serve", "-u", "root", "-p", "0", "-m", "96", "-t", "2"])
            .args(["--shm", "off", "-e"])
            .arg(&new)
            .output()
            .unwrap();
        assert!(!failed.status.success());
        assert!(!new.exists(), "{mib} MiB");
    }
    let second = server(&folder);
    let kept = second.client().get("kept").unwrap();
    assert_eq!(kept.as_deref(), Some(&b"1"[..]));
    second.stop();
}

#[test]
fn unusable_memory_file_is_reported_and_the_next_start_is_warm() {
    let folder = Folder::new();
    let says = |words: &str| {
        let (runs, said) = first_words(&folder);
        assert!(runs && said.contains(words), "{said}");
    };
    says("it is new");
    says("0 items recovered");
    File::options()
        .write(true)
        .open(file(&folder))
        .unwrap()
        .set_len(100_000)
        .unwrap();
    says("its header is damaged");
    says("0 items recovered");
    let version = |file: File| file.write_all_at(&[99], 8).unwrap();
    version(File::options().write(true).open(file(&folder)).unwrap());
    says("another version");
    fs::write(file(&folder), "a letter").unwrap();
    says("not this server's");
    assert_eq!(
        fs::read_to_string(folder.0.join("items.old")).unwrap(),
        "a letter"
    );
    says("0 items recovered");
    let user = server(&folder);
    let (runs, said) = first_words(&folder);
    assert!(!runs && said.contains("in use by another server"), "{said}");
    user.kill();
}

/// The server is killed while large values arrive: acknowledged values are there, complete; values
/// sent in part are not, and the values that they would have replaced still are. Nothing counts as
/// damaged.
#[test]
fn kill_during_uploads_keeps_stored_values() {
    const LEN: usize = 1_000_000;
    let large = |n: u64| vec![b'a' + n as u8; LEN];
    let set = |n: u64, byte: u64| {
        let mut set = format!("set large-{n} 0 0 {LEN}\r\n").into_bytes();
        set.extend(large(byte));
        set.extend(b"\r\n");
        set
    };
    let folder = Folder::new();
    let first = server(&folder);
    let mut streams = Vec::new();
    for n in 0..4 {
        let mut stream = TcpStream::connect(&first.address).unwrap();
        stream.write_all(&set(n, n)).unwrap();
        let mut line = String::new();
        BufReader::with_capacity(1, &stream)
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line, "STORED\r\n");
        stream.write_all(&set(n, 20)[..LEN / 2]).unwrap();
        streams.push(stream);
    }
    let mut client = first.client();
    // All uploads are known to be in progress.
    while first.stat(&mut client, "uploads") < 8 {}
    for n in 0..1000 {
        client.set(key(n), &value(n, 1)[..]).unwrap();
    }
    first.kill();
    let second = server(&folder);
    let mut client = second.client();
    for n in 0..4 {
        let found = client.get(format!("large-{n}")).unwrap();
        assert!(found.is_some_and(|found| found[..] == large(n)[..]), "{n}");
    }
    for n in 0..1000 {
        assert!(client.get(key(n)).unwrap().is_some(), "{n}");
    }
    assert_eq!(second.stat(&mut client, "curr_items"), 1004);
    second.stop();
}
