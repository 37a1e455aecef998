//! What a client may do with leases: reuse old ones, take many, and claim as another user.

use std::{
    fs,
    io::{Read, Write},
    os::unix::{
        fs::{PermissionsExt, symlink},
        net::UnixStream,
        process::CommandExt,
    },
    process::{Command, Stdio},
};

use herdwick_herd::hello::{Accept, HEADER_BYTES, Header, Kind, WorkerAccept};

use crate::{
    Siege, WINDOW,
    common::{Folder, Server, kills, settle},
    meanwhile,
    raw::{ROOMY, Raw, Step},
};

#[test]
fn r20_lines_of_an_old_lease_are_refused() {
    let mut siege = Siege::new();
    let ask = siege.raw.add_one(b"key");
    let channel = siege.raw.channel_of(b"key");
    let old = channel.line(&ask, channel.next);
    assert_eq!(channel.call(&ask).number(), 1);
    let fresh = Raw::take(&siege.server.address, WINDOW);
    let ended = std::mem::replace(&mut siege.raw, fresh);
    let Raw {
        lease, channels, ..
    } = ended;
    drop(lease);
    siege.until("the lease ends", |siege| siege.stat("leases") == 2);
    let requests = siege.stat("requests");
    // The memory of the old lease is still mapped here, but no lease uses it any more.
    for channel in &channels {
        channel.write(0, &old);
    }
    assert_eq!(siege.stat("requests"), requests);
    // In the memory of the next lease, the old line belongs to another epoch.
    let stale = siege.stat("stale_epoch");
    siege.raw.channel_of(b"key").write(0, &old);
    siege.until_stat("stale_epoch", stale + 1);
    assert_eq!(siege.raw.channel_of(b"key").poll(), None);
    assert_eq!(siege.get(b"key").as_deref(), Some(&b"1"[..]));
    let ask = siege.raw.add_one(b"key");
    assert_eq!(siege.raw.call(&ask, b"key").number(), 2);
    siege.survives();
}

/// Makes a client disappear at stage `stage` of its way to a lease.
fn vanish(address: &str, stage: usize) {
    const SLOTS: usize = 16;
    if stage == 6 {
        let mut raw = Raw::take(address, SLOTS);
        let ask = raw.set(b"key", b"v");
        let channel = raw.channel_of(b"key");
        for _ in 0..SLOTS {
            channel.submit(&ask);
        }
        return;
    }
    let mut step = Step::hello(address);
    match stage {
        0 => drop(step.tcp),
        1 => step.say(&step.claim_frame(SLOTS)[..9]),
        2 => step.say(&step.claim_frame(SLOTS)),
        3 => drop(step.claim(SLOTS)),
        4 => {
            step.claim(SLOTS);
            let workers = Vec::new();
            step.say(&Accept { workers }.to_frame());
            assert_eq!(step.hear().0, Kind::Refusal);
        }
        _ => drop(Raw::take(address, SLOTS)),
    }
}

/// Growth that the honest client's writes to the store cause meanwhile. A few hundred bytes lost
/// with each lease would be more.
const GROWTH_KIB_MAX: u64 = 1024;

/// Ten times as many clients as the tests kill.
#[test]
fn r21_clients_that_connect_and_die_leave_nothing() {
    let mut siege = Siege::new();
    siege.survives();
    let baseline = siege.server.holdings();
    let connections = siege.stat("curr_connections");
    let clients = kills() * 10;
    let mut private = siege.server.private_kib();
    for n in 0..clients {
        if n == clients / 2 {
            // By now the tables have grown to the number of simultaneous clients.
            private = siege.server.private_kib();
        }
        vanish(&siege.server.address, n % 7);
        if n % 16 == 0 {
            siege.steady.check();
        }
    }
    settle(&siege.server, &mut siege.steady.client, 2, baseline);
    siege.until("they hang up", |siege| {
        siege.stat("curr_connections") == connections
    });
    assert!(siege.stat("leases_granted") as usize > clients / 7 * 2);
    assert!(siege.stat("lease_malformed") as usize >= clients / 7);
    assert_eq!(
        siege.stat("unix_descriptors_refused"),
        0,
        "no descriptor was sent"
    );
    let grown = siege.server.private_kib().saturating_sub(private);
    println!(
        "{clients} clients came and went; {baseline:?} before and after, and {grown} KiB more of \
         private memory than half way"
    );
    assert!(grown <= GROWTH_KIB_MAX, "{grown} KiB");
    siege.survives();
}

