//! Many processes, one limit: what they are granted together is what one of them would be.

use tidegate_tests::clients::{self, Client};
use tidegate_tests::history::{Event, History};
use tidegate_tests::servers::RedisServer;

const PROGRAM: &str = env!("CARGO_BIN_EXE_redis_client");
const PROCESSES: usize = 8;
const TASKS: u64 = 8;
const BURST: u64 = 100;
const TRIES: u64 = 1_000_000;
/// Enough for the race; the classic limiter needs two commands for each.
const NAIVE_TRIES: u64 = 32_000;
/// A race need not be lost each time.
const NAIVE_ROUNDS: usize = 3;

/// Starts the processes, lets them all go at once, and collects what they say.
fn run(server: &RedisServer, work: &str, arguments: &[String]) -> Vec<String> {
    let url = server.url();
    let arguments: Vec<&str> =
        [work, &url].into_iter().chain(arguments.iter().map(String::as_str)).collect();
    let start = || Client::start(PROGRAM, &arguments);
    let mut processes: Vec<Client> = std::iter::repeat_with(start).take(PROCESSES).collect();
    processes.iter_mut().for_each(|process| process.say("go"));
    processes.into_iter().flat_map(Client::finish).collect()
}

/// A day for one unit: what comes back while the test runs is nothing. The same
/// clients with the classic limiter admit too much, so this test is known to see the bug.
#[test]
fn a_million_tries_of_sixty_four_clients_get_exactly_the_burst() {
    let server = RedisServer::start();
    let each = TRIES / PROCESSES as u64;
    let arguments = [
        format!("limit=token_bucket:1:86400000000:{BURST}"),
        "key=hot".into(),
        format!("tasks={TASKS}"),
        format!("tries={each}"),
    ];
    let said = run(&server, "tries", &arguments);
    let left = said.iter().map(|line| line.strip_prefix("left ").and_then(|n| n.parse().ok()));
    let mut left: Vec<u64> = left.map(|left| left.expect("left and a number")).collect();
    left.sort_unstable();
    // Not only as many as there are: each unit was given out once.
    assert_eq!(left, (0..BURST).collect::<Vec<_>>());
    println!("{TRIES} tries: evalsha {}", server.info("cmdstat_evalsha"));
    let naive: Vec<u64> = (0..NAIVE_ROUNDS).map(|_| naive_admissions()).collect();
    println!("the classic limiter admitted {naive:?} of {BURST}");
    assert!(naive.iter().any(|admitted| *admitted > BURST), "{naive:?}: the race was not seen");
}

/// What reading and then counting admits.
fn naive_admissions() -> u64 {
    let server = RedisServer::start();
    let each = NAIVE_TRIES / PROCESSES as u64;
    let arguments = [format!("limit={BURST}"), format!("tasks={TASKS}"), format!("tries={each}")];
    let said = run(&server, "naive", &arguments);
    let admitted = said.iter().map(|line| line.strip_prefix("admitted ").expect("a count"));
    admitted.map(|count| count.parse::<u64>().expect("a count")).sum()
}

/// Several processes for a while on one key that refills, checked against the limit's promise and
/// its model.
fn check_history(limit: &str) {
    let server = RedisServer::start();
    let arguments = [
        format!("limit={limit}"),
        "key=told".into(),
        format!("tasks={}", TASKS / 2),
        "micros=3000000".into(),
    ];
    let said = run(&server, "record", &arguments);
    let events: Vec<Event> = said.iter().map(|line| line.parse().expect("an event")).collect();
    let count = events.len();
    let history = History::new(clients::limit(limit), events);
    let units = history.units();
    assert!(units > 100, "{units} units in {count} events: too few to tell anything");
    assert_eq!(history.breach(), None, "{limit}, {count} events");
    assert_eq!(history.unjustified(), None, "{limit}, {count} events");
    println!("{limit}: {count} events, {units} units");
}

#[test]
fn a_bucket_keeps_its_promise_to_several_processes() {
    // A seventh of 100 ms for each unit: no refill is a whole number of microseconds.
    check_history("token_bucket:7:100000:50");
}

#[test]
fn a_leaky_bucket_keeps_its_promise_to_several_processes() {
    check_history("leaky_bucket:60:1000000");
}

#[test]
fn a_fixed_window_keeps_its_promise_to_several_processes() {
    check_history("fixed_window:40:400000");
}

#[test]
fn a_sliding_window_keeps_its_promise_to_several_processes() {
    check_history("sliding_window:40:400000");
}

#[test]
fn a_sliding_log_keeps_its_promise_to_several_processes() {
    check_history("sliding_log:40:400000");
}
