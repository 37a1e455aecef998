//! The list of behaviours, the macro that turns it into tests, and what a provider must supply.

use crate::{Party, behaviours as b, stage::Stage};

/// Makes the two parties of a behaviour, new ones for each.
pub trait Fixture {
    /// Two parties whose domains reach each other, with room for eight queue pairs of depth 64, a
    /// completion queue of depth 1024 and a dozen regions of 8 KiB on each side; and, where the
    /// memory of a queue pair is not reused, for a few hundred queue pairs made one after another.
    fn pair(&self) -> [Box<dyn Party>; 2];

    /// Number of passes over both parties after which a missing event counts as lost.
    fn timeout(&self) -> usize {
        2_000_000
    }

    /// Number of idle passes after which nothing is under way any more.
    fn quiet(&self) -> usize {
        500
    }

    /// Rounds of the behaviours that race two threads.
    fn rounds(&self) -> u64 {
        20_000
    }
}

/// Why a behaviour does not apply: a missing capability, or Table 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Skip(pub &'static str);

/// A behaviour: panics if the provider does not show it.
pub type Behaviour = fn(&dyn Fixture) -> Result<(), Skip>;

/// Runs the behaviour `name`; prints the reason if it is skipped.
///
/// # Panics
/// If the provider does not show it, or there is no behaviour of that name.
pub fn run(name: &str, fixture: &dyn Fixture) {
    let found = BEHAVIOURS.iter().find(|(known, _)| *known == name);
    let (_, behaviour) = found.expect("the name of a behaviour");
    if let Err(Skip(reason)) = behaviour(fixture) {
        println!("skipped {name}: {reason}");
    }
}

/// Generates the table and the macro from one list. `$d` is the dollar of the inner macro.
macro_rules! behaviours {
    ($d:tt $($module:ident: $($name:ident)*;)*) => {
        /// Every behaviour, by name.
        pub const BEHAVIOURS: &[(&str, Behaviour)] = &[
            $($((stringify!($name), |fixture| b::$module::$name(Stage::new(fixture))),)*)*
        ];

        /// Expands to one `#[test]` per behaviour, each with a fresh fixture: `conformance!(Shm);`.
        #[macro_export]
        macro_rules! conformance {
            ($d fixture:expr) => {
                $($(
                    #[test]
                    fn $name() {
                        $crate::run(stringify!($name), &$d fixture);
                    }
                )*)*
            };
        }
    };
}

behaviours! { $
    verbs:
        table_1_allows_and_refuses
        write_lands_where_told_and_nowhere_else
        write_overwrites_in_order
        zero_bytes_are_a_message
        read_brings_what_lies_there
        fetch_add_adds_and_brings_the_old_value
        compare_swap_swaps_only_what_was_expected
        atomics_and_the_cpu_lose_no_count
        misaligned_atomics_are_refused;
    messages:
        sends_match_recvs_in_order
        immediates_arrive
        write_with_immediate_consumes_a_recv
        small_receives_travel_in_the_completion
        large_receives_lie_in_the_buffer
        a_short_buffer_takes_nothing
        datagrams_name_their_source
        datagrams_without_recv_are_dropped_and_counted
        reliable_sends_wait_for_a_recv
        a_sender_is_told_of_a_receiver_never_ready;
    queues:
        unsignaled_success_is_silent
        failure_speaks_even_unsignaled
        a_postlist_completes_in_order
        a_full_send_queue_refuses_the_whole_batch
        a_full_recv_queue_refuses_the_whole_batch
        a_bad_request_refuses_the_whole_batch
        polling_a_later_completion_frees_unsignaled_slots
        payloads_copied_at_posting_may_change_after
        a_completion_queue_too_small_is_refused;
    protection:
        an_unknown_rkey_opens_nothing
        a_freed_region_is_closed
        ranges_outside_a_region_are_refused
        rights_not_granted_are_refused
        a_scoped_rkey_serves_its_queue_pair_alone
        an_rkey_of_another_domain_opens_nothing
        local_ranges_out_of_bounds_are_refused
        payloads_too_long_are_refused;
    states:
        queue_pairs_start_and_connect_as_told
        an_unconnected_queue_pair_takes_recvs_but_no_sends
        a_failed_queue_pair_flushes_and_refuses
        other_queue_pairs_survive_a_failure
        destroyed_queue_pairs_leave_no_completions
        destroyed_things_are_unknown
        what_is_in_use_is_not_destroyed
        destroying_a_domain_takes_everything_in_it
        endpoint_garbage_is_an_error
        damaged_endpoints_never_panic
        a_peer_that_goes_leaves_the_other_well;
    waking:
        a_completion_wakes_an_armed_port
        a_write_wakes_an_armed_port
        arming_beside_a_waiting_completion_is_pending
        disarming_takes_the_wake_back
        no_wake_is_lost_to_completions
        no_wake_is_lost_to_writes;
    publication:
        a_write_shows_its_last_word_last_step_by_step
        a_write_shows_its_last_word_last_across_threads;
}
