//! Encoding of values between the two ends of one test: in order, little-endian, unversioned.

use std::{io, time::Duration};

use herdwick_fabric::{
    Access, AddressHandle, Armed, Completion, ConnectError, ControlError, CqId, CqSpec, Endpoint,
    INLINE_RECEIVE, InlineData, Local, Opcode, PdId, PostError, QpId, QpSpec, QpState, Qpn, RecvWr,
    RegionId, RegionSpec, Remote, Rkey, Scope, Source, Status, Transport, WriteReport,
};

use super::owned::Owned;

/// The rest of a frame.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    fn array<const N: usize>(&mut self) -> [u8; N] {
        let (array, rest) = self.0.split_first_chunk().expect("a whole frame");
        self.0 = rest;
        *array
    }
}

pub(super) trait Put {
    fn put(&self, out: &mut Vec<u8>);
}

pub(super) trait Get: Sized {
    fn get(from: &mut Reader<'_>) -> Self;
}

/// Borrows an argument that arrived by value, for a call that takes it by reference.
pub(super) trait Lend {
    fn lend(&self) -> &Self {
        self
    }
}

impl<T> Lend for T {}

macro_rules! integers {
    ($($integer:ty)*) => {$(
        impl Put for $integer {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend(self.to_le_bytes());
            }
        }
        impl Get for $integer {
            fn get(from: &mut Reader<'_>) -> Self {
                Self::from_le_bytes(from.array())
            }
        }
    )*};
}

macro_rules! records {
    ($($record:ident { $($field:tt)* })*) => {$(
        impl Put for $record {
            fn put(&self, out: &mut Vec<u8>) {
                $(self.$field.put(out);)*
            }
        }
        impl Get for $record {
            fn get(from: &mut Reader<'_>) -> Self {
                Self { $($field: Get::get(from)),* }
            }
        }
    )*};
}

macro_rules! choices {
    ($($choice:ident { $($variant:ident)* })*) => {$(
        impl Put for $choice {
            fn put(&self, out: &mut Vec<u8>) {
                // A variant's place in the list is its code.
                let all = [$(Self::$variant),*];
                let index = all.iter().position(|known| known == self);
                index.expect("listed").put(out);
            }
        }
        impl Get for $choice {
            fn get(from: &mut Reader<'_>) -> Self {
                [$(Self::$variant),*][usize::get(from)]
            }
        }
    )*};
}

integers! { u8 u32 u64 }

choices! {
    Transport { Rc Uc Ud }
    QpState { Init ReadyToSend Error }
    Armed { Yes Pending Never }
    Opcode { Send Write Read FetchAdd CompareSwap Recv RecvWithImm }
    Status {
        Success LocalError LengthError RemoteAccess RemoteInvalid ReceiverNotReady RetryExceeded
        Flushed
    }
}

records! {
    PdId { 0 }
    CqId { 0 }
    QpId { 0 }
    RegionId { 0 }
    AddressHandle { 0 }
    Rkey { 0 }
    Qpn { 0 }
    Source { qpn }
    Remote { rkey addr }
    Local { region offset len }
    WriteReport { token writes }
    RecvWr { wr_id into }
    Access { remote_read remote_write remote_atomic }
    RegionSpec { len access scope }
    CqSpec { depth }
    Owned { wr_id signaled solicited fence verb imm to remote operands bytes words local }
    QpSpec { pd transport send_cq recv_cq send_depth recv_depth }
    Completion { wr_id status opcode qp byte_len imm source inline }
}

impl Put for usize {
    fn put(&self, out: &mut Vec<u8>) {
        (*self as u64).put(out);
    }
}

impl Get for usize {
    fn get(from: &mut Reader<'_>) -> Self {
        Self::try_from(u64::get(from)).expect("both ends have the same width")
    }
}

impl Put for bool {
    fn put(&self, out: &mut Vec<u8>) {
        u8::from(*self).put(out);
    }
}

impl Get for bool {
    fn get(from: &mut Reader<'_>) -> Self {
        u8::get(from) != 0
    }
}

impl Put for () {
    fn put(&self, _: &mut Vec<u8>) {}
}

impl Get for () {
    fn get(_: &mut Reader<'_>) -> Self {}
}

impl Put for Duration {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_secs().put(out);
        self.subsec_nanos().put(out);
    }
}

impl Get for Duration {
    fn get(from: &mut Reader<'_>) -> Self {
        Self::new(u64::get(from), u32::get(from))
    }
}

impl<T: Put> Put for [T] {
    fn put(&self, out: &mut Vec<u8>) {
        self.len().put(out);
        self.iter().for_each(|item| item.put(out));
    }
}

impl<T: Put> Put for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self[..].put(out);
    }
}

impl<T: Get> Get for Vec<T> {
    fn get(from: &mut Reader<'_>) -> Self {
        (0..usize::get(from)).map(|_| T::get(from)).collect()
    }
}

