//! Everything tried once at the start, so that no request is the first to find out.

use std::fmt;

use redis::{Cmd, Value};
use tidegate_core::{Limit, Op, Rate, Span, Timestamp};

use super::lane::Lane;
use super::{RedisStore, StoreError};
use crate::key::{Key, Scope};
use crate::store::{Charge, Misconfigured, Store};

/// The oldest servers that have every command the scripts use.
const OLDEST: (u32, u32) = (6, 2);

/// Something that works, but should not stay as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where.
    pub server: String,
    /// What, and what to do about it.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.server, self.message)
    }
}

/// Looks at every server, then decides on every family alone and all together.
pub(super) async fn run(store: &RedisStore) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    for (lane, clustered) in store.routes.lanes() {
        findings.extend(inspect(&lane, clustered).await?);
    }
    for text in store.routes.probes(&store.namer, probe_scope()) {
        try_all(store, text.as_bytes()).await?;
    }
    Ok(findings)
}

async fn inspect(lane: &Lane, clustered: bool) -> Result<Option<Finding>, StoreError> {
    let connected = lane.link.connected().await?;
    let server = lane.link.address();
    let info = match lane.link.send(&connected, Cmd::new().arg("INFO")).await {
        Ok(Value::BulkString(info)) => String::from_utf8_lossy(&info).into_owned(),
        Ok(Value::VerbatimString { text, .. }) => text,
        Ok(other) => return Err(StoreError::protocol(format!("INFO answered {other:?}"))),
        Err(failure) => match failure.into_error() {
            StoreError::Misconfigured(Misconfigured::Permission, _) => {
                let message = "INFO is not permitted: version, role and eviction are not checked";
                return Ok(Some(Finding { server, message: message.into() }));
            }
            error => return Err(error),
        },
    };
    let field = |name: &str| {
        let value =
            |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned());
        info.lines().find_map(value).unwrap_or_default()
    };
    let wrong = |what, why: String| StoreError::misconfigured(what, format!("{server} {why}"));
    let version = field("redis_version");
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < OLDEST {
        return Err(wrong(Misconfigured::Version, format!("is version {version}")));
    }
    if field("role") == "slave" {
        return Err(wrong(Misconfigured::ReadOnly, "is a replica".into()));
    }
    if !clustered && field("cluster_enabled") == "1" {
        return Err(wrong(Misconfigured::CrossSlot, "is part of a cluster".into()));
    }
    let policy = field("maxmemory_policy");
    if field("maxmemory") != "0" && policy != "noeviction" && policy != "volatile-ttl" {
        let message = format!(
            "maxmemory-policy is {policy}: a key that is evicted has its whole budget again; use \
             noeviction or volatile-ttl"
        );
        return Ok(Some(Finding { server, message }));
    }
    Ok(None)
}

fn probe_scope() -> Scope {
    Scope::new("self-test", &limits()[0])
}

fn limits() -> [Limit; 5] {
    let rate = Rate::per_minute(1_000);
    let built = |builder: tidegate_core::Builder| builder.build().expect("plain numbers");
    [
        built(Limit::token_bucket(rate)),
        built(Limit::fixed_window(rate)),
        built(Limit::sliding_window(rate)),
        built(Limit::sliding_log(rate)),
        Limit::in_flight(1_000, Span::from_secs(1)).expect("plain numbers"),
    ]
}

async fn try_all(store: &RedisStore, text: &[u8]) -> Result<(), StoreError> {
    let limits = limits();
    let mut decisions = Vec::new();
    let charge = |limit, op| {
        let key = Key::new(Scope::new("self-test", limit), text).tagged(text);
        Charge { key, limit, op }
    };
    for limit in &limits {
        store.decide(Timestamp::EPOCH, &[charge(limit, Op::Take(1))], &mut decisions).await?;
    }
    let together: Vec<Charge<'_>> = limits.iter().map(|limit| charge(limit, Op::Take(1))).collect();
    store.decide(Timestamp::EPOCH, &together, &mut decisions).await?;
    for limit in &limits {
        store.decide(Timestamp::EPOCH, &[charge(limit, Op::Reset)], &mut decisions).await?;
    }
    Ok(())
}
