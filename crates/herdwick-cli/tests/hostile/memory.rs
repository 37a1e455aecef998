//! What a client may do with the files that it maps.

use std::os::fd::{AsFd, OwnedFd};

use herdwick_mem::{Access, Mapping, Span, Words};
use rustix::{
    fs::{FallocateFlags, SealFlags, fallocate, fcntl_add_seals, fstat, ftruncate},
    io::{Errno, pread, pwrite},
    net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg},
};

use crate::{
    Siege, WINDOW,
    common::{Chance, settle},
    meanwhile,
    raw::{Channel, DONE, REGION_WORDS, REGIONS, REGIONS_WORD, ROOMY, Raw, Shape, Step},
};

fn words(span: &Span) -> Vec<u64> {
    (0..span.count()).map(|word| span.load(word)).collect()
}

fn len(fd: &OwnedFd) -> u64 {
    fstat(fd).unwrap().st_size.cast_unsigned()
}

/// The files that the client may only read, and the errors of writing to them: `down` is not open
/// for writing, the board is sealed.
fn read_only(channel: &Channel) -> [(&OwnedFd, Errno); 2] {
    [
        (&channel.fds[1], Errno::BADF),
        (&channel.fds[2], Errno::PERM),
    ]
}

#[test]
fn r12_overwriting_all_writable_memory_affects_no_other_client() {
    let mut siege = Siege::new();
    let mut victim = Raw::take(&siege.server.address, WINDOW);
    let ask = victim.set(b"victim", b"v");
    assert_eq!(victim.call(&ask, b"victim").status(), DONE);
    let memory = |raw: &Raw| -> Vec<Vec<u64>> {
        let channels = raw.channels.iter();
        channels
            .flat_map(|channel| [words(&channel.up), words(&channel.down)])
            .collect()
    };
    let before = memory(&victim);
    // None of the files is the victim's, and shared files are not writable.
    let names = |raw: &Raw| -> Vec<(u64, u64)> {
        let files = raw.channels.iter().flat_map(|channel| &channel.fds[..2]);
        files
            .map(|fd| fstat(fd).unwrap())
            .map(|stat| (stat.st_dev, stat.st_ino))
            .collect()
    };
    assert!(
        names(&siege.raw)
            .iter()
            .all(|name| !names(&victim).contains(name))
    );
    let mut chance = Chance::new(12);
    for channel in &siege.raw.channels {
        for (fd, refused) in read_only(channel) {
            let len = len(fd) as usize;
            assert!(Mapping::shared(fd, len, Access::ReadWrite).is_err());
            assert_eq!(pwrite(fd, &[1], 0), Err(refused));
        }
        for word in 0..channel.up.count() {
            channel.up.store(word, chance.next());
        }
    }
    siege.survives();
    assert!(memory(&victim) == before, "a foreign word has changed");
    let ask = victim.get(b"victim");
    assert_eq!(victim.call(&ask, b"victim").value(), b"v");
    assert!(siege.stat("stale_epoch") > 0);
}

#[test]
fn r13_readable_memory_contains_no_values_of_others() {
    let mut siege = Siege::new();
    let secret = b"a secret of thirty-two bytes, yes";
    for n in 0..50 {
        let key = format!("secret:{n}");
        let value = [&secret[..], &vec![b'x'; n * 16]].concat();
        siege.steady.client.set(&key, &value).unwrap();
        assert_eq!(siege.get(key.as_bytes()), Some(value));
    }
    for channel in &siege.raw.channels {
        assert_eq!(channel.fds.len(), 5);
        for fd in &channel.fds[..3] {
            let mut bytes = vec![0; len(fd) as usize];
            assert_eq!(pread(fd, &mut bytes, 0), Ok(bytes.len()));
            let shown = bytes.windows(secret.len()).any(|found| found == secret);
            assert!(!shown, "a file contains the secret");
        }
        // Request memory grants WRITE, and nothing else.
        let entries = (0..REGIONS).map(|n| REGIONS_WORD + n * REGION_WORDS);
        let rights = entries
            .map(|word| channel.down.load(word))
            .filter(|word| *word != 0);
        let rights: Vec<u64> = rights.map(|word| word >> 32 & 0xff).collect();
        assert_eq!(rights, [2], "lines and overflow areas");
    }
    siege.survives();
}

