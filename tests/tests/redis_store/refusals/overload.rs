//! More requests than may be under way are refused at once; nothing piles up.

use std::time::Duration;

use futures_util::future::join_all;
use tidegate::Op;
use tidegate::store::StoreError;
use tidegate_tests::servers::{RedisServer, wait_until};
use tokio::time::timeout;

use crate::client::{Client, LIMIT, UNITS, ask, config, limits};

const ROOM: usize = 100;
const REQUESTS: usize = 10_000;
const DEADLINE: Duration = Duration::from_millis(100);

/// F2: the server hangs while many ask.
#[test]
fn a_hanging_server_keeps_no_more_waiting_than_there_is_room_for() {
    let server = RedisServer::start();
    let config = config(&server.url()).deadline(DEADLINE).max_in_flight(ROOM);
    let client = Client::connect(config).expect("a sound server");
    let limit = limits()[0];
    server.pause();
    let before = resident();
    let counts = client.runtime.block_on(async {
        let texts: Vec<String> = (0..REQUESTS).map(|n| n.to_string()).collect();
        let asked = texts.iter().map(|text| ask(&client.store, &limit, text, Op::Take(1)));
        let found = timeout(DEADLINE * 50, join_all(asked)).await.expect("no request hangs");
        let count =
            |error: StoreError| found.iter().filter(|found| found.as_ref() == Err(&error)).count();
        (count(StoreError::Overloaded), count(StoreError::Timeout))
    });
    assert_eq!(counts, (REQUESTS - ROOM, ROOM));
    // Later requests are told as much, each within its deadline.
    for _ in 0..10 {
        let later = client.take("more").expect_err("the server hangs");
        assert!(later.is_outage(), "{later}");
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 20 << 20, "{grown} bytes");
    server.resume();
    let mut number = 0;
    wait_until("the store decides again", LIMIT, || {
        number += 1;
        client.take(&format!("again:{number}")).is_ok()
    });
    // All the room is free again, as soon as the last of those who gave up has been answered.
    let texts: Vec<String> = (0..ROOM).map(|n| format!("after:{n}")).collect();
    wait_until("all the room is free", LIMIT, || {
        client.runtime.block_on(async {
            let asked = texts.iter().map(|text| ask(&client.store, &limit, text, Op::Take(1)));
            let found = join_all(asked).await;
            found.iter().all(|found| *found != Err(StoreError::Overloaded))
        })
    });
}

/// Places that cannot be given back because all the room is taken would keep it taken.
#[test]
fn returns_pass_when_the_queue_is_full() {
    let server = RedisServer::start();
    let config = config(&server.url()).deadline(LIMIT).max_in_flight(ROOM).connect_timeout(LIMIT);
    let client = Client::connect(config).expect("a sound server");
    let [bucket, .., in_flight] = limits();
    let lease = client.ask(&in_flight, "place", Op::Take(1)).expect("room").lease.expect("a place");
    server.pause();
    let texts: Vec<String> = (0..2 * ROOM).map(|n| n.to_string()).collect();
    client.runtime.block_on(async {
        let takes = texts.iter().map(|text| ask(&client.store, &bucket, text, Op::Take(1)));
        let returns = texts.iter().map(|text| ask(&client.store, &bucket, text, Op::Return(1)));
        let release = ask(&client.store, &in_flight, "place", Op::Release(lease));
        // Not before all have asked, however many of them get their turn at a time.
        let resume = async {
            for _ in &texts {
                tokio::task::yield_now().await;
            }
            server.resume();
        };
        // In this order: the room is full of takes when the first comes that gives back.
        let (takes, release, returns, ()) =
            tokio::join!(join_all(takes), release, join_all(returns), resume);
        let refused = |found: &[Result<_, StoreError>]| {
            assert!(found.iter().all(|found| matches!(found, Ok(_) | Err(StoreError::Overloaded))));
            found.iter().filter(|found| found.is_err()).count()
        };
        // The first lease's answer may be here before its share of the room is free again.
        let refused_takes = refused(&takes);
        assert!((ROOM..=ROOM + 1).contains(&refused_takes), "{refused_takes}");
        release.expect("it gives back");
        assert_eq!(refused(&returns), ROOM + 1, "that is bounded too");
    });
    let held = client.ask(&in_flight, "place", Op::Read(0)).expect("room");
    assert_eq!(held.remaining, UNITS, "the place is free");
}

/// A release is carried out even if its caller has given up.
#[test]
fn a_release_that_no_caller_waits_for_still_frees_the_place() {
    let server = RedisServer::start();
    let config = config(&server.url()).deadline(DEADLINE).connect_timeout(LIMIT);
    let client = Client::connect(config).expect("a sound server");
    let [bucket, .., in_flight] = limits();
    let lease = client.ask(&in_flight, "place", Op::Take(1)).expect("room").lease.expect("a place");
    server.pause();
    client.runtime.block_on(async {
        // More than are sent at once, so that the release is still queued when its time is up.
        let texts: Vec<String> = (0..1_000).map(|n| n.to_string()).collect();
        let takes = texts.iter().map(|text| ask(&client.store, &bucket, text, Op::Take(1)));
        let release = ask(&client.store, &in_flight, "place", Op::Release(lease));
        let (_, released) = tokio::join!(join_all(takes), release);
        assert_eq!(released, Err(StoreError::Timeout));
    });
    server.resume();
    wait_until("the place is free", LIMIT, || {
        let held = client.ask(&in_flight, "place", Op::Read(0));
        held.is_ok_and(|held| held.remaining == UNITS)
    });
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    let pages = status.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a number of pages") * rustix::param::page_size() as u64
}
