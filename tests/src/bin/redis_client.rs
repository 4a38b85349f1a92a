//! One of several processes that share limits. Tests start it, control it by its input and output,
//! and kill it. It prints `ready` once connected and waits for a line; it ends with its input.
//!
//! ```text
//! redis_client WORK URL name=value…
//! ```

use std::collections::HashMap;
use std::io::BufRead;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::Commands;
use tidegate::store::redis::{RedisConfig, RedisStore};
use tidegate::{Limiter, Permit, SharedLimiter};
use tidegate_tests::clients;
use tidegate_tests::history::Event;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::sleep;

/// Pause after an error, so that an unavailable store is not called continuously.
const PAUSE: Duration = Duration::from_millis(2);

type Input = mpsc::UnboundedReceiver<String>;
type Shared = SharedLimiter<RedisStore>;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let work = arguments.next().expect("what to do");
    let url = arguments.next().expect("where to do it");
    let order: HashMap<String, String> = arguments
        .map(|argument| {
            let (name, value) = argument.split_once('=').expect("name=value");
            (name.to_owned(), value.to_owned())
        })
        .collect();
    let client = Client { url, order };
    match &*work {
        "naive" => client.naive(),
        "tries" => client.tries(&mut input()).await,
        "record" => client.record(&mut input()).await,
        "load" => client.load(&mut input()).await,
        "hold" => client.hold(&mut input()).await,
        other => panic!("{other} is nothing it can do"),
    }
}

/// Lines of the input, from a thread that may wait for them.
fn input() -> Input {
    let (heard, input) = mpsc::unbounded_channel();
    thread::spawn(move || {
        for line in std::io::stdin().lock().lines() {
            if line.is_err() || line.is_ok_and(|line| heard.send(line).is_err()) {
                return;
            }
        }
    });
    input
}

#[expect(clippy::disallowed_methods, reason = "compared with the clock of a server")]
fn wall_clock() -> u64 {
    let passed = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    u64::try_from(passed.as_micros()).expect("before the year 500000")
}

struct Client {
    url: String,
    order: HashMap<String, String>,
}

impl Client {
    fn text(&self, name: &str) -> &str {
        self.order.get(name).unwrap_or_else(|| panic!("{name} is missing"))
    }

    fn number(&self, name: &str) -> u64 {
        self.text(name).parse().expect("a number")
    }

    async fn limiter(&self, limit: &str) -> Shared {
        let config = RedisConfig::new(&self.url)
            .expect("a valid address")
            .deadline(Duration::from_secs(10))
            .connect_timeout(Duration::from_secs(10))
            .settles_after(Duration::ZERO);
        let store = RedisStore::connect(config).await.expect("a server that is up");
        // The name contains the numbers, so that limits of one family do not share a state.
        let limiter = Limiter::builder().limit(limit, clients::limit(limit)).shared(store);
        limiter.expect("one limit")
    }

    /// Sends this many requests, and prints the number admitted and the units left after each.
    async fn tries(&self, input: &mut Input) {
        let limiter = self.limiter(self.text("limit")).await;
        println!("ready");
        input.recv().await;
        let tries = self.number("tries") / self.number("tasks");
        let (mut tasks, mut admitted) = (JoinSet::new(), Vec::new());
        for _ in 0..self.number("tasks") {
            let (limiter, key) = (limiter.clone(), self.text("key").to_owned());
            tasks.spawn(async move {
                let mut left = Vec::new();
                for _ in 0..tries {
                    let verdict = limiter.check(&key).await.expect("the store is up");
                    if verdict.is_allowed() {
                        left.push(verdict.remaining());
                    }
                }
                left
            });
        }
        while let Some(left) = tasks.join_next().await {
            admitted.extend(left.expect("a task that ends"));
        }
        for left in admitted {
            println!("left {left}");
        }
    }

