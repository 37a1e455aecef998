//! What a benchmark of designs measures: lists of values for each parameter, and the points that they
//! make.

use std::str::FromStr;

use herdwick_fabric::Transport;
use herdwick_mem::WORD;

use crate::{
    messages::{Exchange, MESSAGE_WORDS_MAX, Way},
    names::{NameError, name_of, named},
    report::VerbPoint,
};

/// How requests and replies travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Design {
    /// SENDs both ways, on one connection.
    SendSend,
    /// SENDs both ways; datagrams where unreliable transports are used.
    SendSendUd,
    /// WRITEs both ways, on one connection.
    WriteWrite,
    /// WRITEs of requests, and replies as datagrams: HERD's.
    WriteSend,
}

/// Optimizations, each with those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Signaled verbs over RC, with payloads from registered memory.
    Basic,
    /// One verb of a window is signaled.
    Unsignaled,
    /// UC or UD in place of RC.
    Unreliable,
    /// Payloads are inlined.
    Inlined,
}

impl Level {
    /// All, in the order in which they are added.
    pub const ALL: [Self; 4] = [
        Self::Basic,
        Self::Unsignaled,
        Self::Unreliable,
        Self::Inlined,
    ];
}

const DESIGNS: [(&str, Design); 4] = [
    ("send-send", Design::SendSend),
    ("send-send-ud", Design::SendSendUd),
    ("write-write", Design::WriteWrite),
    ("write-send", Design::WriteSend),
];
const LEVELS: [(&str, Level); 4] = [
    ("basic", Level::Basic),
    ("unsignaled", Level::Unsignaled),
    ("unreliable", Level::Unreliable),
    ("inlined", Level::Inlined),
];

impl FromStr for Design {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        named("design", &DESIGNS, text)
    }
}

impl FromStr for Level {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        named("level", &LEVELS, text)
    }
}

/// Which designs to measure: every combination of the lists.
#[derive(Clone, Debug)]
pub struct DesignPlan {
    /// The designs.
    pub designs: Vec<Design>,
    /// The optimizations.
    pub levels: Vec<Level>,
    /// Bytes of a message: whole words.
    pub payloads: Vec<usize>,
    /// Messages of a client in flight.
    pub windows: Vec<usize>,
    /// Client threads.
    pub clients: Vec<usize>,
    /// Random memory accesses of the server for a request.
    pub accesses: Vec<usize>,
    /// Whether they are prefetched, by a pipeline of requests.
    pub prefetch: Vec<bool>,
}

impl Default for DesignPlan {
    /// Returns WRITE/SEND with all optimizations and 32 bytes.
    fn default() -> Self {
        Self {
            designs: vec![Design::WriteSend],
            levels: vec![Level::Inlined],
            payloads: vec![32],
            windows: vec![32],
            clients: vec![1],
            accesses: vec![0],
            prefetch: vec![true],
        }
    }
}

/// One combination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DesignPoint {
    pub(super) design: Design,
    pub(super) level: Level,
    pub(super) payload: usize,
    pub(super) window: usize,
    pub(super) clients: usize,
    pub(super) accesses: usize,
    pub(super) prefetch: bool,
}

/// Bytes of the longest message.
const PAYLOAD_MAX: usize = MESSAGE_WORDS_MAX * WORD;
/// Most messages of a client in flight.
const WINDOW_MAX: usize = 256;
/// Most memory accesses for a request.
const ACCESSES_MAX: usize = 64;

impl DesignPoint {
    /// A point of which a plan sets every part.
    const FIRST: Self = Self {
        design: Design::WriteSend,
        level: Level::Inlined,
        payload: 0,
        window: 0,
        clients: 0,
        accesses: 0,
        prefetch: false,
    };

    /// Returns how requests and replies travel.
    pub(super) fn exchange(&self) -> Exchange {
        let connected = match self.level {
            Level::Basic | Level::Unsignaled => Transport::Rc,
            Level::Unreliable | Level::Inlined => Transport::Uc,
        };
        let ways = match self.design {
            Design::SendSendUd if connected == Transport::Uc => [Way::Send(Transport::Ud); 2],
            Design::SendSend | Design::SendSendUd => [Way::Send(connected); 2],
            Design::WriteWrite => [Way::Write(connected); 2],
            Design::WriteSend => [Way::Write(connected), Way::Send(Transport::Ud)],
        };
        Exchange {
            ways,
            words: [self.payload / WORD; 2],
            window: self.window,
            signaled: match self.level {
                Level::Basic => 1,
                Level::Unsignaled | Level::Unreliable | Level::Inlined => self.window,
            },
            inline: self.level == Level::Inlined,
        }
    }

