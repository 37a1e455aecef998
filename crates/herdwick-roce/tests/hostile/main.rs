//! Attacks on a RoCE port by forged packets. The connected peers must not notice: no answer goes to
//! any other address, no byte changes outside what a valid key permits, every drop is counted, and
//! the pair still works afterwards.
//!
//! | row | what arrives | test |
//! |---|---|---|
//! | U01 | fewer bytes than a header | `form::u01_fewer_bytes_than_a_header_are_dropped` |
//! | U02 | an opcode without its headers | `form::u02_opcodes_without_their_headers_are_dropped` |
//! | U03 | less payload than pad | `form::u03_packet_with_less_payload_than_pad_is_dropped` |
//! | U04 | a wrong ICRC, and altered bytes that no ICRC covers | `form::u04_flipped_bits_that_the_icrc_covers_are_detected` and `form::u04_bits_that_the_icrc_does_not_cover_have_no_effect` |
//! | U05 | other versions and partitions, reserved bits | `form::u05_packets_of_other_versions_and_partitions_are_dropped` |
//! | U06 | queue pairs that are not there, or not ready | `queues::u06_absent_and_unready_queue_pairs_send_no_reply` |
//! | U07 | the right queue pair from the wrong address | `queues::u07_connection_accepts_packets_from_its_peer_only` |
//! | U08 | datagrams with the wrong Q_Key | `queues::u08_wrong_qkey_is_refused` |
//! | U09 | an unreliable WRITE out of sequence | `queues::u09_uc_write_out_of_sequence_is_accepted_only_from_the_peer` |
//! | U10 | keys guessed, revoked, zero | `memory::u10_guessed_rkeys_are_refused_and_end_no_connection` and `memory::u10_revoked_rkey_is_refused` |
//! | U11 | addresses and lengths beyond a region | `memory::u11_accesses_beyond_a_region_have_no_effect` |
//! | U12 | lengths that are not the payload's | `memory::u12_packets_with_false_lengths_are_dropped` |
//! | U13 | messages without a beginning or an end | `queues::u13_messages_without_first_or_last_packet_are_dropped` |
//! | U14 | packets longer and shorter than the path MTU allows | `form::u14_packets_of_a_wrong_size_are_dropped` |
//! | U15 | rights that were not granted, and opcodes of other transports | `memory::u15_rights_that_were_not_granted_are_refused` and `queues::u15_opcodes_of_other_transports_are_dropped` |
//! | U16 | nothing, written anywhere | `memory::u16_zero_length_write_has_no_effect` |
//! | U17 | valid requests again | `answers::u17_repeated_requests_have_no_second_effect` and `answers::u17_requests_of_an_earlier_connection_are_dropped` |
//! | U18 | requests whose answers would go elsewhere | `answers::u18_replies_are_sent_only_to_the_peer` |
//! | U19 | junk | `answers::u19_random_packets_have_no_effect` |
//! | U20 | notifications, acknowledgements, management, multicast | `answers::u20_floods_of_unsolicited_packets_are_ignored` and `answers::u20_congestion_marks_cause_one_cnp_to_the_peer` |
//! | U21 | another IP, and the longest datagram | `form::u21_other_address_families_and_longest_datagrams_are_dropped` |
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
fn every_row_of_the_table_names_existing_tests() {
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
