//! Profiles: the costs of an RNIC, its PCIe slot, its link and its host's CPU, read from a file.

use serde::Deserialize;

/// The costs of a host with an RNIC. Times are in nanoseconds, sizes in bytes; a time of 0 switches
/// its part of the model off. `docs/sim.md` describes how the parts work together.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Profile {
    /// Its name, as `--profile` takes it.
    pub name: String,
    /// What it models.
    pub about: String,
    /// The name of the profile of the client machines, which comes with the program; `None`: this one.
    #[serde(default)]
    pub clients: Option<String>,
    /// The cores.
    pub cpu: Cpu,
    /// The bus between memory and the RNIC.
    pub pcie: Pcie,
    /// The RNIC.
    pub rnic: Rnic,
    /// The link to the switch, and the switch.
    pub link: Link,
}

/// What a core spends.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Cpu {
    /// A post of one WQE.
    pub post_ns: f64,
    /// How far the RNIC may be behind in taking lines before the stores of a core wait.
    pub store_buffer_ns: f64,
    /// Each further WQE of a post.
    pub post_more_ns: f64,
    /// Each RECV.
    pub post_recv_ns: f64,
    /// Each completion polled.
    pub completion_ns: f64,
    /// A pass of a poll loop, whatever it finds.
    pub pass_ns: f64,
    /// Each slot of request memory that a pass polls.
    pub poll_slot_ns: f64,
    /// Each request found, but for what it accesses in memory.
    pub request_ns: f64,
    /// A line that a core waits for, of memory that is in no cache.
    pub memory_ns: f64,
    /// Lines that a core has under way at a time, at least 1.
    pub lines_under_way: f64,
    /// Each line of a key and value that is copied to the store, or from it.
    pub copy_line_ns: f64,
    /// Each line of a request but the first, as the RNIC left it: in a cache, or in memory.
    pub rnic_line_ns: f64,
}

/// The bus.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pcie {
    /// One way: a store of the CPU to the RNIC, or a DMA write.
    pub write_latency_ns: f64,
    /// Both ways: a DMA read.
    pub read_latency_ns: f64,
    /// 10^9 bytes a second of DMA writes, headers included; 0: no limit.
    pub in_gbytes: f64,
    /// 10^9 bytes a second of DMA reads, headers included; 0: no limit.
    pub out_gbytes: f64,
    /// Header of each packet on the bus.
    pub tlp_header_bytes: u64,
    /// Largest payload of a packet on the bus.
    pub tlp_payload_bytes: u64,
}

/// The RNIC.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rnic {
    /// From the bus to the link, or back, without waiting.
    pub latency_ns: f64,
    /// Taking a write-combined line of 64 bytes: a WQE that the CPU stores itself.
    pub line_ns: f64,
    /// Largest inlined payload.
    pub inline_bytes_max: usize,
    /// A WQE of a WRITE or READ, or a SEND of a connected queue pair, without its payload.
    pub wqe_connected_bytes: u64,
    /// A WQE of a datagram.
    pub wqe_datagram_bytes: u64,
    /// What stands in a WQE for a payload that is not inlined.
    pub wqe_pointer_bytes: u64,
    /// Transmitting a WRITE or SEND.
    pub send_ns: f64,
    /// Transmitting a READ or atomic, and placing its result.
    pub read_request_ns: f64,
    /// Fetching the payload of a WRITE or SEND from memory.
    pub fetch_ns: f64,
    /// Executing a WRITE that arrives.
    pub write_in_ns: f64,
    /// Executing a message that takes a RECV.
    pub recv_in_ns: f64,
    /// Executing a READ that arrives.
    pub read_in_ns: f64,
    /// Executing an atomic that arrives: one at a time.
    pub atomic_ns: f64,
    /// What any message, in or out, takes of the part that both directions share.
    pub message_ns: f64,
    /// What one that takes a RECV takes of that part.
    pub recv_message_ns: f64,
    /// What an acknowledgement takes of that part.
    pub ack_ns: f64,
    /// Processing units; a queue pair is served by one of them. 0: no such limit.
    pub units: usize,
    /// Transmitting a message, of one unit.
    pub unit_ns: f64,
    /// Contexts of queue pairs that send, in the RNIC's memory; 0: all.
    pub requester_contexts: usize,
    /// What a send waits for a context that is not.
    pub requester_miss_ns: f64,
    /// Contexts of queue pairs that receive, in the RNIC's memory; 0: all.
    pub responder_contexts: usize,
    /// What a message that arrives waits for a context that is not.
    pub responder_miss_ns: f64,
    /// Work requests in a post, at most.
    pub postlist_max: usize,
    /// READs and atomics that a queue pair has under way.
    pub rd_atomic_max: usize,
}

