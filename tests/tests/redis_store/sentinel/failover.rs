//! Sentinels promote a replica, and decisions go on there (F5).

use std::sync::Arc;
use std::time::Duration;

use redis::from_redis_value;
use tidegate_tests::servers::{RedisServer, Sentinels, wait_until};
use tokio::time::Instant;

use crate::load::{
    Answer, DEADLINE, Load, TIMEOUT, connect, consumed, daily, errors, runtime, take,
};

/// After a promotion, decisions are had again within this time.
const RECOVERS: Duration = Duration::from_secs(2);
/// What a primary answered longer ago than this, its replicas have.
const LAG: Duration = Duration::from_secs(1);
/// One key is used up before the failure, the other is being used up meanwhile.
const BURSTS: [u64; 2] = [100, 20_000];
/// Commands under way when a script is first missed: four for each of two scripts, and some for the
/// connection that follows.
const HANDFUL: u64 = 16;

#[test]
fn decisions_go_on_within_two_seconds_after_a_killed_primary_is_replaced() {
    fails_over(Sentinels::kill_primary, RedisServer::restart);
}

#[test]
fn decisions_go_on_within_two_seconds_after_a_silent_primary_is_replaced() {
    fails_over(Sentinels::pause_primary, RedisServer::resume);
}

/// Nothing is down: the old primary goes on answering, but as a replica, which cannot write.
#[test]
fn a_planned_change_of_primary_is_followed_and_never_taken_for_a_wrong_setting() {
    let (sentinels, runtime) = (Sentinels::start(), runtime());
    let store = Arc::new(runtime.block_on(connect(&sentinels.url())));
    let load = Load::start(&runtime, 24, 1, move |_| {
        let store = Arc::clone(&store);
        async move { take(&store, &[("user", daily(BURSTS[1]), "user")]).await }
    });
    load.wait_for(500, [0]);
    let begun = Instant::now();
    let old = sentinels.primary();
    sentinels.sentinels()[0].command(&["SENTINEL", "FAILOVER", "mymaster"]);
    let is_replaced = || sentinels.primary().port() != old.port() && old.info("role") == "slave";
    wait_until("another is primary", TIMEOUT, is_replaced);
    let replaced = Instant::now();
    load.wait_for(500, [0]);
    let scripts = calls(old, "evalsha");
    load.wait_for(500, [0]);
    let answers = load.stop(&runtime);
    assert_eq!(calls(old, "evalsha"), scripts, "a replica decides nothing");
    for attempt in answers.iter().filter(|attempt| attempt.answer.is_err()) {
        let error = attempt.answer.as_ref().expect_err("only failures");
        assert!(error.is_outage(), "{error}");
        assert!(attempt.answered > begun && attempt.asked < replaced + RECOVERS, "{error}");
    }
    println!("replaced after {:?}, {:?}", replaced - begun, errors(answers.iter()));
}