/// A socket that always has more to read keeps no other client from the lease manager.
#[test]
fn flood_of_heartbeats_does_not_prevent_leases() {
    let mut siege = Siege::new();
    let address = siege.server.address.clone();
    let mut flood = None;
    let pour = || {
        let socket = flood.get_or_insert_with(|| Raw::take(&address, 8).into_socket());
        if socket.write_all(&[0; 1 << 14]).is_err() {
            flood = None;
        }
    };
    let malformed = siege.stat("lease_malformed");
    meanwhile(pour, || {
        for _ in 0..50 {
            drop(Raw::take(&siege.server.address, 8));
            siege.steady.check();
        }
        siege.until_stat("lease_malformed", malformed + 10);
    });
    siege.survives();
}

/// Such replies would end with the other lease, and the server would post to an address that no
/// longer exists.
#[test]
fn endpoints_of_another_lease_are_refused() {
    let mut siege = Siege::new();
    let other = Raw::take(&siege.server.address, 8);
    let mut step = Step::hello(&siege.server.address);
    let mine = step.channels(8, ROOMY);
    let malformed = siege.stat("lease_malformed");
    let named = mine
        .iter()
        .zip(&other.channels)
        .map(|(mine, other)| WorkerAccept {
            replies: other.accept().replies,
            ..mine.accept()
        });
    let workers = named.collect();
    step.say(&Accept { workers }.to_frame());
    assert_eq!(step.hear().0, Kind::Refusal);
    siege.until_stat("lease_malformed", malformed + 1);
    drop(other);
    siege.survives();
}

/// Endless new connections may cost a client a second attempt, and no more.
#[test]
fn flood_of_connections_does_not_prevent_leases() {
    let mut siege = Siege::new();
    let address = siege.server.address.clone();
    let path = Step::hello(&address).path;
    let authenticate = || drop(UnixStream::connect(&path));
    meanwhile(authenticate, || {
        meanwhile(authenticate, || {
            for _ in 0..20 {
                siege.until("a lease", |_| is_granted(&address));
                siege.steady.check();
            }
        });
    });
    siege.survives();
}

/// Whether a claim is granted, and not cut off.
fn is_granted(address: &str) -> bool {
    let mut step = Step::hello(address);
    let frame = step.claim_frame(8);
    let mut head = [0; HEADER_BYTES];
    step.socket.write_all(&frame).is_ok()
        && step.socket.read_exact(&mut head).is_ok()
        && Header::parse(&head).is_ok_and(|header| header.kind == Kind::Grant)
}

#[test]
fn r23_another_user_cannot_open_the_lease_socket() {
    let mut siege = Siege::new();
    let socket = Step::hello(&siege.server.address).path;
    let directory = socket.parent().unwrap();
    let mode = fs::metadata(directory).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
    // The files have no names other than these.
    let proc = format!("/proc/{}", siege.server.pid());
    let shared = fs::read_dir("/dev/shm").into_iter().flatten().flatten();
    let named = |name: &str| name.contains("herdwick");
    assert!(
        !shared
            .into_iter()
            .any(|entry| named(&entry.file_name().to_string_lossy()))
    );
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can test as another user");
        return siege.survives();
    }
    for path in [
        directory.display().to_string(),
        socket.display().to_string(),
        format!("{proc}/fd"),
        format!("{proc}/map_files"),
    ] {
        let mut list = Command::new("ls");
        list.arg(&path).uid(65_534).gid(65_534);
        let status = list.stdout(Stdio::null()).stderr(Stdio::null()).status();
        assert!(!status.unwrap().success(), "{path}");
    }
    siege.survives();
}

#[test]
fn r23_existing_paths_are_not_used_for_the_lease_socket() {
    let folder = Folder::new();
    let elsewhere = Folder::new();
    let link = folder.0.join("herdwick-lease-0123456789abcdef");
    symlink(&elsewhere.0, &link).unwrap();
    let file = folder.0.join("herdwick-lease-1123456789abcdef");
    fs::write(&file, "mine").unwrap();
    let server = Server::start(&folder, 1);
    let path = Step::hello(&server.address).path;
    assert!(path.starts_with(&folder.0) && !path.starts_with(&link) && !path.starts_with(&file));
    assert!(server.session(8).broken().is_none());
    server.stop();
    assert!(link.exists() && fs::read_dir(&elsewhere.0).unwrap().next().is_none());
    assert_eq!(fs::read(&file).unwrap(), b"mine");
}
