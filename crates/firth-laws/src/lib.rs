//! The laws that every engine obeys.
//!
//! Each law is a plain async function over an [`Engine`]; [`for_each_law!`] lists them all, once,
//! and each engine's tests instantiate the list. Beside them stand the reference [`model`] (small,
//! obviously right, driven by random operations) and the [`Faulty`](faulty::Faulty) wrapper for the
//! crates above. The tests of this crate also plant bugs, which the laws must catch.
//!
//! This is a crate of its own, and not part of `firth-testkit`, because the laws need
//! `firth-engine` while `firth-redis`, which the engine builds on, takes its own tests' servers
//! from the testkit.
//!
//! Rules for laws: every name is fresh (engines may share a server); time is waited for only where
//! time is the subject, with margins that a busy machine keeps; nothing is assumed about an engine
//! beyond its contract.

#![allow(clippy::unwrap_used, reason = "a law speaks by panicking")]

pub mod bus;
pub mod catalog;
pub mod claim_shards;
pub mod dead;
pub mod delayed;
pub mod faulty;
pub mod fencing;
pub mod groups;
pub mod leases;
pub mod log;
pub mod marks;
pub mod model;
pub mod offers;
pub mod retention;
pub mod retry;
pub mod together;
pub mod verdicts;
pub mod world;

use firth_engine::Engine;
use std::pin::Pin;

/// A law, ready to be run on an engine. It panics when the engine breaks it.
pub type Law = fn(Engine) -> Pin<Box<dyn Future<Output = ()> + Send>>;

