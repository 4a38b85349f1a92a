//! More requests than may be under way are refused at once; nothing piles up.

use std::time::Duration;

use futures_util::future::join_all;
use tidegate::Op;
use tidegate::store::StoreError;
use tidegate_tests::servers::{RedisServer, wait_until};
use tokio::time::timeout;

use crate::client::{Client, LIMIT, ask, config, limits};

const ROOM: usize = 100;
const REQUESTS: usize = 10_000;
const DEADLINE: Duration = Duration::from_millis(100);

/// F2: the server hangs while many ask.
#[test]
fn a_hanging_server_keeps_no_more_waiting_than_there_is_room_for() {
    let server = RedisServer::start();
    // Longer than the test: nothing is given up because of silence.
    let config =
        config(&server.url()).deadline(DEADLINE).max_in_flight(ROOM).connect_timeout(LIMIT);
    let client = Client::connect(config).expect("a sound server");
    let limit = limits()[0];
    server.pause();
    let before = resident();
    let counts = client.runtime.block_on(async {
        let texts: Vec<String> = (0..REQUESTS).map(|n| n.to_string()).collect();
        let asked = texts.iter().map(|text| ask(&client.store, &limit, text, Op::Take(1)));
        let found = timeout(DEADLINE * 50, join_all(asked)).await.expect("nobody hangs");
        let count =
            |error: StoreError| found.iter().filter(|found| found.as_ref() == Err(&error)).count();
        (count(StoreError::Overloaded), count(StoreError::Timeout))
    });
    assert_eq!(counts, (REQUESTS - ROOM, ROOM));
    // Those that gave up still hold their room, so nobody queues behind them.
    for _ in 0..100 {
        assert_eq!(client.take("more"), Err(StoreError::Overloaded));
    }
    let grown = resident().saturating_sub(before);
    assert!(grown < 20 << 20, "{grown} bytes");
    server.resume();
    let mut number = 0;
    wait_until("the store decides again", LIMIT, || {
        number += 1;
        client.take(&format!("again:{number}")).is_ok()
    });
    // All the room is free again.
    client.runtime.block_on(async {
        let texts: Vec<String> = (0..ROOM).map(|n| format!("after:{n}")).collect();
        let asked = texts.iter().map(|text| ask(&client.store, &limit, text, Op::Take(1)));
        let found = join_all(asked).await;
        let refused = found.iter().filter(|found| **found == Err(StoreError::Overloaded));
        assert_eq!(refused.count(), 0);
    });
}

/// Bytes of this process in memory.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/statm").expect("Linux tells");
    let pages = status.split(' ').nth(1).and_then(|pages| pages.parse::<u64>().ok());
    pages.expect("a number of pages") * rustix::param::page_size() as u64
}
