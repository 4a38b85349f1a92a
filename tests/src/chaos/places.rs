//! F9: the holder of in-flight leases is killed.

use std::time::Duration;

use tidegate::Scope;
use tokio::time::Instant;

use super::figure::Figure;
use super::node::{TIMEOUT, let_pass};
use super::pace::Pace;
use crate::clients::{self, Client};
use crate::servers::{RedisServer, our_program};

const PLACES: u64 = 100;
/// Reads the server's time and counts leases that have not expired, in one step.
const COUNT: &str = "local time = redis.call('TIME')
    local now = string.format('(%.0f', time[1] * 1000000 + time[2])
    return redis.call('ZCOUNT', KEYS[1], now, '+inf')";

/// F9: a killed process that holds a hundred places.
pub(crate) fn holder_dies(pace: &Pace) -> Vec<Figure> {
    let (server, program) = (RedisServer::start(), our_program("redis_client"));
    let limit = format!("in_flight:{PLACES}:{}", pace.lease.as_micros());
    let key = format!("tg:{}:{{job}}", Scope::new(&limit, &clients::limit(&limit)));
    let in_use = || -> u64 {
        let count = server.command(&["EVAL", COUNT, "1", &key]);
        redis::from_redis_value(count).expect("a count")
    };
    let (url, limit, places) = (server.url(), format!("limit={limit}"), format!("places={PLACES}"));
    let program = program.display().to_string();
    let mut holder = Client::start(&program, &["hold", &url, &limit, "key=job", &places]);
    holder.say("take");
    let mut most = holder.number("held");
    // Long enough for leases to be renewed.
    let start = Instant::now();
    while start.elapsed() < pace.lease * 3 / 2 {
        most = most.max(in_use());
        let_pass(Duration::from_millis(10));
    }
    let kept = in_use();
    holder.kill();
    let killed = Instant::now();
    while in_use() > 0 {
        assert!(killed.elapsed() < TIMEOUT, "places are never given back");
        let_pass(Duration::from_millis(5));
    }
    let half = Duration::from_millis(500);
    let behaviour = format!("all {PLACES} leases free, from its death: lease time + 0.5 s");
    vec![
        Figure::time(behaviour, killed.elapsed(), pace.lease + half),
        Figure::count("leases in use, at most", most, PLACES),
        Figure::count("leases that a live holder keeps", kept, PLACES).at_least(),
    ]
}
