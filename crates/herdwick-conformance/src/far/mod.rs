//! A party in another process: [`FarParty`] represents it here, [`serve`] executes its calls there,
//! and any byte stream connects them. Both ends belong to the same test, so they trust each other.
//!
//! A provider's fixture starts the other process, sends it what its own linking needs, and returns
//! a [`FarParty`] as one of the pair; every behaviour then runs across the two, unchanged.

mod batch;
mod owned;
mod wire;

use std::{
    io::{self, Read, Write},
    time::Duration,
};

use herdwick_fabric::{
    AddressHandle, Armed, Capabilities, Completion, ConnectError, ControlError, CqId, CqSpec,
    Endpoint, Local, PdId, PostError, QpId, QpSpec, QpState, RecvWr, RegionId, RegionSpec, Remote,
    SendWr, Source, WriteReport,
};

use crate::Party;
use batch::Batch;
use wire::{Get, Lend, Put, Reader};

/// Represents a party that [`serve`] runs at the other end of a stream. Dropping it drops that
/// party, and waits until it is gone.
pub struct FarParty<S: Read + Write> {
    stream: S,
    capabilities: Capabilities,
    pd: PdId,
}

impl<S: Read + Write> FarParty<S> {
    /// Connects with the other end, whose provider has `capabilities`.
    ///
    /// # Errors
    /// An error of the stream.
    pub fn new(mut stream: S, capabilities: Capabilities) -> io::Result<Self> {
        let answer = exchange(&mut stream, &[TAG_PD])?;
        Ok(Self {
            stream,
            capabilities,
            pd: Get::get(&mut Reader(&answer)),
        })
    }

    fn call<T: Get>(&mut self, tag: u8, arguments: impl FnOnce(&mut Vec<u8>)) -> T {
        let mut frame = vec![tag];
        arguments(&mut frame);
        let answer = exchange(&mut self.stream, &frame).expect("the other end answers");
        T::get(&mut Reader(&answer))
    }
}

impl<S: Read + Write> Drop for FarParty<S> {
    fn drop(&mut self) {
        // The other end closes the stream once its party is dropped, or has ended with its process.
        let _ = exchange(&mut self.stream, &[TAG_BYE]);
    }
}

/// Executes on `party` the calls of the [`FarParty`] at the other end of `stream`, until that is
/// dropped.
///
/// # Errors
/// An error of the stream, other than its end.
pub fn serve(mut party: Box<dyn Party>, mut stream: impl Read + Write) -> io::Result<()> {
    loop {
        let frame = match receive(&mut stream) {
            // The other process has ended without saying so, such as by a panic.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(()),
            frame => frame?,
        };
        if frame.first() == Some(&TAG_BYE) {
            // Before the stream is closed, which the other end waits for.
            drop(party);
            return Ok(());
        }
        let mut answer = Vec::new();
        perform(&mut *party, &frame, &mut answer);
        send(&mut stream, &answer)?;
    }
}

fn exchange(stream: &mut (impl Read + Write), frame: &[u8]) -> io::Result<Vec<u8>> {
    send(stream, frame)?;
    receive(stream)
}

fn send(stream: &mut impl Write, frame: &[u8]) -> io::Result<()> {
    let len = u32::try_from(frame.len()).map_err(io::Error::other)?;
    stream.write_all(&[&len.to_le_bytes(), frame].concat())?;
    stream.flush()
}

fn receive(stream: &mut impl Read) -> io::Result<Vec<u8>> {
    let mut len = [0; 4];
    stream.read_exact(&mut len)?;
    let len = usize::try_from(u32::from_le_bytes(len)).map_err(io::Error::other)?;
    // Without a limit: both ends belong to one test.
    let mut frame = vec![0; len];
    stream.read_exact(&mut frame)?;
    Ok(frame)
}

// The tags between are those of the calls.
const TAG_PD: u8 = 0;
const TAG_BYE: u8 = 255;

