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

/// Looks at every server, then has each carry out every command that a script may ever need.
pub(super) async fn run(store: &RedisStore, now: Timestamp) -> Result<Vec<Finding>, StoreError> {
    let mut findings = Vec::new();
    for (lane, clustered) in store.routes.lanes() {
        findings.extend(inspect(&lane, clustered).await?);
    }
    try_apart(store, now).await?;
    for text in store.routes.probes(&store.namer, probe_scope()) {
        try_all(store, now, &limits(Rate::per_minute(1_000)), text.as_bytes()).await?;
        if store.config.per_second.is_some() {
            try_all(store, now, &limits(Rate::per_second(1_000)), text.as_bytes()).await?;
        }
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
    let finding = judge(&server, &info, clustered)?;
    // Scripts that the server knows today it may have forgotten tomorrow.
    let whole = lane.link.send(&connected, Cmd::new().arg("EVAL").arg("return 0").arg(0)).await;
    whole.map_err(super::failure::Failure::into_error).map(|_| finding)
}

/// What `INFO` says against a server.
fn judge(server: &str, info: &str, clustered: bool) -> Result<Option<Finding>, StoreError> {
    let field = |name: &str| {
        let value =
            |line: &str| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim().to_owned());
        info.lines().find_map(value).unwrap_or_default()
    };
    let wrong = |what, why: String| StoreError::misconfigured(what, format!("{server} {why}"));
    let version = field("redis_version");
    let mut numbers = version.split('.').map(|number| number.parse().unwrap_or(0));
    if (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) < OLDEST {
        return Err(wrong(Misconfigured::Version, format!("is version {version:?}")));
    }
    if field("redis_mode") == "sentinel" {
        let why = "is a sentinel, which a redis+sentinel:// URL is for".into();
        return Err(wrong(Misconfigured::Setting, why));
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
        return Ok(Some(Finding { server: server.into(), message }));
    }
    Ok(None)
}

fn probe_scope() -> Scope {
    Scope::new("self-test", &limits(Rate::per_minute(1_000))[0])
}

fn built(builder: tidegate_core::Builder) -> Limit {
    builder.build().expect("plain numbers")
}

fn limits(rate: Rate) -> [Limit; 5] {
    [
        built(Limit::token_bucket(rate)),
        built(Limit::fixed_window(rate)),
        built(Limit::sliding_window(rate)),
        built(Limit::sliding_log(rate)),
        Limit::in_flight(1_000, Span::from_secs(1)).expect("plain numbers"),
    ]
}

/// Charges that do not share a tag: a node of a cluster that is taken for a server of its own
/// refuses them.
async fn try_apart(store: &RedisStore, now: Timestamp) -> Result<(), StoreError> {
    let [limit, ..] = limits(Rate::per_minute(1_000));
    let texts = ["self-test:1", "self-test:2", "self-test:3"];
    let charges = |op| {
        let keys = texts.map(|text| Key::new(probe_scope(), text.as_bytes()));
        keys.map(|key| Charge::new(key, &limit, op))
    };
    let mut decisions = Vec::new();
    for op in [Op::Take(1), Op::Reset] {
        store.decide(now, &charges(op), &mut decisions).await?;
    }
    Ok(())
}

/// Every script, and in them every command: a user may be permitted some and not others.
async fn try_all(
    store: &RedisStore,
    now: Timestamp,
    limits: &[Limit; 5],
    text: &[u8],
) -> Result<(), StoreError> {
    let mut decisions = Vec::new();
    let charge = |limit, op| {
        let key = Key::new(Scope::new("self-test", limit), text).tagged(text);
        Charge::new(key, limit, op)
    };
    let take = Op::Take(2);
    // A bucket whose interval is not a whole number of microseconds has a script of its own.
    let uneven = built(Limit::token_bucket(Rate::new(7, Span::from_secs(1))));
    for limit in limits.iter().chain([&uneven]) {
        store.decide(now, &[charge(limit, take)], &mut decisions).await?;
    }
    let other = Key::new(Scope::new("self-test:other", &uneven), text).tagged(text);
    let buckets = [charge(&uneven, take), Charge::new(other, &uneven, take)];
    store.decide(now, &buckets, &mut decisions).await?;
    let together: Vec<Charge<'_>> = limits.iter().map(|limit| charge(limit, take)).collect();
    store.decide(now, &together, &mut decisions).await?;
    // What was taken into the log a moment ago has long left one as short as this.
    let short = built(Limit::sliding_log(Rate::new(1_000, Span::from_micros(1))));
    let [.., log, in_flight] = limits;
    let mut rest = vec![
        charge(log, Op::Return(1)),
        charge(log, Op::Return(1)),
        charge(log, take),
        charge(&short, take),
    ];
    // A denial looks at the leases that hold the places.
    rest.push(charge(in_flight, Op::Take(1_000)));
    if let Some(lease) = decisions.last().and_then(|decision| decision.lease) {
        rest.push(charge(in_flight, Op::Renew(lease)));
        rest.push(charge(in_flight, Op::Release(lease)));
    }
    rest.extend(limits.iter().map(|limit| charge(limit, Op::Reset)));
    rest.push(Charge::new(other, &uneven, Op::Reset));
    for charge in rest {
        store.decide(now, &[charge], &mut decisions).await?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n\
                         maxmemory:0\r\nmaxmemory_policy:allkeys-lru\r\nrole:master\r\n\
                         cluster_enabled:0\r\n";

    fn judged(field: &str, value: &str) -> Result<Option<Finding>, StoreError> {
        let line = |line: &str| match line.split_once(':') {
            Some((name, _)) if name == field => format!("{name}:{value}\r\n"),
            _ => format!("{line}\r\n"),
        };
        judge("cache:6379", &SOUND.lines().map(line).collect::<String>(), false)
    }

    fn misconfigured(field: &str, value: &str) -> Option<Misconfigured> {
        match judged(field, value) {
            Err(error @ StoreError::Misconfigured(what, _)) => {
                assert!(error.to_string().contains("cache:6379"), "{error}");
                assert!(error.to_string().contains(what.advice()), "{error}");
                Some(what)
            }
            Err(other) => panic!("{other}"),
            Ok(_) => None,
        }
    }

    #[test]
    fn servers_older_than_every_command_needs_are_refused() {
        for version in ["6.1.9", "5.0.14", "2.8.0", "", "unknown"] {
            let found = misconfigured("redis_version", version);
            assert_eq!(found, Some(Misconfigured::Version), "{version}");
        }
        for version in ["6.2.0", "6.2.5", "7.0.15", "7.2.4", "8.10.1", "10.0"] {
            assert_eq!(misconfigured("redis_version", version), None, "{version}");
        }
    }

    #[test]
    fn servers_that_are_something_else_are_refused() {
        assert_eq!(misconfigured("role", "slave"), Some(Misconfigured::ReadOnly));
        assert_eq!(misconfigured("cluster_enabled", "1"), Some(Misconfigured::CrossSlot));
        assert_eq!(misconfigured("redis_mode", "sentinel"), Some(Misconfigured::Setting));
        assert!(judge("cache:6379", &SOUND.replace("enabled:0", "enabled:1"), true).is_ok());
    }

    #[test]
    fn eviction_is_a_finding_only_where_memory_is_bounded() {
        assert_eq!(judged("maxmemory", "0"), Ok(None));
        let found = judged("maxmemory", "1048576").unwrap().unwrap();
        assert!(found.to_string().contains("cache:6379: maxmemory-policy is allkeys-lru"));
    }
}
