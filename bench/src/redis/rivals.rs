//! The peers of Tidegate's Redis store, each with as little overhead as possible.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use ::redis::aio::MultiplexedConnection;
use ::redis::io::tcp::TcpSettings;
use ::redis::{Client, Cmd, IntoConnectionInfo, Value};

use super::contender::{Contender, Trouble};
use crate::candidate::LimitNumbers;

pub async fn connect(url: &str) -> Result<MultiplexedConnection, Trouble> {
    let info = url.into_connection_info().map_err(Trouble::of)?;
    let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
    let client = Client::open(info).map_err(Trouble::of)?;
    client.get_multiplexed_async_connection().await.map_err(Trouble::of)
}

/// Counts, and allows everything.
#[derive(Clone)]
pub struct Incr(MultiplexedConnection);

impl Incr {
    pub async fn new(url: &str) -> Result<Self, Trouble> {
        Ok(Self(connect(url).await?))
    }
}

impl Contender for Incr {
    const COMMANDS: &'static [&'static str] = &["incr"];

    async fn decide(&mut self, key: &str) -> Result<bool, Trouble> {
        let mut command = Cmd::new();
        command.arg("INCR").arg(key);
        let count: u64 = command.query_async(&mut self.0).await.map_err(Trouble::of)?;
        Ok(count > 0)
    }
}

/// The bare `EVALSHA` loop.
#[derive(Clone)]
pub struct Script {
    connection: MultiplexedConnection,
    hash: Arc<str>,
    interval: u64,
    most: u64,
}

impl Script {
    pub async fn new(url: &str, terms: LimitNumbers) -> Result<Self, Trouble> {
        let mut connection = connect(url).await?;
        let mut load = Cmd::new();
        load.arg("SCRIPT").arg("LOAD").arg(include_str!("gcra.lua"));
        let hash: String = load.query_async(&mut connection).await.map_err(Trouble::of)?;
        let (interval, most) = micros(terms);
        Ok(Self { connection, hash: hash.into(), interval, most })
    }
}

impl Contender for Script {
    const COMMANDS: &'static [&'static str] = &["evalsha"];

    async fn decide(&mut self, key: &str) -> Result<bool, Trouble> {
        let mut command = Cmd::new();
        command.arg("EVALSHA").arg(&*self.hash).arg(1).arg(key);
        command.arg(self.interval).arg(self.most).arg(1);
        let answered = command.query_async(&mut self.connection).await;
        let (allowed, remaining, retry, reset): (u8, u64, u64, u64) =
            answered.map_err(Trouble::of)?;
        std::hint::black_box((remaining, retry, reset));
        Ok(allowed == 1)
    }
}

/// The same decision in the client, restarted if the key was changed meanwhile. A watch belongs to
/// a connection, so every caller has its own.
pub struct Watch {
    url: Arc<str>,
    connection: Option<MultiplexedConnection>,
    interval: u64,
    most: u64,
    retries: Arc<AtomicU64>,
}

impl Clone for Watch {
    fn clone(&self) -> Self {
        let (url, retries) = (Arc::clone(&self.url), Arc::clone(&self.retries));
        Self { url, connection: None, interval: self.interval, most: self.most, retries }
    }
}

impl Watch {
    pub fn new(url: &str, terms: LimitNumbers) -> Self {
        let (interval, most) = micros(terms);
        Self { url: url.into(), connection: None, interval, most, retries: Arc::default() }
    }
}

impl Contender for Watch {
    const COMMANDS: &'static [&'static str] = &["watch", "get", "multi", "set", "exec", "unwatch"];

    async fn decide(&mut self, key: &str) -> Result<bool, Trouble> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            none => none.insert(connect(&self.url).await?),
        };
        loop {
            let mut pipeline = ::redis::pipe();
            pipeline.cmd("WATCH").arg(key).ignore().cmd("GET").arg(key);
            let (full,): (Option<u64>,) =
                pipeline.query_async(connection).await.map_err(Trouble::of)?;
            let now = now();
            let full = full.unwrap_or(0).max(now);
            let used = full + self.interval - now;
            if used > self.most {
                let mut unwatch = Cmd::new();
                unwatch.arg("UNWATCH");
                let _: Value = unwatch.query_async(connection).await.map_err(Trouble::of)?;
                return Ok(false);
            }
            let mut pipeline = ::redis::pipe();
            pipeline.atomic().cmd("SET").arg(key).arg(full + self.interval);
            pipeline.arg("PX").arg(used.div_ceil(1_000)).ignore();
            let done: Option<()> = pipeline.query_async(connection).await.map_err(Trouble::of)?;
            if done.is_some() {
                return Ok(true);
            }
            self.retries.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn retries(&self) -> u64 {
        self.retries.load(Ordering::Relaxed)
    }
}

/// `CL.THROTTLE` of the module redis-cell.
#[derive(Clone)]
pub struct Module {
    connection: MultiplexedConnection,
    /// One less than all units.
    burst: u32,
    period: u64,
}

impl Module {
    pub async fn new(url: &str, terms: LimitNumbers) -> Result<Self, Trouble> {
        let (burst, period) = (terms.burst - 1, terms.interval.as_secs());
        Ok(Self { connection: connect(url).await?, burst, period })
    }
}

impl Contender for Module {
    const COMMANDS: &'static [&'static str] = &["cl.throttle"];

    async fn decide(&mut self, key: &str) -> Result<bool, Trouble> {
        let mut command = Cmd::new();
        command.arg("CL.THROTTLE").arg(key).arg(self.burst).arg(1).arg(self.period);
        let answered = command.query_async(&mut self.connection).await;
        let (limited, limit, remaining, retry, reset): (u8, i64, i64, i64, i64) =
            answered.map_err(Trouble::of)?;
        std::hint::black_box((limit, remaining, retry, reset));
        Ok(limited == 0)
    }
}

/// Microseconds of one unit and of all.
fn micros(terms: LimitNumbers) -> (u64, u64) {
    let interval = terms.interval.as_secs() * 1_000_000;
    (interval, interval * u64::from(terms.burst))
}

/// The client's clock: without a script, asking the server's takes a command more.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_micros()).unwrap_or(u64::MAX)
}
