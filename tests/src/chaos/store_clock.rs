//! F8: the clock of the store is set.

use std::time::Duration;

use tokio::time::Instant;

use super::figure::Figure;
use super::node::{Node, Setup, TIMEOUT, let_pass};
use super::pace::Pace;
use crate::servers::RedisServer;

const RULES: &str = "
  - {key: bucket, rate: 10/2s, burst: 10, on_store_failure: deny}
  - {key: window, rate: 10/2s, algorithm: fixed_window, on_store_failure: deny}
";
const UNITS: u64 = 10;
/// A full refill, and the length of the window.
const REFILL: Duration = Duration::from_secs(2);
const HOUR: i64 = 3_600;

fn drain(node: &Node, key: &str) -> u64 {
    let mut taken = 0;
    while node.check(key, "all").is_allowed() {
        taken += 1;
    }
    taken
}

/// F8: an hour ahead and an hour back, under an exhausted key.
pub(crate) fn steps(pace: &Pace) -> Vec<Figure> {
    let server = RedisServer::builder().faketime().start();
    // faketime is slow, so the deadline is long; it is not measured here.
    let (url, deadline) = (server.url(), pace.deadline.max(Duration::from_millis(250)));
    let node = Node::start(Setup { url: &url, rules: RULES, deadline, nodes: 1 });
    let mut figures = Vec::new();
    for (key, name) in [("bucket", "a bucket"), ("window", "a fixed window")] {
        let (mut extra, mut locked) = (0, Duration::ZERO);
        for seconds in [HOUR, -HOUR] {
            drain(&node, key);
            server.step_clock(seconds);
            let (stepped, first) = (Instant::now(), window(&server));
            // A denial is repeated for a moment, so the effect of the step shows only after that.
            let mut taken = drain(&node, key);
            let drained = Instant::now();
            while !node.check(key, "all").is_allowed() {
                assert!(drained.elapsed() < TIMEOUT, "{name} is locked out");
                let_pass(Duration::from_millis(1));
            }
            locked = locked.max(drained.elapsed());
            taken += 1 + drain(&node, key);
            // Units refilled in the meantime are not extra.
            let given = match key {
                "window" => UNITS * (window(&server) - first),
                _ => refilled(stepped.elapsed()),
            };
            extra = extra.max(taken.saturating_sub(given));
        }
        // A window that the clock has left keeps counting until its end, and one window more.
        let most = if key == "window" { 2 * REFILL } else { REFILL };
        figures.push(Figure::count(
            format!("{name} of 10: admitted in addition, once"),
            extra,
            UNITS,
        ));
        figures.push(Figure::time(format!("{name}: locked out for"), locked, most));
    }
    figures
}

/// Units that a bucket refills in this time.
fn refilled(time: Duration) -> u64 {
    (time.as_secs_f64() / REFILL.as_secs_f64() * UNITS as f64).ceil() as u64
}

/// The number of the current window by the store's clock.
fn window(server: &RedisServer) -> u64 {
    let time = server.command(&["TIME"]);
    let (seconds, _): (u64, u64) = redis::from_redis_value(time).expect("two numbers");
    seconds / REFILL.as_secs()
}
