//! A state lives as long as it matters, and hardly longer.

use redis::{Cmd, Connection};
use tidegate::{Limit, Op, Rate, Span};
use tidegate_tests::servers::RedisServer;

use crate::client::{Client, config};

const SAMPLES: usize = 200;
/// The server may be interrupted between noting when a script began and telling it the time.
const MAY_BE_OFF: usize = SAMPLES / 10;
/// A millisecond to round up, one of slack, and one for good measure.
const ROUNDING: u64 = 3_000;

/// No key lives for ever.
pub(crate) fn every_key_expires(server: &RedisServer) {
    let mut connection = server.connection();
    for key in keys(&mut connection, "*") {
        let left: i64 = query(&mut connection, Cmd::new().arg("PTTL").arg(&key));
        // -2: it has expired since.
        assert!(left > 0 || left == -2, "{key}: {left}");
    }
}

fn keys(connection: &mut Connection, pattern: &str) -> Vec<String> {
    query(connection, Cmd::new().arg("KEYS").arg(pattern))
}

fn query<T: redis::FromRedisValue>(connection: &mut Connection, command: &Cmd) -> T {
    command.query(connection).expect("a sound server")
}

/// When the state stops to matter, in microseconds, as the key's own value tells.
fn matters_until(connection: &mut Connection, key: &str, limit: &Limit) -> u64 {
    let first = |kept: String| kept.split(':').next().map(str::parse).expect("a number");
    match limit {
        Limit::SlidingLog(log) => {
            let newest: String = query(connection, Cmd::new().arg("LINDEX").arg(key).arg(-1));
            first(newest).expect("a number") + log.length().as_micros()
        }
        Limit::InFlight(_) => {
            let command = "ZREVRANGE";
            let newest: (String, f64) =
                query(connection, Cmd::new().arg(command).arg(key).arg(0).arg(0).arg("WITHSCORES"));
            newest.1 as u64
        }
        Limit::SlidingWindow(window) => {
            // What was taken in this window still weighs in the next.
            let kept: String = query(connection, Cmd::new().arg("GET").arg(key));
            first(kept).expect("a number") + window.length().as_micros()
        }
        _ => {
            let kept: String = query(connection, Cmd::new().arg("GET").arg(key));
            first(kept).expect("a number")
        }
    }
}

/// Rounding down would forget a state a moment before it stops to matter.
#[test]
fn a_key_expires_when_its_state_stops_to_matter_and_not_before() {
    let server = RedisServer::start();
    let client = Client::connect(config(&server.url())).expect("a sound server");
    let mut connection = server.connection();
    let rate = Rate::new(7_001, Span::from_micros(90_000_001));
    let built = |builder: tidegate_core::Builder| builder.build().expect("valid numbers");
    for limit in [
        built(Limit::token_bucket(rate)),
        built(Limit::fixed_window(rate)),
        built(Limit::sliding_window(rate)),
        built(Limit::sliding_log(rate)),
        Limit::in_flight(7_001, Span::from_micros(90_000_001)).expect("valid numbers"),
    ] {
        let (mut early, mut late) = (0, 0);
        for sample in 0..SAMPLES {
            client.ask(&limit, &format!("key:{sample}"), Op::Take(sample as u64 + 1)).unwrap();
            let names = keys(&mut connection, &format!("*{{key:{sample}}}"));
            let key = names.first().expect("it was written");
            let matters = matters_until(&mut connection, key, &limit);
            let expires: u64 = query(&mut connection, Cmd::new().arg("PEXPIRETIME").arg(key));
            early += usize::from(expires * 1_000 < matters);
            late += usize::from(expires * 1_000 > matters + ROUNDING);
        }
        assert!(early < MAY_BE_OFF, "{limit:?}: {early} of {SAMPLES} would be forgotten too early");
        assert!(late < MAY_BE_OFF, "{limit:?}: {late} of {SAMPLES} are kept for too long");
        server.command(&["FLUSHALL"]);
    }
}