    /// The classic race: reads the count, and increments it if there is room.
    fn naive(&self) {
        let limit = self.number("limit");
        let (client, key) = (redis::Client::open(&*self.url).expect("an address"), "naive");
        let connections = (0..self.number("tasks")).map(|_| client.get_connection());
        let connections: Vec<_> = connections.map(|it| it.expect("a server that is up")).collect();
        println!("ready");
        std::io::stdin().read_line(&mut String::new()).expect("a line");
        let tries = self.number("tries") / self.number("tasks");
        let clients = connections.into_iter().map(|mut connection| {
            thread::spawn(move || {
                let mut admitted = 0;
                for _ in 0..tries {
                    let count: Option<u64> = connection.get(key).expect("a count");
                    if count.unwrap_or(0) < limit {
                        let _: u64 = connection.incr(key, 1).expect("a count");
                        admitted += 1;
                    }
                }
                admitted
            })
        });
        let clients: Vec<_> = clients.collect();
        let admitted: u64 = clients.into_iter().map(|it| it.join().expect("a thread")).sum();
        println!("admitted {admitted}");
    }

    /// Sends requests for this long, and prints each with its times.
    async fn record(&self, input: &mut Input) {
        let limiter = self.limiter(self.text("limit")).await;
        println!("ready");
        input.recv().await;
        let (mut tasks, until) = (JoinSet::new(), wall_clock() + self.number("micros"));
        for _ in 0..self.number("tasks") {
            let (limiter, key) = (limiter.clone(), self.text("key").to_owned());
            tasks.spawn(async move {
                let mut events = Vec::new();
                while wall_clock() < until {
                    let (cost, invoked) = (fastrand::u64(1..=3), wall_clock());
                    let verdict = limiter.check_cost(&key, cost).await.expect("the store is up");
                    let (allowed, returned) = (verdict.is_allowed(), wall_clock());
                    events.push(Event { invoked, returned, cost, allowed });
                    sleep(Duration::from_micros(fastrand::u64(0..8_000))).await;
                }
                events
            });
        }
        while let Some(events) = tasks.join_next().await {
            events.expect("a task that ends").iter().for_each(|event| println!("{event}"));
        }
    }

    /// Takes units under every limit without end, and prints each admission at once.
    async fn load(&self, input: &mut Input) {
        let mut limiters = Vec::new();
        for limit in self.text("limits").split(',') {
            limiters.push(self.limiter(limit).await);
        }
        println!("ready");
        input.recv().await;
        let (limiters, keys) = (Arc::new(limiters), self.number("keys"));
        let (failed, mut tasks) = (Arc::new(AtomicU64::new(0)), JoinSet::new());
        for _ in 0..self.number("tasks") {
            let (limiters, failed) = (Arc::clone(&limiters), Arc::clone(&failed));
            tasks.spawn(async move {
                loop {
                    let limit = fastrand::usize(..limiters.len());
                    let (key, cost) = (fastrand::u64(..keys), fastrand::u64(1..=3));
                    match limiters[limit].check_cost(format!("key:{key}"), cost).await {
                        Ok(verdict) if verdict.is_allowed() => {
                            println!("admitted {limit} {key} {cost}");
                        }
                        Ok(_) => {}
                        Err(_) => {
                            failed.fetch_add(1, Ordering::Relaxed);
                            sleep(PAUSE).await;
                        }
                    }
                }
            });
        }
        while input.recv().await.is_some() {}
        tasks.shutdown().await;
        println!("failed {}", failed.load(Ordering::Relaxed));
    }

    /// Takes places and holds them until a line asks to release them.
    async fn hold(&self, input: &mut Input) {
        let limiter = self.limiter(self.text("limit")).await;
        println!("ready");
        let mut permits: Vec<Permit> = Vec::new();
        while let Some(line) = input.recv().await {
            match &*line {
                "take" => {
                    for _ in 0..self.number("places") {
                        let admission = limiter.acquire(self.text("key")).await;
                        permits.extend(admission.expect("the store is up").permit());
                    }
                    println!("held {}", permits.len());
                }
                "lost" => {
                    println!("lost {}", permits.iter().filter(|permit| permit.is_lost()).count());
                }
                "release" => {
                    for permit in permits.drain(..) {
                        permit.release().await.expect("the store is up");
                    }
                    println!("released");
                }
                "drop" => {
                    permits.clear();
                    println!("dropped");
                }
                other => panic!("{other} is nothing it can do"),
            }
        }
        // The tests need a process that dies with its places, so nothing is released.
        permits.into_iter().for_each(std::mem::forget);
    }
}
