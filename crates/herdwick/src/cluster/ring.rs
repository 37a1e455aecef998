//! Which server a key belongs to: consistent hashing, key for key as other clients of memcached do it.

use super::Node;

/// How keys are distributed over servers. Clients that share servers must agree on it, on the servers'
/// names ([`Node::name`]) and on their weights, or they do not find each other's items.
///
/// Of each server's name, `HOST` stands for a TCP server on port 11211 and `HOST:PORT` for one on another
/// port, with the host as it was written; `PATH:0` for a unix socket. An IPv6 address has no brackets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Distribution {
    /// Ketama with 160 points a server, times its share of the weights; points and keys are hashed by
    /// MD5. So do libmemcached with `MEMCACHED_BEHAVIOR_KETAMA_WEIGHTED` (pylibmc's `ketama_weighted`,
    /// PHP's `OPT_LIBKETAMA_COMPATIBLE`), and twemproxy with `distribution: ketama` and `hash: md5`.
    #[default]
    Ketama,
    /// Ketama with 100 points a server; points and keys are hashed by Jenkins' one-at-a-time. So does
    /// libmemcached with `MEMCACHED_BEHAVIOR_KETAMA` and its default hash (pylibmc's `ketama`), which
    /// disagrees with the one above. As there, a weight above 1 brings the points of
    /// [`Distribution::Ketama`], for keys that are hashed as before.
    KetamaOneAtATime,
    /// Rendezvous hashing by MurmurHash3. So does pymemcache's `HashClient` by default, for keys of ASCII
    /// that are `str` (of `bytes` it hashes the `repr`). Names are `HOST:PORT` always, or `PATH`; there
    /// are no weights.
    Rendezvous,
}

/// Points on the ring, or names, of the servers that take part.
#[derive(Debug)]
pub(super) enum Ring {
    /// Sorted: the hash up to which a server has the keys, and its place in the list.
    Points(Vec<(u32, usize)>, KeyHash),
    Names(Vec<(String, usize)>),
}

/// The hash of a key on the ring.
type KeyHash = fn(&[u8]) -> u32;

/// Points of a server of average weight: four of each MD5.
const POINTS: u32 = 160;
const POINTS_PER_MD5: u32 = 4;
/// Points of a server by one-at-a-time.
const POINTS_ONE_AT_A_TIME: u32 = 100;

impl Ring {
    /// Makes the ring of those of `nodes` whose places `takes_part` accepts.
    pub(super) fn new(
        distribution: Distribution,
        nodes: &[&Node],
        takes_part: impl Fn(usize) -> bool,
    ) -> Self {
        let places = nodes.iter().enumerate().map(|(place, node)| (place, *node));
        let parts: Vec<_> = places.filter(|(place, _)| takes_part(*place)).collect();
        // Of all servers: the kind of points must not change while one is away.
        let is_weighted = nodes.iter().any(|node| node.weight() > 1);
        match distribution {
            Distribution::Ketama => Self::Points(md5_points(&parts), md5_word),
            Distribution::KetamaOneAtATime if is_weighted => {
                Self::Points(md5_points(&parts), one_at_a_time)
            }
            Distribution::KetamaOneAtATime => {
                Self::Points(one_at_a_time_points(&parts), one_at_a_time)
            }
            Distribution::Rendezvous => {
                let names = parts.iter().map(|(place, node)| (node.host_port(), *place));
                Self::Names(names.collect())
            }
        }
    }

    /// Returns how many servers have keys: one whose share of the weights is too small has no point.
    pub(super) fn servers(&self) -> usize {
        match self {
            Self::Points(points, _) => {
                let places: std::collections::BTreeSet<_> =
                    points.iter().map(|(_, place)| place).collect();
                places.len()
            }
            Self::Names(names) => names.len(),
        }
    }