    pub(super) fn described(&self) -> VerbPoint {
        let exchange = self.exchange();
        let [request, reply] = exchange.ways.map(|way| match way.transport() {
            Transport::Rc => "rc",
            Transport::Uc => "uc",
            Transport::Ud => "ud",
        });
        VerbPoint {
            verb: name_of(&DESIGNS, &self.design).to_owned(),
            transport: if request == reply {
                request.to_owned()
            } else {
                format!("{request}/{reply}")
            },
            direction: "echo".to_owned(),
            payload: self.payload,
            accesses: self.accesses,
            prefetch: self.prefetch,
            level: name_of(&LEVELS, &self.level).to_owned(),
            inline: exchange.inline,
            signaled: exchange.signaled,
            postlist: 1,
            window: self.window,
            queue_pairs: 1,
            servers: 1,
            ..VerbPoint::default()
        }
    }

    pub(super) fn name(&self) -> String {
        let (design, level) = (
            name_of(&DESIGNS, &self.design),
            name_of(&LEVELS, &self.level),
        );
        format!("{design} {level}")
    }
}

/// Why a design could not be measured.
#[derive(Debug, thiserror::Error)]
pub enum DesignError {
    /// Bytes of a message out of bounds.
    #[error("--payload of an echo is a multiple of {WORD} up to {PAYLOAD_MAX}, not {0}")]
    Payload(usize),
    /// Messages in flight out of bounds.
    #[error("--window of an echo is 1 to {WINDOW_MAX}, not {0}")]
    Window(usize),
    /// Memory accesses out of bounds.
    #[error("--accesses is 0 to {ACCESSES_MAX}, not {0}")]
    Accesses(usize),
    /// None of the designs can be measured.
    #[error(
        "none of the designs can be measured: {0}; `herdwick doctor` shows what works on this host"
    )]
    Nothing(String),
}

/// Returns each of `points` once with each of `values`, in that order.
fn crossed<T: Copy>(
    points: Vec<DesignPoint>,
    values: &[T],
    set: impl Fn(&mut DesignPoint, T),
) -> Vec<DesignPoint> {
    let pairs = points
        .into_iter()
        .flat_map(|point| values.iter().map(move |value| (point, *value)));
    let with = |(mut point, value)| {
        set(&mut point, value);
        point
    };
    pairs.map(with).collect()
}

impl DesignPlan {
    /// Returns every combination.
    pub(super) fn points(&self) -> Result<Vec<DesignPoint>, DesignError> {
        let wrong =
            |bytes: &&usize| !(WORD..=PAYLOAD_MAX).contains(*bytes) || !bytes.is_multiple_of(WORD);
        if let Some(wrong) = self.payloads.iter().find(wrong) {
            return Err(DesignError::Payload(*wrong));
        }
        let wrong = |window: &&usize| !(1..=WINDOW_MAX).contains(*window);
        if let Some(wrong) = self.windows.iter().find(wrong) {
            return Err(DesignError::Window(*wrong));
        }
        if let Some(wrong) = self.accesses.iter().find(|count| **count > ACCESSES_MAX) {
            return Err(DesignError::Accesses(*wrong));
        }
        let points = vec![DesignPoint::FIRST];
        let points = crossed(points, &self.designs, |point, it| point.design = it);
        let points = crossed(points, &self.levels, |point, it| point.level = it);
        let points = crossed(points, &self.payloads, |point, it| point.payload = it);
        let points = crossed(points, &self.windows, |point, it| point.window = it);
        let points = crossed(points, &self.clients, |point, it| point.clients = it);
        let points = crossed(points, &self.accesses, |point, it| point.accesses = it);
        let mut points = crossed(points, &self.prefetch, |point, it| point.prefetch = it);
        // Without accesses there is nothing to prefetch.
        points
            .iter_mut()
            .for_each(|point| point.prefetch &= point.accesses > 0);
        // They are next to each other, since `prefetch` was crossed last.
        points.dedup();
        Ok(points)
    }
}