/// Calls a macro with the list of all laws as `module::law` paths, after the given tokens.
#[macro_export]
macro_rules! for_each_law {
    ($callback:path $(, $($given:tt)*)?) => {
        $callback! { { $($($given)*)? }
            log::an_acknowledged_record_is_read_back_whole
            log::ids_grow_without_holes
            log::concurrent_appends_keep_their_batches_together
            log::a_batch_is_appended_whole_or_not_at_all
            log::appending_to_a_missing_partition_is_refused
            log::a_deleted_partition_comes_back_empty
            log::a_partition_is_changed_only_by_who_knows_of_its_life
            log::k04_a_position_of_a_record_that_the_log_does_not_have_is_refused
            log::a_repeated_batch_is_appended_once
            log::racing_repetitions_append_once
            log::a_gap_in_a_producers_sequence_is_refused
            log::a_delayed_message_is_invisible_until_its_time
            delayed::delayed_messages_are_listed_page_by_page
            delayed::a_cancelled_message_never_enters_the_log
            delayed::a_message_delivered_now_enters_the_log_once
            delayed::unknown_delayed_messages_are_told
            delayed::racing_changes_of_a_delayed_message_agree
            log::ripe_messages_enter_in_the_order_of_their_times
            log::racing_promoters_move_each_message_once
            log::a_read_respects_both_limits
            log::a_waiting_reader_is_woken
            log::partitions_do_not_share_anything
            log::an_append_says_what_its_acknowledgement_means
            marks::a_mark_moves_with_its_records
            marks::what_a_mark_covers_is_appended_once
            marks::an_old_epoch_of_a_source_changes_nothing
            marks::a_new_epoch_fences_without_moving_the_mark
            marks::racing_copies_of_a_marked_batch_append_once
            marks::a_race_of_epochs_leaves_whole_batches
            marks::marks_of_two_sources_share_nothing
            marks::marks_survive_trims
            marks::marks_go_with_their_partition
            marks::a_forgotten_source_begins_anew
            marks::marks_have_limits
            marks::marked_and_plain_appends_go_side_by_side
            groups::every_group_gets_every_record
            groups::a_group_starts_where_it_is_told
            groups::order_survives_a_takeover
            groups::what_is_settled_ahead_is_not_delivered_again
            groups::progress_never_goes_back
            groups::a_verdict_needs_an_open_record
            groups::a_refused_commit_changes_nothing
            groups::lag_is_exact
            groups::a_reset_moves_the_group_and_fences_its_owner
            groups::a_reset_keeps_or_drops_what_is_due
            groups::q17_a_reset_into_many_due_records_leaves_each_in_one_place
            groups::a_deleted_group_comes_back_empty
            groups::a_zombie_makes_and_moves_no_group
            groups::a_start_at_an_existing_group_makes_none
            groups::a_zombie_deletes_no_group
            groups::a_group_that_does_not_exist_is_not_found
            fencing::a_zombie_changes_nothing
            fencing::t01_no_verdict_of_a_zombie_counts
            fencing::an_equal_epoch_with_another_token_is_fenced
            fencing::an_expired_lease_that_nobody_took_still_counts
            fencing::a_hold_is_good_for_its_own_lease_only
            fencing::u06_a_successor_hears_how_far_an_owner_would_go
            fencing::u06_a_reset_forgets_how_far_an_owner_would_go
            fencing::a_vanished_owner_is_counted
            fencing::an_owner_that_leaves_properly_is_not_counted
            fencing::an_owner_that_is_revoked_is_not_counted
            retry::a_retry_keeps_its_id_and_counts_attempts
            retry::a_retry_is_never_early
            retry::due_records_come_in_the_order_of_their_times
            retry::content_that_the_owner_knows_is_left_out
            retry::a_retry_is_invisible_to_other_groups
            retry::a_taken_record_is_not_handed_out_twice
            retry::what_a_vanished_owner_had_taken_is_due_again
            retry::pending_records_are_listed_with_their_reasons
            retry::a_record_is_in_exactly_one_place
            retry::t05_a_reset_drops_kept_records_and_frees_taken_ones
            together::what_failed_together_is_judged_one_by_one
            together::who_takes_a_part_is_told_of_the_rest
            together::pages_of_pending_records_miss_none
            together::only_what_was_taken_counts_a_crash
            together::retention_waits_for_the_first_that_is_due
            together::a_lossy_trim_takes_only_its_own
            together::a_reset_among_them_delivers_each_once
            together::a_reason_may_hold_anything
            verdicts::t01_progress_with_a_verdict_never_goes_back
            verdicts::t01_a_verdict_ahead_of_the_frontier_needs_an_open_record
            verdicts::a_verdict_is_of_the_record_with_exactly_its_id
            verdicts::content_of_a_record_is_left_out_only_if_exactly_its_id_is_known
            verdicts::attempts_are_counted_apart_also_if_records_fail_in_one_commit
            verdicts::k04_an_owner_may_commit_after_a_trim_of_what_it_read
            verdicts::a_letter_whose_record_comes_anyway_brings_no_second_one
            verdicts::an_owner_that_leaves_before_it_opens_hides_no_crash
            dead::a_dead_letter_and_its_record_are_settled_together
            dead::a_dead_letter_tells_its_whole_story
            dead::a_dead_letter_tells_its_last_attempts
            dead::a_replay_to_the_group_is_invisible_to_others
            dead::a_replay_to_everyone_carries_its_origin
            dead::a_record_that_is_replayed_again_keeps_its_first_origin
            dead::a_dead_letter_is_replayed_once
            dead::dead_letters_are_deleted_and_expire
            dead::dead_letters_are_paged
            dead::q03_a_page_of_dead_letters_is_bounded_in_bytes
            dead::an_edited_letter_comes_back_once_as_it_was_edited
            retention::nothing_unsettled_is_trimmed
            retention::a_due_record_holds_retention_back
            retention::a_kept_record_does_not_hold_retention_back
            retention::a_lossy_trim_is_seen_as_a_gap
            retention::trimming_by_count_age_and_id
            retention::trimming_by_size
            retention::trimming_by_size_waits_for_the_slowest_group
            leases::one_holder_at_a_time
            leases::epochs_always_grow
            leases::a_lease_runs_out_and_a_renewal_keeps_it
            leases::a_late_renewal_counts_only_if_nobody_took_over
            leases::the_same_name_gives_no_right
            leases::many_leases_are_renewed_in_one_call
            leases::a_released_lease_is_free_at_once
            leases::a_lease_that_stands_still_can_be_taken
            leases::a_watcher_sees_takeovers_and_expiry
            leases::odd_lease_requests_are_refused
            leases::a_ranked_request_takes_over_at_once_and_never_goes_back
            leases::q14_a_lease_of_a_missing_partition_is_not_granted
            leases::q14_epochs_outlive_what_they_were_for
            leases::q15_the_rank_of_a_lease_outlives_its_group
            claim_shards::what_was_left_is_granted_before_what_rests
            claim_shards::a_name_that_is_given_twice_counts_once
            claim_shards::a_late_member_has_its_own_claims
            offers::an_offer_is_made_once
            offers::offers_made_before_any_member_are_granted
            offers::racing_members_never_share_an_offer
            offers::one_beat_keeps_all_claims
            offers::a_vanished_members_claims_go_to_others
            offers::a_late_beat_counts_only_if_nobody_noticed
            offers::a_zombie_member_changes_nothing
            offers::an_old_epoch_of_a_claim_is_fenced
            offers::a_member_that_leaves_hands_everything_over
            offers::a_member_that_joins_again_ends_its_former_life
            offers::who_is_refused_sees_why
            offers::a_join_after_a_life_ends_no_newer_one
            offers::a_join_that_is_repeated_is_one_life
            offers::an_offer_is_taken_by_name_once
            offers::what_an_expired_member_had_is_taken_by_name
            offers::what_is_done_or_withdrawn_is_gone
            offers::an_offer_that_was_given_back_rests
            offers::a_forced_release_frees_at_once
            offers::what_was_left_is_free_and_no_orphan
            offers::offers_are_listed_and_paged
            offers::a_member_sees_what_it_has
            offers::a_beat_tells_of_the_others
            offers::a_member_that_stands_still_can_be_expelled
            claim_shards::claim_shards_share_nothing
            claim_shards::who_waits_on_a_claim_shard_is_woken
            offers::odd_requests_are_refused
            catalog::a_change_happens_only_as_expected
            catalog::racing_changes_have_one_winner
            catalog::a_version_never_comes_back
            catalog::entries_are_listed_in_order_and_paged
            catalog::a_watcher_sees_every_change
            bus::who_listens_gets_it_in_order
            bus::a_slow_listener_gets_a_gap
        }
    };
}

macro_rules! as_table {
    ({} $($module:ident :: $law:ident)*) => {
        /// All laws with their names.
        pub const LAWS: &[(&str, Law)] =
            &[$((concat!(stringify!($module), "::", stringify!($law)), |engine| Box::pin($module::$law(engine)))),*];
    };
}
for_each_law!(as_table);