    /// Returns the place of the server of `key`: the first that is not in `without`.
    pub(super) fn pick(&self, key: &[u8], without: &[usize]) -> Option<usize> {
        match self {
            Self::Points(points, hash) => {
                let hash = hash(key);
                // Behind the last point the ring begins again.
                let start = points.partition_point(|(point, _)| *point < hash);
                let mut places = points[start..].iter().chain(&points[..start]);
                let found = places.find(|(_, place)| !without.contains(place));
                found.map(|(_, place)| *place)
            }
            Self::Names(names) => {
                let names = names.iter().filter(|(_, place)| !without.contains(place));
                let mut text = Vec::new();
                let scores = names.map(|(name, place)| {
                    text.clear();
                    text.extend_from_slice(name.as_bytes());
                    text.push(b'-');
                    text.extend_from_slice(key);
                    (murmur3(&text), name, place)
                });
                scores.max().map(|(_, _, place)| *place)
            }
        }
    }
}

/// Points by MD5, as many as the servers' weights give them.
fn md5_points(parts: &[(usize, &Node)]) -> Vec<(u32, usize)> {
    let total: u64 = parts.iter().map(|(_, node)| u64::from(node.weight())).sum();
    let mut points = Vec::new();
    for (place, node) in parts {
        // In single precision, and in this order, as in the originals: the rounding decides.
        let share = node.weight() as f32 / total as f32;
        let per_md5 = POINTS_PER_MD5 as f32;
        let md5s = share * POINTS as f32 / per_md5 * parts.len() as f32 + 0.000_000_000_1;
        let name = node.ketama_name();
        for index in 0..md5s.floor() as u32 {
            let digest = md5::compute(format!("{name}-{index}"));
            let (words, _) = digest.as_chunks();
            points.extend(words.iter().map(|word| (u32::from_le_bytes(*word), *place)));
        }
    }
    points.sort_unstable();
    points
}

fn one_at_a_time_points(parts: &[(usize, &Node)]) -> Vec<(u32, usize)> {
    let mut points = Vec::new();
    for (place, node) in parts {
        let name = node.ketama_name();
        let texts = (0..POINTS_ONE_AT_A_TIME).map(|index| format!("{name}-{index}"));
        points.extend(texts.map(|text| (one_at_a_time(text.as_bytes()), *place)));
    }
    points.sort_unstable();
    points
}

/// The first word of the MD5.
fn md5_word(text: &[u8]) -> u32 {
    let digest = md5::compute(text);
    digest
        .first_chunk()
        .map_or(0, |word| u32::from_le_bytes(*word))
}

/// Jenkins' one-at-a-time, as libmemcached compiles it on x86: bytes are signed.
fn one_at_a_time(text: &[u8]) -> u32 {
    let hash = text.iter().fold(0_u32, |hash, byte| {
        let hash = hash.wrapping_add(i32::from(*byte as i8) as u32);
        let hash = hash.wrapping_add(hash << 10);
        hash ^ (hash >> 6)
    });
    let hash = hash.wrapping_add(hash << 3);
    let hash = hash ^ (hash >> 11);
    hash.wrapping_add(hash << 15)
}

