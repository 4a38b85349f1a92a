//! The self-test at the start: runs every command once, so that faults are found before the first
//! request.

use redis::Cmd;
use tidegate_core::{Limit, Op, Rate, Span, Timestamp};

use crate::key::{Key, Scope};
use crate::store::redis::failure::Failure;
use crate::store::redis::inspection::Finding;
use crate::store::redis::{RedisStore, StoreError};
use crate::store::{Batch, Charge, Store};

/// Inspects every server, then runs every command that a script may need on each.
pub(super) async fn run(store: &RedisStore, now: Timestamp) -> Result<Vec<Finding>, StoreError> {
    store.refresh(true).await?;
    for (server_queue, _) in store.routes.server_queues() {
        let connected = server_queue.connection.connected().await?;
        // A server may lose its cached scripts, so sending whole scripts must be permitted too.
        let whole = Cmd::new().arg("EVAL").arg("return 0").arg(0).to_owned();
        server_queue.connection.send(&connected, &whole).await.map_err(Failure::into_error)?;
    }
    try_apart(store, now).await?;
    for text in store.routes.probes(&store.namer, probe_scope()) {
        try_all(store, now, &limits(Rate::per_minute(1_000)), text.as_bytes()).await?;
        if store.config.per_second.is_some() {
            try_all(store, now, &limits(Rate::per_second(1_000)), text.as_bytes()).await?;
        }
    }
    // Decisions do not need the registry, so its errors are findings.
    if let Some(registry) = &store.registry {
        registry.turn(&store.routes).await;
    }
    Ok(store.findings())
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

/// Sends charges without a common tag: a cluster node that is configured as a single server refuses
/// them.
async fn try_apart(store: &RedisStore, now: Timestamp) -> Result<(), StoreError> {
    let [limit, ..] = limits(Rate::per_minute(1_000));
    let texts = ["self-test:1", "self-test:2", "self-test:3"];
    let charges = |op| {
        let keys = texts.map(|text| Key::new(probe_scope(), text.as_bytes()));
        keys.map(|key| Charge::new(key, &limit, op))
    };
    let mut decisions = Vec::new();
    for op in [Op::Take(1), Op::Reset] {
        store.decide(now, Batch::together(&charges(op)), &mut decisions).await?;
    }
    Ok(())
}

/// Runs every script, and in them every command, because a user may lack permission for some of
/// them.
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
    // A bucket whose interval is not a whole number of microseconds has a separate script.
    let uneven = built(Limit::token_bucket(Rate::new(7, Span::from_secs(1))));
    for limit in limits.iter().chain([&uneven]) {
        store.decide(now, Batch::one(&charge(limit, take)), &mut decisions).await?;
    }
    let other = Key::new(Scope::new("self-test:other", &uneven), text).tagged(text);
    let buckets = [charge(&uneven, take), Charge::new(other, &uneven, take)];
    store.decide(now, Batch::together(&buckets), &mut decisions).await?;
    let together: Vec<Charge<'_>> = limits.iter().map(|limit| charge(limit, take)).collect();
    store.decide(now, Batch::together(&together), &mut decisions).await?;
    // Entries of the log have left so short a window at once.
    let short = built(Limit::sliding_log(Rate::new(1_000, Span::from_micros(1))));
    let [.., log, in_flight] = limits;
    let mut rest = vec![
        charge(log, Op::Return(1)),
        charge(log, Op::Return(1)),
        charge(log, take),
        charge(&short, take),
    ];
    // A denial reads the leases.
    rest.push(charge(in_flight, Op::Take(1_000)));
    if let Some(lease) = decisions.last().and_then(|decision| decision.lease) {
        rest.push(charge(in_flight, Op::Renew(lease)));
        rest.push(charge(in_flight, Op::Release(lease)));
    }
    rest.extend(limits.iter().map(|limit| charge(limit, Op::Reset)));
    rest.push(Charge::new(other, &uneven, Op::Reset));
    for charge in rest {
        store.decide(now, Batch::one(&charge), &mut decisions).await?;
    }
    Ok(())
}
