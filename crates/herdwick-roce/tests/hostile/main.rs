//! Attacks on a RoCE port by forged packets. The connected peers must not notice: no answer goes to
//! any other address, no byte changes outside what a valid key permits, every drop is counted, and
//! the pair still works afterwards.
//!
//! | row | what arrives | test |
//! |---|---|---|
//! | U01 | fewer bytes than a header | `form::u01_fewer_bytes_than_a_header_are_dropped` |
//! | U02 | an opcode without its headers | `form::u02_opcodes_without_their_headers_are_dropped` |
//! | U03 | less payload than pad | `form::u03_less_payload_than_pad_is_dropped` |
//! | U04 | a wrong ICRC, and altered bytes that no ICRC covers | `form::u04_every_flipped_bit_that_the_icrc_covers_is_noticed` and `form::u04_what_the_icrc_does_not_cover_changes_nothing` |
//! | U05 | other versions and partitions, reserved bits | `form::u05_other_versions_and_partitions_are_dropped` |
//! | U06 | queue pairs that are not there, or not ready | `queues::u06_absent_and_unready_queue_pairs_do_not_answer` |
//! | U07 | the right queue pair from the wrong address | `queues::u07_a_connection_has_one_source` |
//! | U08 | datagrams with the wrong Q_Key | `queues::u08_a_wrong_qkey_opens_nothing` |
//! | U09 | an unreliable WRITE out of sequence | `queues::u09_an_unreliable_write_out_of_sequence_is_taken_from_its_peer_alone` |
//! | U10 | keys guessed, revoked, zero | `memory::u10_guessed_keys_open_nothing_and_end_nothing` and `memory::u10_a_revoked_key_opens_nothing` |
//! | U11 | addresses and lengths beyond a region | `memory::u11_addresses_and_lengths_beyond_a_region_touch_nothing` |
//! | U12 | lengths that are not the payload's | `memory::u12_lengths_that_lie_are_dropped` |
//! | U13 | messages without a beginning or an end | `queues::u13_messages_without_beginning_or_end_are_dropped` |
//! | U14 | packets longer and shorter than the path MTU allows | `form::u14_packets_of_a_wrong_size_are_dropped` |
//! | U15 | rights that were not granted, and opcodes of other transports | `memory::u15_rights_that_were_not_granted_are_refused` and `queues::u15_opcodes_of_other_transports_are_dropped` |
//! | U16 | nothing, written anywhere | `memory::u16_writing_nothing_has_no_effect` |
//! | U17 | valid requests again | `answers::u17_requests_again_have_no_second_effect` and `answers::u17_requests_of_an_earlier_life_are_dropped` |
//! | U18 | requests whose answers would go elsewhere | `answers::u18_nobody_else_is_answered` |
//! | U19 | junk | `answers::u19_junk_changes_nothing` |
//! | U20 | notifications, acknowledgements, management, multicast | `answers::u20_floods_of_what_is_not_asked_for_are_ignored` and `answers::u20_marks_of_congestion_are_answered_once` |
//! | U21 | another IP, and the longest datagram | `form::u21_other_families_and_the_longest_datagrams_are_dropped` |
//!
//! [`mutants`] changes recorded traffic at random.

mod answers;
#[path = "../common/mod.rs"]
mod common;
mod form;
mod memory;
mod mutants;
mod queues;

use std::{fs, path::Path};

use common::{packet::Way, siege::Siege, stage::VICTIM};

/// Checks that each test named in the table exists.
#[test]
fn every_row_has_its_test() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hostile");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();
    let table = read("main.rs");
    let mut rows = Vec::new();
    let lines = table.lines();
    for line in lines.filter_map(|line| line.strip_prefix("//! | U")) {
        let number = &line[..2];
        rows.push(number.parse::<usize>().unwrap());
        let mut tests = 0;
        for name in line.split('`').skip(1).step_by(2) {
            let (module, function) = name.split_once("::").unwrap();
            let test = format!("#[test]\nfn {function}() {{");
            assert!(function.starts_with(&format!("u{number}_")), "{name}");
            assert!(read(&format!("{module}.rs")).contains(&test), "{name}");
            tests += 1;
        }
        assert!(tests > 0, "U{number}");
    }
    assert!(rows.into_iter().eq(1..=21));
}