/// Generates both ends of every call from one list: `tag name(by value; by reference) -> answer`.
macro_rules! calls {
    ($($tag:literal $name:ident($($value:ident: $v:ty),*; $($reference:ident: $r:ty as $owned:ty),*) -> $answer:ty;)*) => {
        impl<S: Read + Write + Send> Party for FarParty<S> {
            fn capabilities(&self) -> &Capabilities {
                &self.capabilities
            }
            fn pd(&self) -> PdId {
                self.pd
            }
            $(fn $name(&mut self, $($value: $v,)* $($reference: &$r),*) -> $answer {
                self.call($tag, |out| {
                    $($value.put(out);)*
                    $($reference.put(out);)*
                    // Some calls have no arguments to put.
                    let _ = out;
                })
            })*
        }

        fn perform(party: &mut dyn Party, frame: &[u8], answer: &mut Vec<u8>) {
            let (tag, mut rest) = (frame[0], Reader(&frame[1..]));
            match tag {
                TAG_PD => party.pd().put(answer),
                $($tag => {
                    $(let $value = <$v>::get(&mut rest);)*
                    $(let $reference = <$owned>::get(&mut rest);)*
                    party.$name($($value,)* $(&$reference.lend()),*).put(answer);
                })*
                _ => panic!("no call has tag {tag}"),
            }
        }
    };
}

calls! {
    1 create_pd(;) -> Result<PdId, ControlError>;
    2 destroy_pd(pd: PdId;) -> Result<(), ControlError>;
    3 allocate_region(pd: PdId; spec: RegionSpec as RegionSpec) -> Result<RegionId, ControlError>;
    4 free_region(region: RegionId;) -> Result<(), ControlError>;
    5 remote(region: RegionId;) -> Result<Remote, ControlError>;
    6 create_cq(; spec: CqSpec as CqSpec) -> Result<CqId, ControlError>;
    7 destroy_cq(cq: CqId;) -> Result<(), ControlError>;
    8 create_qp(; spec: QpSpec as QpSpec) -> Result<QpId, ControlError>;
    9 destroy_qp(qp: QpId;) -> Result<(), ControlError>;
    10 endpoint(qp: QpId;) -> Result<Endpoint, ControlError>;
    11 connect(qp: QpId; peer: Endpoint as Endpoint) -> Result<(), ConnectError>;
    12 create_address(qp: QpId; peer: Endpoint as Endpoint) -> Result<AddressHandle, ConnectError>;
    13 destroy_address(address: AddressHandle;) -> Result<(), ControlError>;
    14 fail_qp(qp: QpId;) -> Result<(), ControlError>;
    15 qp_state(qp: QpId;) -> Result<QpState, ControlError>;
    16 post_send(qp: QpId; batch: [SendWr<'_>] as Batch) -> Result<(), PostError>;
    17 post_recv(qp: QpId; batch: [RecvWr] as Vec<RecvWr>) -> Result<(), PostError>;
    18 poll(cq: CqId;) -> Vec<Completion>;
    19 progress(now: Duration;) -> bool;
    20 arm(cq: CqId;) -> Armed;
    21 disarm(cq: CqId;) -> ();
    22 wait(limit: Duration;) -> Option<bool>;
    23 drops(;) -> u64;
    24 has_region(region: RegionId;) -> bool;
    25 read(region: RegionId, offset: usize, len: usize;) -> Vec<u8>;
    26 write(region: RegionId, offset: usize; bytes: [u8] as Vec<u8>) -> ();
    27 load(region: RegionId, index: usize;) -> u64;
    28 count_up(region: RegionId, index: usize, times: u64;) -> ();
    29 follow(region: RegionId, words: usize, rounds: u64, timeout: u64;) -> Option<u64>;
    30 source(; peer: Endpoint as Endpoint) -> Result<Source, ConnectError>;
    32 watch_writes(qp: QpId, range: Local, token: u64;) -> bool;
    33 written(;) -> Vec<WriteReport>;
    31 accept_from(qp: QpId; peer: Endpoint as Endpoint) -> Result<(), ConnectError>;
}