/// Makes `raw` write `laps` windows of additions and never take their replies.
fn add_without_listening(siege: &mut Siege, raw: &mut Raw, laps: usize) {
    let ask = raw.add_one(b"key");
    for lap in 1..=laps {
        let channel = raw.channel_of(b"key");
        for _ in 0..WINDOW {
            channel.submit(&ask);
        }
        let number = (lap * WINDOW).to_string().into_bytes();
        siege.until("the additions", |siege| {
            siege.steady.check();
            siege.get(b"key") == Some(number.clone())
        });
    }
}

#[test]
fn r16_replies_without_a_ring_are_dropped() {
    let mut siege = Siege::new();
    let mut deaf = Raw::shaped(&siege.server.address, WINDOW, Shape(0, 0));
    add_without_listening(&mut siege, &mut deaf, 8);
    assert_eq!(
        siege.stat("drop_ring_full") + siege.stat("drop_no_peer"),
        8 * WINDOW as u64
    );
    siege.survives();
}

#[test]
fn r17_replies_that_are_never_polled_are_dropped() {
    let mut siege = Siege::new();
    for shape in [ROOMY, Shape(2, 2)] {
        let before = siege.stat("drop_ring_full");
        siege.steady.client.delete("key").unwrap();
        let mut deaf = Raw::shaped(&siege.server.address, WINDOW, shape);
        add_without_listening(&mut siege, &mut deaf, 16);
        let room = 1 << shape.0;
        assert_eq!(
            siege.stat("drop_ring_full"),
            before + 16 * WINDOW as u64 - room
        );
    }
    siege.survives();
}

#[test]
fn r18_corrupt_ring_counters_are_counted_and_reply_cells_are_read_only() {
    let mut siege = Siege::new();
    let mut liar = Raw::take(&siege.server.address, WINDOW);
    for channel in &liar.channels {
        let len = len(&channel.fds[1]) as usize;
        assert!(Mapping::shared(&channel.fds[1], len, Access::ReadWrite).is_err());
    }
    let memory: Vec<_> = liar
        .channels
        .iter()
        .map(|channel| (channel.up.clone(), channel.heads()))
        .collect();
    let mut chance = Chance::new(18);
    let scribble = || {
        for (up, heads) in &memory {
            up.store_release(heads[chance.below(2)], chance.next());
        }
    };
    meanwhile(scribble, || {
        add_without_listening(&mut siege, &mut liar, 40);
    });
    assert!(siege.stat("drop_ring_counter") > 0);
    siege.survives();
}

#[test]
fn r22_memory_files_resist_truncation_sealing_and_hole_punching() {
    const PUNCH: FallocateFlags = FallocateFlags::PUNCH_HOLE.union(FallocateFlags::KEEP_SIZE);
    let mut siege = Siege::new();
    for channel in &siege.raw.channels {
        for (n, fd) in channel.fds[..3].iter().enumerate() {
            // `down` is not even open for writing.
            let refused = if n == 1 { Errno::INVAL } else { Errno::PERM };
            for other in [0, len(fd) - 8, len(fd) + 4096] {
                assert_eq!(ftruncate(fd, other), Err(refused));
            }
            for seal in [SealFlags::WRITE, SealFlags::FUTURE_WRITE, SealFlags::GROW] {
                assert_eq!(fcntl_add_seals(fd, seal), Err(Errno::PERM));
            }
        }
        for (fd, refused) in read_only(channel) {
            assert_eq!(fallocate(fd, PUNCH, 0, len(fd)), Err(refused));
        }
    }
    // Punch holes into the client's own memory again and again while the worker polls it.
    let ask = siege.raw.set(b"key", b"v");
    for _ in 0..100 {
        let channel = siege.raw.channel_of(b"key");
        channel.submit(&ask);
        fallocate(&channel.fds[0], PUNCH, 0, len(&channel.fds[0])).unwrap();
        siege.steady.check();
    }
    siege.survives();
    descriptors_sent_are_not_kept(&mut siege);
}

/// Sends own files as descriptors where frames are expected.
fn descriptors_sent_are_not_kept(siege: &mut Siege) {
    // The pages of the punched file are allocated again as the worker writes to it.
    let baseline = siege.server.holdings();
    for _ in 0..20 {
        let step = Step::hello(&siege.server.address);
        let fds: Vec<_> = siege.raw.channels.iter().flat_map(Channel::files).collect();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(16))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&fds)));
        let frame = step.claim_frame(8);
        let parts = [std::io::IoSlice::new(&frame)];
        sendmsg(
            step.socket.as_fd(),
            &parts,
            &mut control,
            SendFlags::empty(),
        )
        .unwrap();
    }
    settle(&siege.server, &mut siege.steady.client, 2, baseline);
}