/// The link.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// 10^9 bits a second each way, headers included; 0: no limit.
    pub gbits: f64,
    /// From one RNIC to another.
    pub latency_ns: f64,
    /// How far a receiver may be behind before the link's flow control holds its senders back.
    pub buffer_ns: f64,
    /// Largest payload of a packet.
    pub mtu: u64,
    /// Headers of a WRITE, READ or atomic.
    pub write_header_bytes: u64,
    /// Headers of a SEND of a connected queue pair.
    pub send_header_bytes: u64,
    /// Headers of a datagram.
    pub datagram_header_bytes: u64,
    /// Headers of an acknowledgement, or of what a READ returns.
    pub reply_header_bytes: u64,
}

/// Why a profile is not accepted.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// No profile of this name comes with the program.
    #[error("no profile {0:?}; there are {names}, and files (*.toml)", names = Profile::NAMES.join(", "))]
    Unknown(String),
    /// The file is no profile.
    #[error("profile: {0}")]
    Malformed(#[from] toml::de::Error),
    /// A value is out of range.
    #[error("profile: {0} is out of range (times up to {VALUE_MAX} ns; sizes and counts likewise)")]
    Range(String),
}

/// Largest value in a profile: a second.
const VALUE_MAX: f64 = 1e9;

/// The profiles that come with the program.
const PROFILES: [(&str, &str); 7] = [
    ("apt", include_str!("../profiles/apt.toml")),
    ("susitna", include_str!("../profiles/susitna.toml")),
    ("connect-ib", include_str!("../profiles/connect-ib.toml")),
    ("cx6-100g", include_str!("../profiles/cx6-100g.toml")),
    ("bluefield2", include_str!("../profiles/bluefield2.toml")),
    ("wimpy-10g", include_str!("../profiles/wimpy-10g.toml")),
    (
        "wimpy-10g-2.3ghz",
        include_str!("../profiles/wimpy-10g-2.3ghz.toml"),
    ),
];

impl Profile {
    /// The names of the profiles that come with the program.
    pub const NAMES: [&str; PROFILES.len()] = {
        let mut names = [""; PROFILES.len()];
        let mut i = 0;
        while i < PROFILES.len() {
            names[i] = PROFILES[i].0;
            i += 1;
        }
        names
    };

    /// Returns the profile of this name.
    ///
    /// # Errors
    /// [`ProfileError::Unknown`].
    pub fn named(name: &str) -> Result<Self, ProfileError> {
        let found = PROFILES.iter().find(|(known, _)| *known == name);
        let (_, text) = found.ok_or_else(|| ProfileError::Unknown(name.to_owned()))?;
        Self::parse(text)
    }

    /// Returns the profile of the client machines.
    ///
    /// # Errors
    /// [`ProfileError::Unknown`], of a profile that was not read by [`Profile::parse`].
    pub fn of_clients(&self) -> Result<Self, ProfileError> {
        match &self.clients {
            Some(name) => Self::named(name),
            None => Ok(self.clone()),
        }
    }

    /// Reads a profile.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        // One range holds for the numbers of all sections, so they are checked before they have
        // their types.
        let table: toml::Table = toml::from_str(text)?;
        let sections = table.values().filter_map(toml::Value::as_table);
        for (field, value) in sections.flatten() {
            #[expect(clippy::cast_precision_loss, reason = "the range ends far below 2^52")]
            let value = match value {
                toml::Value::Float(value) => *value,
                toml::Value::Integer(value) => *value as f64,
                _ => continue,
            };
            // NaN is in no range.
            if !(0.0..=VALUE_MAX).contains(&value) {
                return Err(ProfileError::Range(field.clone()));
            }
        }
        let profile: Self = table.try_into()?;
        if let Some(name) = &profile.clients
            && !Self::NAMES.contains(&name.as_str())
        {
            return Err(ProfileError::Unknown(name.clone()));
        }
        let positive = [
            ("lines_under_way", profile.cpu.lines_under_way >= 1.0),
            ("tlp_payload_bytes", profile.pcie.tlp_payload_bytes > 0),
            ("mtu", profile.link.mtu > 0),
            ("postlist_max", profile.rnic.postlist_max > 0),
            ("rd_atomic_max", profile.rnic.rd_atomic_max > 0),
        ];
        if let Some((field, _)) = positive.iter().find(|(_, positive)| !positive) {
            return Err(ProfileError::Range((*field).to_owned()));
        }
        Ok(profile)
    }
}