impl<T: Put> Put for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        if let Some(value) = self {
            value.put(out);
        }
    }
}

impl<T: Get> Get for Option<T> {
    fn get(from: &mut Reader<'_>) -> Self {
        bool::get(from).then(|| T::get(from))
    }
}

impl<T: Put, E: Put> Put for Result<T, E> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_ok().put(out);
        match self {
            Ok(value) => value.put(out),
            Err(error) => error.put(out),
        }
    }
}

impl<T: Get, E: Get> Get for Result<T, E> {
    fn get(from: &mut Reader<'_>) -> Self {
        if bool::get(from) {
            Ok(T::get(from))
        } else {
            Err(E::get(from))
        }
    }
}

impl Put for Endpoint {
    fn put(&self, out: &mut Vec<u8>) {
        self.as_bytes().put(out);
    }
}

impl Get for Endpoint {
    fn get(from: &mut Reader<'_>) -> Self {
        Self::new(&Vec::get(from)).expect("it was one")
    }
}

impl Put for Scope {
    fn put(&self, out: &mut Vec<u8>) {
        let qp = match self {
            Self::Pd => None,
            Self::Qp(qp) => Some(*qp),
        };
        qp.put(out);
    }
}

impl Get for Scope {
    fn get(from: &mut Reader<'_>) -> Self {
        Option::get(from).map_or(Self::Pd, Self::Qp)
    }
}

impl Put for InlineData {
    fn put(&self, out: &mut Vec<u8>) {
        self.words().put(out);
        self.len().put(out);
    }
}

impl Get for InlineData {
    fn get(from: &mut Reader<'_>) -> Self {
        let words = Vec::<u64>::get(from);
        let words: [u64; INLINE_RECEIVE / 8] = words.try_into().expect("all words");
        Self::new(words, usize::get(from))
    }
}

/// Replaces the text of an error, which is not transferred.
const THERE: &str = "thing at the other end";

impl Put for ControlError {
    fn put(&self, out: &mut Vec<u8>) {
        let kind: u8 = match self {
            Self::Unknown(_) => 0,
            Self::InUse(_) => 1,
            Self::Limit { .. } => 2,
            Self::Unsupported(_) => 3,
            Self::System { .. } => 4,
        };
        kind.put(out);
    }
}

impl Get for ControlError {
    fn get(from: &mut Reader<'_>) -> Self {
        match u8::get(from) {
            0 => Self::Unknown(THERE),
            1 => Self::InUse(THERE),
            2 => Self::Limit {
                what: THERE,
                limit: 0,
            },
            3 => Self::Unsupported(THERE),
            _ => Self::System {
                what: THERE,
                source: io::ErrorKind::Other.into(),
            },
        }
    }
}

impl Put for ConnectError {
    fn put(&self, out: &mut Vec<u8>) {
        let (kind, state, transport): (u8, _, _) = match self {
            Self::State(state) => (0, Some(*state), None),
            Self::Transport(transport) => (1, None, Some(*transport)),
            Self::Endpoint(_) => (2, None, None),
            Self::Control(_) => (3, None, None),
        };
        kind.put(out);
        state.put(out);
        transport.put(out);
        if let Self::Control(error) = self {
            error.put(out);
        }
    }
}

impl Get for ConnectError {
    fn get(from: &mut Reader<'_>) -> Self {
        // Evaluated from left to right, as they were put.
        match (u8::get(from), Option::get(from), Option::get(from)) {
            (0, Some(state), _) => Self::State(state),
            (1, _, Some(transport)) => Self::Transport(transport),
            (2, ..) => Self::Endpoint(THERE),
            _ => Self::Control(Get::get(from)),
        }
    }
}

impl Put for PostError {
    fn put(&self, out: &mut Vec<u8>) {
        let (kind, state, transport): (u8, _, _) = match self {
            Self::Full => (0, None, None),
            Self::UnknownQp => (1, None, None),
            Self::Bounds => (2, None, None),
            Self::State(state) => (3, Some(*state), None),
            Self::Transport(transport) => (4, None, Some(*transport)),
        };
        kind.put(out);
        state.put(out);
        transport.put(out);
    }
}

impl Get for PostError {
    fn get(from: &mut Reader<'_>) -> Self {
        // Evaluated from left to right, as they were put.
        match (u8::get(from), Option::get(from), Option::get(from)) {
            (0, ..) => Self::Full,
            (1, ..) => Self::UnknownQp,
            (3, Some(state), _) => Self::State(state),
            (4, _, Some(transport)) => Self::Transport(transport),
            _ => Self::Bounds,
        }
    }
}

impl Put for [u64; 2] {
    fn put(&self, out: &mut Vec<u8>) {
        self.iter().for_each(|word| word.put(out));
    }
}

impl Get for [u64; 2] {
    fn get(from: &mut Reader<'_>) -> Self {
        [u64::get(from), u64::get(from)]
    }
}
