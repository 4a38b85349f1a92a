//! A node in a separate process, which tests kill and stop at random.
//!
//! It sends requests for one key at a constant rate and prints every admitted request with its times.
//!
//! ```text
//! chaos_node URL RULES RATE
//! ```
//!
//! It prints `ready` once connected and begins after a line. It ends gracefully with its input, and
//! then prints the number of requests.

use std::io::{BufRead, stdin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::{MissedTickBehavior, interval};

use super::node::{Asker, Node, Setup};
use crate::history::Event;

/// The key of the one rule.
pub(crate) const KEY: &str = "shared";
/// Time between two bursts of requests.
const TICK: Duration = Duration::from_millis(2);

/// Works until its input ends.
///
/// # Panics
/// If an argument is missing, or the store is unavailable at the start.
pub fn run() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, rules, rate] = &arguments[..] else { panic!("URL, RULES and RATE") };
    let rate: u32 = rate.parse().expect("a number");
    let deadline = Duration::from_millis(250);
    let node = Node::start(Setup { url, rules, deadline, nodes: 8 });
    println!("ready");
    let mut lines = stdin().lock().lines();
    let _ = lines.next();
    let (stops, asked) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let asking = node.spend(rate, (&stops, &asked));
    while lines.next().is_some_and(|line| line.is_ok()) {}
    stops.store(true, Ordering::Relaxed);
    asking();
    node.give_back();
    println!("asked {}", asked.load(Ordering::Relaxed));
}

#[expect(clippy::disallowed_methods, reason = "compared with the clock of other processes")]
fn wall_clock() -> u64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(passed.as_micros()).expect("before the year 500000")
}

/// Sends one request, and prints it if it was admitted.
async fn spend_one(asks: Asker) {
    let invoked = wall_clock();
    if asks.ask(KEY, "all").await.is_allowed() {
        let returned = wall_clock();
        println!("{}", Event { invoked, returned, cost: 1, allowed: true });
    }
}

impl Node {
    /// Sends this many requests per second for one key until told to stop; the returned task waits
    /// for the end.
    fn spend(
        &self,
        rate: u32,
        (stops, asked): (&Arc<AtomicBool>, &Arc<AtomicU64>),
    ) -> impl FnOnce() + '_ {
        let (stops, asked, asks) = (Arc::clone(stops), Arc::clone(asked), self.asker());
        let work = self.spawn(async move {
            let apart = TICK.max(Duration::from_secs(1) / rate.max(1));
            let per_tick = (f64::from(rate) * apart.as_secs_f64()).round() as u64;
            let mut tick = interval(apart);
            // A process that was stopped does not make up for missed requests.
            tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
            while !stops.load(Ordering::Relaxed) {
                tick.tick().await;
                asked.fetch_add(per_tick, Ordering::Relaxed);
                for _ in 0..per_tick {
                    tokio::spawn(spend_one(asks.clone()));
                }
            }
        });
        move || {
            while !work.is_finished() {
                thread::park_timeout(Duration::from_millis(5));
            }
        }
    }
}
