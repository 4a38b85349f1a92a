//! A cluster decides as the sequential model does, whichever node a key lies on.

use std::time::Duration;

use tidegate::store::redis::{RedisConfig, RedisStore, TimeSource};
use tidegate::store::{Batch, Charge, Store};
use tidegate::{Key, Limit, Op, Rate, Scope, Span, Timestamp};
use tidegate_tests::model::Model;
use tidegate_tests::servers::Cluster;

use crate::load::TIMEOUT;

const TENANTS: usize = 300;
const ROUNDS: usize = 120;

/// A charge, with a text of its own and the tag that it shares with its request.
#[derive(Debug)]
struct Asked {
    limit: usize,
    text: String,
    tag: String,
    op: Op,
}

impl Asked {
    fn charge<'a>(&'a self, limits: &'a [(&'static str, Limit)]) -> Charge<'a> {
        let (name, limit) = &limits[self.limit];
        let key = Key::new(Scope::new(name, limit), self.text.as_bytes());
        Charge::new(key.tagged(self.tag.as_bytes()), limit, self.op)
    }
}

fn limits() -> Vec<(&'static str, Limit)> {
    let built = |builder: tidegate_core::Builder| builder.build().expect("valid numbers");
    let rate = Rate::new(15, Span::from_secs(2));
    vec![
        ("bucket", built(Limit::token_bucket(Rate::new(7, Span::from_secs(3))).burst(20))),
        ("leaky", built(Limit::leaky_bucket(Rate::per_second(5)).queue(12))),
        ("fixed", built(Limit::fixed_window(rate))),
        ("sliding", built(Limit::sliding_window(rate))),
        ("log", built(Limit::sliding_log(rate))),
        ("flight", Limit::in_flight(15, Span::from_secs(2)).expect("valid numbers")),
    ]
}

async fn connect(cluster: &Cluster) -> RedisStore {
    let config = RedisConfig::new(&cluster.url()).expect("a valid address");
    let config = config.deadline(TIMEOUT).settles_after(Duration::ZERO);
    RedisStore::connect(config.time(TimeSource::Caller)).await.expect("a fresh cluster")
}

fn cost(rng: &mut fastrand::Rng) -> u64 {
    if rng.u8(0..3) > 0 { 1 } else { rng.u64(0..18) }
}

/// One charge, or several of one tenant: the same text or the same tag.
fn request(rng: &mut fastrand::Rng) -> Vec<Asked> {
    // A few tenants are asked for often, so that limits are met.
    let tenants = if rng.bool() { 8 } else { TENANTS };
    let tag = format!("tenant:{}", rng.usize(0..tenants));
    let count = if rng.bool() { 1 } else { rng.usize(2..5) };
    let charge = |_| {
        let tagged = rng.bool();
        let text = if tagged { format!("{tag}/{}", rng.u8(0..3)) } else { tag.clone() };
        let cost = cost(rng);
        let op = match rng.u8(0..20) {
            0..=1 => Op::Read(cost),
            2 if count == 1 => Op::Return(cost),
            3 if count == 1 => Op::Force(cost),
            _ => Op::Take(cost),
        };
        Asked { limit: rng.usize(0..6), text, tag: tag.clone(), op }
    };
    (0..count).map(charge).collect()
}

#[test]
fn every_slot_decides_as_the_model_does() {
    let cluster = Cluster::start();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (limits, mut rng) = (limits(), fastrand::Rng::with_seed(5));
    let (mut model, mut decided) = (Model::default(), 0);
    let mut now = Timestamp::from_secs(1_800_000_000);
    runtime.block_on(async {
        let store = connect(&cluster).await;
        for _ in 0..ROUNDS {
            now = now + Span::from_micros(rng.u64(0..2_000_000));
            let requests: Vec<Vec<Asked>> =
                (0..rng.usize(1..200)).map(|_| request(&mut rng)).collect();
            let charges: Vec<Vec<Charge<'_>>> = requests
                .iter()
                .map(|request| request.iter().map(|asked| asked.charge(&limits)).collect())
                .collect();
            let asked = charges.iter().map(|charges| async {
                let mut decisions = Vec::new();
                store.decide(now, Batch::together(charges), &mut decisions).await.map(|_| decisions)
            });
            let found = futures_util::future::join_all(asked).await;
            for (charges, found) in charges.iter().zip(found) {
                assert_eq!(found, Ok(model.decide(now, charges)), "at {now}: {charges:?}");
                decided += charges.len();
            }
        }
    });
    assert!(decided > 10_000, "{decided}");
    let sizes = cluster.servers().map(|server| -> u64 {
        redis::from_redis_value(server.command(&["DBSIZE"])).expect("a count")
    });
    assert!(sizes.take(3).all(|size| size > 100), "every primary has its share");
}

/// One after the other, even limits of different nodes are decided as if they were on one.
#[test]
fn requests_across_slots_decide_as_the_model_does_without_other_callers() {
    let cluster = Cluster::start();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (limits, mut rng) = (limits(), fastrand::Rng::with_seed(7));
    let mut model = Model::default();
    let mut now = Timestamp::from_secs(1_800_000_000);
    let mut denied = 0;
    runtime.block_on(async {
        let store = connect(&cluster).await;
        for number in 0..3_000 {
            now = now + Span::from_micros(rng.u64(0..400_000));
            let charge = |place: u8| {
                // No key twice: what stands in its own way is told only where all is in one call.
                let text = format!("user:{}", 3 * rng.u8(0..2) + place);
                let op = if rng.u8(0..8) == 0 { Op::Read(1) } else { Op::Take(cost(&mut rng)) };
                // In-flight limits number their leases, and one given back leaves a gap.
                Asked { limit: rng.usize(0..5), tag: text.clone(), text, op }
            };
            let asked: Vec<Asked> = (0..3).map(charge).collect();
            let charges: Vec<Charge<'_>> =
                asked.iter().map(|asked| asked.charge(&limits)).collect();
            let (expected, mut found) = (model.decide(now, &charges), Vec::new());
            store.decide(now, Batch::together(&charges), &mut found).await.expect("a decision");
            assert_eq!(found, expected, "request {number} at {now}: {asked:?}");
            denied += u32::from(expected.iter().any(|decision| !decision.is_allowed()));
        }
    });
    assert!((300..2_700).contains(&denied), "both outcomes are common: {denied} denied");
}
