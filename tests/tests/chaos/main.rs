//! Every row of the failure table that `cargo xtask chaos` measures, for a moment: what has to hold
//! holds, and times are within ten times their target.

mod hostile;
mod proxy;

use tidegate_tests::chaos::{CASES, Figure, Pace};

/// Every case has a test, so that it is checked without the chaos run.
#[test]
fn every_case_is_tested() {
    let tests = include_str!("main.rs");
    for case in CASES {
        assert!(tests.contains(&format!("hold(\"{}\")", case.id)), "{} has no test", case.id);
    }
}

/// The page is written by a run of all cases, so a new case needs a run.
#[test]
fn every_case_has_a_row_in_the_failure_table() {
    let page = include_str!("../../../docs/failures.md");
    for case in CASES {
        let row = format!("\n| {} | {} |", case.id, case.outage);
        assert!(page.contains(&row), "docs/failures.md has no row {}: {}", case.id, case.outage);
    }
}

/// Runs one case, and says every figure of it that is off.
fn hold(id: &str) {
    let case = CASES.iter().find(|case| case.id == id);
    let case = case.unwrap_or_else(|| panic!("there is no case {id}"));
    let figures = (case.run)(&Pace::SHORT);
    let show = |figure: &Figure| format!("{}: {}", figure.behaviour, figure.cells().join(", "));
    for figure in &figures {
        println!("{id}: {}", show(figure));
    }
    let off: Vec<String> =
        figures.iter().filter(|it| !it.holds_on_a_busy_machine()).map(show).collect();
    assert!(off.is_empty(), "{id}, {}:\n{}", case.outage, off.join("\n"));
}

#[test]
fn f1_a_store_that_is_killed_costs_no_caller_an_error() {
    hold("F1");
}

#[test]
fn f1_connections_that_break_in_every_way_are_got_over() {
    hold("F1b");
}

#[test]
fn f2_a_store_that_hangs_keeps_only_a_few_waiting() {
    hold("F2");
}

#[test]
fn f2_a_store_that_is_paused_keeps_only_a_few_waiting() {
    hold("F2b");
}

#[test]
fn f2_a_short_pause_of_redis_admits_no_more_than_shares_refill() {
    hold("F2c");
}

#[test]
fn f3_a_store_that_is_slow_now_and_then_adds_no_more_than_the_deadline() {
    hold("F3");
}

#[test]
fn f4_one_node_of_a_cluster_takes_no_other_nodes_keys_with_it() {
    hold("F4");
}

#[test]
fn f5_a_replica_that_missed_writes_lets_in_no_more_than_was_lost() {
    hold("F5");
}

#[test]
fn f5_scripts_that_are_forgotten_cost_no_caller_anything() {
    hold("F5b");
}

#[test]
fn f6_each_side_of_a_split_keeps_the_limit_for_itself() {
    hold("F6");
}

#[test]
fn f7_the_clock_of_a_node_changes_no_decision() {
    hold("F7");
}

#[test]
fn f8_the_clock_of_the_store_locks_no_client_out() {
    hold("F8");
}

#[test]
fn f9_places_of_the_dead_are_free_in_time() {
    hold("F9");
}

#[test]
fn f12_a_store_that_refuses_is_found_at_the_start() {
    hold("F12");
}

#[test]
fn f12_a_store_that_begins_to_refuse_is_found_and_opens_no_limit() {
    hold("F12b");
}

#[test]
fn f13_a_store_that_is_back_is_not_run_over() {
    hold("F13");
}

#[test]
fn f13_clients_that_wait_as_they_are_told_are_let_in_again() {
    hold("F13b");
}

#[test]
fn f14_a_hot_key_asks_the_store_once_per_node_and_wait() {
    hold("F14");
}

#[test]
fn f22_what_comes_after_the_deadline_is_never_given_back_nor_taken_for_anothers() {
    hold("F22");
}

#[test]
fn f10_what_a_node_held_that_is_killed_is_lost_and_never_given_out_twice() {
    hold("F10");
}

#[test]
fn f14_a_hot_key_that_is_leased_hardly_asks_the_store() {
    hold("F14b");
}

#[test]
fn f14_a_key_at_its_limit_is_let_in_from_what_was_taken_ahead() {
    hold("F14c");
}

#[test]
fn f23_a_stopped_process_does_not_spend_units_that_have_expired() {
    hold("F23");
}

#[test]
fn f23_processes_that_are_killed_and_stopped_never_exceed_a_leased_limit() {
    hold("F23b");
}

#[test]
fn f23_processes_that_are_killed_and_stopped_never_exceed_an_exact_limit() {
    hold("F23c");
}

#[test]
fn f24_daemons_that_are_replaced_under_load_keep_the_limit_and_lock_no_client_out() {
    hold("F24");
}

#[test]
fn daemons_without_cpu_time_admit_exactly_the_limit() {
    hold("starved");
}

#[test]
fn daemons_far_from_redis_admit_exactly_the_limit() {
    hold("far");
}