/// A replica refuses to write. Behind sentinels that is an outage, not a wrong setting: they mend it.
#[test]
fn a_primary_that_became_a_replica_counts_as_away_until_there_is_another() {
    let (sentinels, runtime) = (Sentinels::start(), runtime());
    let store = Arc::new(runtime.block_on(connect(&sentinels.url())));
    let load = Load::start(&runtime, 8, 1, move |_| {
        let store = Arc::clone(&store);
        async move { take(&store, &[("user", daily(BURSTS[1]), "user")]).await }
    });
    load.wait_for(100, [0]);
    sentinels.sentinels().iter().for_each(RedisServer::pause);
    let [old, other, _] = sentinels.servers() else { panic!("a primary and two replicas") };
    other.command(&["REPLICAOF", "NO", "ONE"]);
    old.command(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    let refusals = || stat(old, "errorstats", "errorstat_READONLY:count=");
    wait_until("the replica refuses", TIMEOUT, || refusals() > 0);
    sentinels.sentinels().iter().for_each(RedisServer::resume);
    load.wait_for(100, [0]);
    let answers = load.stop(&runtime);
    for error in answers.iter().filter_map(|attempt| attempt.answer.as_ref().err()) {
        assert!(error.is_outage(), "{error}");
    }
    println!("{:?}", errors(answers.iter()));
    let refused = errors(answers.iter()).into_iter().any(|(error, _)| error.contains("READONLY"));
    assert!(refused, "the refusal is told as it is");
}

fn calls(server: &RedisServer, command: &str) -> u64 {
    stat(server, "commandstats", &format!("cmdstat_{command}:calls="))
}

fn fails_over(take_down: fn(&Sentinels) -> &RedisServer, bring_back: fn(&RedisServer)) {
    let (sentinels, runtime) = (Sentinels::start(), runtime());
    let store = Arc::new(runtime.block_on(connect(&sentinels.url())));
    let asked = Arc::clone(&store);
    let load = Load::start(&runtime, 24, BURSTS.len(), move |key| {
        let store = Arc::clone(&asked);
        async move { take(&store, &[("user", daily(BURSTS[key]), &format!("user:{key}"))]).await }
    });
    load.wait_for(1_500, 0..BURSTS.len());
    // A sentinel goes down with the primary, as it does where they share a machine.
    sentinels.sentinels()[0].pause();
    let down = Instant::now();
    let fallen = take_down(&sentinels);
    let promoted = down + sentinels.wait_for_promotion(TIMEOUT);
    load.wait_for(500, 0..BURSTS.len());
    sentinels.sentinels()[0].resume();
    bring_back(fallen);
    wait_until("it comes back as a replica", TIMEOUT, || fallen.info("role") == "slave");
    let scripts = calls(fallen, "evalsha");
    load.wait_for(500, 0..BURSTS.len());
    let answers = load.stop(&runtime);
    assert_eq!(calls(fallen, "evalsha"), scripts, "a replica decides nothing");
    let primary = sentinels.primary();

    for attempt in answers.iter().filter(|attempt| attempt.answer.is_err()) {
        let error = attempt.answer.as_ref().expect_err("only failures");
        assert!(error.is_outage(), "{error}");
        let during = attempt.answered > down && attempt.asked < promoted + RECOVERS;
        assert!(during, "{error} {:?} after the promotion", attempt.asked - promoted);
    }
    assert!(
        answers.iter().any(|attempt| attempt.answer.is_err()),
        "the outage must affect requests"
    );
    let recovered = answers
        .iter()
        .filter(|attempt| attempt.answer.is_ok() && attempt.asked > down + DEADLINE)
        .map(|attempt| attempt.answered.saturating_duration_since(promoted))
        .min();
    let recovered = recovered.expect("waited for it");
    assert!(recovered < RECOVERS, "{recovered:?} until the next decision");

    let missed = stat(primary, "errorstats", "errorstat_NOSCRIPT:count=");
    assert!((1..=HANDFUL).contains(&missed), "{missed} scripts were missed, none in a loop");
    for (key, burst) in BURSTS.into_iter().enumerate() {
        let admitted =
            answers.iter().filter(|attempt| attempt.what == key && attempt.is_admitted());
        let times: Vec<Instant> = admitted.map(|attempt| attempt.answered).collect();
        let (count, lost) = (times.len() as u64, lost(&answers, key, down));
        assert!(count <= burst + lost.min(burst), "{count} of {burst}, {lost} lost");
        assert!(key > 0 || count == burst, "key {key}: {count} of {burst}");
        let text = format!("user:{key}");
        let gone = runtime.block_on(consumed(&store, ("user", daily(burst), &text)));
        assert!(gone + lost >= count, "{count} admitted, {gone} remembered, {lost} lost");
    }
    let errors = errors(answers.iter());
    println!(
        "promoted after {:?}, decided {recovered:?} later, {missed} scripts sent whole; {} asked, \
         {errors:?}",
        promoted - down,
        answers.len()
    );
}

/// Units that the replica may not have heard of.
fn lost(answers: &[Answer], key: usize, down: Instant) -> u64 {
    let near = |at: Instant| at + LAG > down && at < down + DEADLINE;
    let lost = answers.iter().filter(|attempt| attempt.what == key && attempt.is_admitted());
    lost.filter(|attempt| near(attempt.answered)).count() as u64
}

/// A counter of a server, by what its line starts with.
fn stat(server: &RedisServer, section: &str, start: &str) -> u64 {
    let stats: String = from_redis_value(server.command(&["INFO", section])).expect("a text");
    let count = stats.lines().find_map(|line| line.strip_prefix(start)?.split(',').next());
    count.map_or(0, |count| count.trim().parse().expect("a count"))
}
