//! The list of behaviours, the macro that turns it into tests, and what a provider must supply.
//!
//! Circular import with `stage`: the list runs each behaviour on a stage, and a stage is set up by the fixture
//! that is declared here.

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
        // A test cannot report that it was skipped, so it passes.
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
        each_transport_allows_the_verbs_of_table_1
        write_changes_its_range_and_nothing_else
        write_overwrites_in_order
        zero_length_messages_are_delivered
        read_returns_the_remote_bytes
        fetch_add_returns_the_old_value
        compare_swap_stores_only_if_equal
        atomics_and_cpu_increments_lose_no_count
        misaligned_atomics_are_refused;
    reads:
        read_is_byte_exact_at_any_alignment
        reads_up_to_the_end_of_a_region_succeed_and_beyond_are_refused
        a_window_of_reads_completes_in_order
        a_fence_holds_back_what_follows_a_read
        a_fenced_atomic_does_not_overtake_a_read
        reads_of_a_revoked_region_fail_and_show_nothing_newer
        words_of_a_read_are_never_torn
        words_of_a_read_are_loaded_in_rising_order;
    messages:
        sends_match_recvs_in_order
        immediates_arrive
        write_with_immediate_consumes_a_recv
        small_receives_are_inline_in_the_completion
        large_receives_are_in_the_buffer
        short_recv_buffer_receives_nothing
        datagrams_name_their_source
        datagrams_without_recv_are_dropped_and_counted
        reliable_sends_wait_for_a_recv
        sender_fails_if_the_receiver_is_never_ready;
    queues:
        unsignaled_success_has_no_completion
        unsignaled_failure_has_a_completion
        requests_behind_a_failed_one_are_flushed
        a_postlist_completes_in_order
        a_full_send_queue_refuses_the_whole_batch
        a_full_recv_queue_refuses_the_whole_batch
        a_bad_request_refuses_the_whole_batch
        polling_a_later_completion_frees_unsignaled_slots
        payload_may_change_after_an_inline_post
        a_completion_queue_too_small_is_refused;
    protection:
        unknown_rkey_is_refused
        freed_region_is_not_accessible
        ranges_outside_a_region_are_refused
        rights_not_granted_are_refused
        scoped_rkey_works_only_for_its_queue_pair
        rkey_of_another_domain_is_refused
        local_ranges_out_of_bounds_are_refused
        payloads_too_long_are_refused;
    states:
        queue_pair_states_follow_create_and_connect
        unconnected_queue_pair_accepts_recvs_but_no_sends
        a_failed_queue_pair_flushes_and_refuses
        other_queue_pairs_survive_a_failure
        destroyed_queue_pairs_leave_no_completions
        destroyed_ids_are_unknown
        objects_in_use_are_not_destroyed
        destroying_a_domain_destroys_everything_in_it
        endpoint_garbage_is_an_error
        damaged_endpoints_never_panic
        queue_pair_survives_the_end_of_its_peer;
    waking:
        a_completion_wakes_an_armed_port
        a_write_wakes_an_armed_port
        arming_with_a_queued_completion_returns_pending
        disarming_cancels_the_wakeup
        no_wakeup_by_a_completion_is_lost
        no_wakeup_by_a_write_is_lost;
    reports:
        writes_into_a_watched_range_are_reported
        a_long_write_is_reported_when_it_is_whole
        a_port_with_a_report_does_not_sleep
        a_destroyed_queue_pair_reports_nothing
        watching_again_drops_what_was_to_be_reported;
    publication:
        write_publishes_its_last_word_last_step_by_step
        write_publishes_its_last_word_last_across_threads;
}