/// MurmurHash3 for 32 bits, x86 variant, of seed 0.
fn murmur3(text: &[u8]) -> u32 {
    let scramble = |word: u32| {
        let word = word.wrapping_mul(0xcc9e_2d51).rotate_left(15);
        word.wrapping_mul(0x1b87_3593)
    };
    let (words, rest) = text.as_chunks();
    let mut hash = words.iter().fold(0_u32, |hash, word| {
        let hash = hash ^ scramble(u32::from_le_bytes(*word));
        let hash = hash.rotate_left(13);
        hash.wrapping_mul(5).wrapping_add(0xe654_6b64)
    });
    let mut last = [0; 4];
    last[..rest.len()].copy_from_slice(rest);
    // Without a rest this changes nothing, since `scramble` of 0 is 0.
    hash ^= scramble(u32::from_le_bytes(last));
    hash ^= text.len() as u32;
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every distribution.
    const ALL: [Distribution; 3] = [
        Distribution::Ketama,
        Distribution::KetamaOneAtATime,
        Distribution::Rendezvous,
    ];

    fn nodes(names: &[&str]) -> Vec<Node> {
        let nodes = names.iter().map(|name| name.parse().unwrap());
        nodes.collect()
    }

    fn ring(distribution: Distribution, nodes: &[Node]) -> Ring {
        Ring::new(distribution, &nodes.iter().collect::<Vec<_>>(), |_| true)
    }

    fn places(distribution: Distribution, names: &[&str], keys: u32) -> Vec<usize> {
        let ring = ring(distribution, &nodes(names));
        let pick = |key: u32| ring.pick(format!("key:{key}").as_bytes(), &[]);
        (0..keys).filter_map(pick).collect()
    }

    /// The published values of MurmurHash3_x86_32 at seed 0.
    #[test]
    fn murmur3_matches_published_hashes() {
        for (text, hash) in [
            ("", 0),
            ("test", 0xba6b_d213),
            ("Hello, world!", 0xc036_3e43),
            ("The quick brown fox jumps over the lazy dog", 0x2e4f_f723),
        ] {
            assert_eq!(murmur3(text.as_bytes()), hash, "{text}");
        }
    }

    /// The places of `key:0` to `key:63`, as libmemcached 1.1.4 (by KETAMA_WEIGHTED and by KETAMA) and
    /// pymemcache 4.0.0 give them; CI compares a million keys (`tests/peers/ring.sh`).
    #[test]
    fn keys_belong_to_the_servers_that_other_clients_give_them() {
        let equal = [
            "cache-1.example",
            "cache-2.example:11212",
            "10.0.0.3",
            "/run/m.sock",
        ];
        let weighted = [
            "cache-1.example",
            "cache-2.example:11212:2",
            "10.0.0.3:11211:3",
        ];
        for (distribution, names, expected) in [
            (
                Distribution::Ketama,
                &equal[..],
                "0032000313030320230221312302133212202322331221012002321131213000",
            ),
            (
                Distribution::Ketama,
                &weighted,
                "2022201210020221222221012202100212212222011221212102121101210010",
            ),
            (
                Distribution::KetamaOneAtATime,
                &equal,
                "0333133133011302112203021003132222210000332320232333230011303101",
            ),
            (
                Distribution::KetamaOneAtATime,
                &weighted,
                "1220112221122120022001221222020222222122121222221110120022201020",
            ),
            (
                Distribution::Rendezvous,
                &equal,
                "3102020030123233133101220222323030113103330013112130103112133013",
            ),
        ] {
            let places = places(distribution, names, 64);
            let digits: String = places.iter().map(usize::to_string).collect();
            assert_eq!(digits, expected, "{distribution:?}, {names:?}");
        }
    }

    #[test]
    fn server_that_joins_or_leaves_moves_its_own_keys_alone() {
        let names: Vec<_> = (0..11)
            .map(|n| format!("cache-{n}.example:11211"))
            .collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        for distribution in ALL {
            for count in [1, 2, 3, 10] {
                let before = places(distribution, &names[..count], 20_000);
                let after = places(distribution, &names[..count + 1], 20_000);
                let moved: Vec<_> = before.iter().zip(&after).filter(|(b, a)| b != a).collect();
                assert!(
                    moved.iter().all(|(_, to)| **to == count),
                    "{distribution:?}"
                );
                let share = moved.len() as f64 / 20_000.0 * (count + 1) as f64;
                assert!(
                    (0.75..1.25).contains(&share),
                    "{distribution:?} {count}: {share}"
                );
            }
        }
    }

    #[test]
    fn pick_without_a_server_is_the_ring_without_it() {
        let nodes = nodes(&["a", "b", "c:77", "d"]);
        let all: Vec<_> = nodes.iter().collect();
        for distribution in ALL {
            let whole = Ring::new(distribution, &all, |_| true);
            for out in 0..nodes.len() {
                let less = Ring::new(distribution, &all, |place| place != out);
                for key in 0..2000 {
                    let key = format!("key:{key}");
                    let picked = whole.pick(key.as_bytes(), &[out]);
                    assert_eq!(picked, less.pick(key.as_bytes(), &[]), "{distribution:?}");
                }
            }
            assert_eq!(whole.pick(b"k", &[0, 1, 2, 3]), None);
        }
    }

    #[test]
    fn heavier_server_has_more_keys() {
        let count = |weight: u32| {
            let names = ["a".to_owned(), format!("b:11211:{weight}"), "c".to_owned()];
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            let places = places(Distribution::Ketama, &names, 20_000);
            places.iter().filter(|place| **place == 1).count()
        };
        let share = count(4) as f64 / 20_000.0;
        assert!((0.58..0.75).contains(&share), "4 of 6, not {share}");
        assert!(count(1) < count(2) && count(2) < count(4));
    }
}
