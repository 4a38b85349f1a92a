//! Places held by leases: kept while their holder lives, back soon after it died (F9, F23).

use std::time::Duration;

use tidegate::store::redis::{RedisConfig, RedisStore};
use tidegate::store::{Batch, Charge, Store};
use tidegate::{Decision, Key, LeaseId, Limit, Limiter, Op, Scope, SharedLimiter, Span, Timestamp};
use tidegate_tests::clients::{self, Client};
use tidegate_tests::servers::{RedisServer, wait_until};

const PROGRAM: &str = env!("CARGO_BIN_EXE_redis_client");
const PLACES: u64 = 100;
/// Asks the server for its time and counts in one go: places whose lease has not ended.
const COUNT: &str = "local time = redis.call('TIME')
    local now = string.format('(%.0f', time[1] * 1000000 + time[2])
    return redis.call('ZCOUNT', KEYS[1], now, '+inf')";
/// What never takes as long on any machine.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A server, and the name of the one key of a limit on it.
struct Places {
    server: RedisServer,
    text: String,
    key: String,
}

impl Places {
    fn new(ttl_micros: u64) -> Self {
        let text = format!("in_flight:{PLACES}:{ttl_micros}");
        let key = format!("tg:{}:{{job}}", Scope::new(&text, &clients::limit(&text)));
        Self { server: RedisServer::start(), text, key }
    }

    fn holder(&self) -> Client {
        let (url, limit) = (self.server.url(), format!("limit={}", self.text));
        Client::start(PROGRAM, &["hold", &url, &limit, "key=job", &format!("places={PLACES}")])
    }

    /// Places in use, which are never more than there are.
    fn in_use(&self) -> u64 {
        let count = self.server.command(&["EVAL", COUNT, "1", &self.key]);
        let count = redis::from_redis_value(count).expect("a count");
        assert!(count <= PLACES, "{count} places of {PLACES} in use");
        count
    }

    /// Watches for so long by the server's clock.
    fn watch(&self, micros: u64, mut look: impl FnMut(u64)) {
        let start = self.time();
        wait_until("the server's time has passed", TIMEOUT, || {
            look(self.in_use());
            self.time() - start > micros
        });
    }

    fn time(&self) -> u64 {
        let time = self.server.command(&["TIME"]);
        let (seconds, micros): (u64, u64) = redis::from_redis_value(time).expect("two numbers");
        seconds * 1_000_000 + micros
    }
}

fn take_all(holder: &mut Client) -> u64 {
    holder.say("take");
    holder.number("held")
}

/// Done when all are back within the lease time and the interval of renewal, and no holder gets a
/// place before.
#[test]
fn a_killed_holder_of_a_hundred_places_gives_them_back_in_time() {
    let (ttl, places) = (2_000_000, Places::new(2_000_000));
    let (mut holder, mut successor) = (places.holder(), places.holder());
    assert_eq!(take_all(&mut holder), PLACES);
    // Long enough that leases were renewed.
    places.watch(ttl + ttl / 2, |in_use| assert_eq!(in_use, PLACES));
    assert_eq!(take_all(&mut successor), 0, "places that a living holder has");
    holder.kill();
    assert_eq!(places.in_use(), PLACES, "a lease outlives its holder");
    let bound = Duration::from_micros(ttl + ttl / 3);
    let mut taken = 0;
    wait_until("all places are back", bound, || {
        places.in_use();
        taken = take_all(&mut successor);
        taken == PLACES
    });
    assert_eq!(places.in_use(), PLACES);
}

#[test]
fn a_living_holder_keeps_its_places_for_many_lease_times() {
    let (ttl, places) = (3_000_000, Places::new(3_000_000));
    let mut holder = places.holder();
    assert_eq!(take_all(&mut holder), PLACES);
    places.watch(3 * ttl, |in_use| assert_eq!(in_use, PLACES));
    holder.say("lost");
    assert_eq!(holder.number("lost"), 0);
    holder.say("release");
    assert_eq!(holder.line(), "released");
    assert_eq!(places.in_use(), 0, "released and waited for");
    assert_eq!(take_all(&mut holder), PLACES);
    holder.say("drop");
    assert_eq!(holder.line(), "dropped");
    // Sooner than the leases would end on their own.
    wait_until("dropped places are back", Duration::from_micros(ttl / 2), || places.in_use() == 0);
}

/// F23: a process that did not run for longer than its lease must not go on as if it had the place.
#[test]
fn a_holder_that_was_stopped_for_too_long_finds_its_places_lost() {
    let places = Places::new(2_000_000);
    let (mut holder, mut successor) = (places.holder(), places.holder());
    assert_eq!(take_all(&mut holder), PLACES);
    holder.pause();
    wait_until("all places are back", TIMEOUT, || places.in_use() == 0);
    assert_eq!(take_all(&mut successor), PLACES);
    // The first thing it is asked, before any renewal can have been answered.
    holder.say("lost");
    holder.resume();
    assert_eq!(holder.number("lost"), PLACES);
    holder.say("release");
    assert_eq!(holder.line(), "released");
    assert_eq!(places.in_use(), PLACES, "a late release frees no other lease");
}

async fn store(server: &RedisServer) -> RedisStore {
    let config = RedisConfig::new(&server.url()).expect("a valid address");
    let config = config.deadline(TIMEOUT).connect_timeout(TIMEOUT);
    RedisStore::connect(config).await.expect("a fresh server")
}

async fn operate(store: &RedisStore, limit: &Limit, op: Op) -> Decision {
    let (key, mut decisions) = (Key::new(Scope::new("places", limit), b"job"), Vec::new());
    let charge = Charge::new(key, limit, op);
    store
        .decide(Timestamp::EPOCH, Batch::one(&charge), &mut decisions)
        .await
        .expect("the server is up");
    decisions[0]
}

async fn take(store: &RedisStore, limit: &Limit) -> LeaseId {
    operate(store, limit, Op::Take(1)).await.lease.expect("a free place")
}

#[tokio::test]
async fn releasing_twice_or_late_changes_nothing() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let limit = Limit::in_flight(2, Span::from_millis(300)).expect("valid numbers");
    let first = take(&store, &limit).await;
    let freed = operate(&store, &limit, Op::Release(first)).await;
    assert_eq!(freed.remaining, 2);
    take(&store, &limit).await;
    let again = operate(&store, &limit, Op::Release(first)).await;
    assert_eq!(again.remaining, 1, "the second release freed another's place");
    let late = take(&store, &limit).await;
    while operate(&store, &limit, Op::Read(1)).await.remaining < 2 {
        tokio::task::yield_now().await;
    }
    let renewed = operate(&store, &limit, Op::Renew(late)).await;
    assert!(!renewed.is_allowed(), "a lease that has ended cannot be renewed");
    take(&store, &limit).await;
    let released = operate(&store, &limit, Op::Release(late)).await;
    assert_eq!(released.remaining, 1, "the late release freed another's place");
    let renewed = operate(&store, &limit, Op::Renew(late)).await;
    assert!(!renewed.is_allowed(), "a place that was given back cannot be renewed");
}

async fn limiter(server: &RedisServer, limits: &[(&str, Limit)]) -> SharedLimiter<RedisStore> {
    let builder = limits
        .iter()
        .fold(Limiter::builder(), |builder, (name, limit)| builder.limit(*name, *limit));
    builder.shared(store(server).await).expect("valid limits")
}

/// A lease that is lost says nothing about the others of the same permit.
#[tokio::test]
async fn a_permit_that_lost_one_place_still_gives_the_other_back() {
    let server = RedisServer::start();
    let short = Limit::in_flight(1, Span::from_millis(300)).expect("valid numbers");
    let long = Limit::in_flight(1, Span::from_secs(3_600)).expect("valid numbers");
    let both = limiter(&server, &[("short", short), ("long", long)]).await;
    let one = limiter(&server, &[("long", long)]).await;
    let permit = both.acquire("job").await.expect("the server is up").permit();
    let permit = permit.expect("free places");
    assert_eq!(one.peek("job", 1).await.expect("the server is up").remaining(), 0);
    server.command(&["DEL", &format!("tg:{}:{{job}}", Scope::new("short", &short))]);
    while !permit.is_lost() {
        tokio::task::yield_now().await;
    }
    drop(permit);
    let freed = async {
        while one.peek("job", 1).await.expect("the server is up").remaining() == 0 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(TIMEOUT, freed).await.expect("the longer place comes back");
}

/// Without a store no lease can be renewed: `is_lost` is true by the time another holder may have the place.
#[tokio::test]
async fn a_permit_is_lost_when_the_store_stays_away() {
    let server = RedisServer::start();
    let limit = Limit::in_flight(1, Span::from_millis(400)).expect("valid numbers");
    let limiter = limiter(&server, &[("places", limit)]).await;
    let permit = limiter.acquire("job").await.expect("the server is up").permit();
    let permit = permit.expect("a free place");
    assert!(!permit.is_lost());
    server.kill();
    let lost = async {
        while !permit.is_lost() {
            tokio::task::yield_now().await;
        }
    };
    // Tenfold, for it is not about how fast it is but whether.
    tokio::time::timeout(Duration::from_secs(4), lost).await.expect("the lease has ended");
}

/// While nodes have different numbers, the shorter lease time of one must not end
/// the longer leases of another.
#[tokio::test]
async fn renewing_a_short_lease_does_not_forget_a_long_one() {
    let server = RedisServer::start();
    let store = store(&server).await;
    let long = Limit::in_flight(5, Span::from_secs(3_600)).expect("valid numbers");
    let short = Limit::in_flight(5, Span::from_millis(100)).expect("valid numbers");
    take(&store, &long).await;
    let lease = take(&store, &short).await;
    assert!(operate(&store, &short, Op::Renew(lease)).await.is_allowed());
    let key = format!("tg:{}:{{job}}", Scope::new("places", &long));
    let left: i64 = redis::from_redis_value(server.command(&["PTTL", &key])).expect("a number");
    assert!(left > 3_500_000, "the long lease is forgotten in {left} ms");
}

/// A node that has a shorter lease time for long enough cuts longer leases to it: by then
/// their holders, told of the same change, renew them as often as that takes.
#[tokio::test]
async fn a_shorter_lease_time_takes_no_place_from_who_holds_it() {
    let server = RedisServer::start();
    let [long, short] = [Span::from_secs(3_600), Span::from_secs(2)]
        .map(|ttl| Limit::in_flight(1, ttl).expect("valid numbers"));
    let holder = limiter(&server, &[("places", long)]).await;
    let permit = holder.acquire("job").await.expect("the server is up").permit();
    let permit = permit.expect("a free place");
    // Meanwhile the permit has begun to wait for its next renewal, twenty minutes from now.
    assert!(holder.peek("job", 1).await.expect("the server is up").is_denied());
    holder.set_limit("places", short).expect("a known limit");
    let config = RedisConfig::new(&server.url()).expect("a valid address");
    let config = config.deadline(TIMEOUT).settles_after(Duration::ZERO);
    let settled = RedisStore::connect(config).await.expect("a sound server");
    let other = Limiter::builder().limit("places", short).shared(settled).expect("one limit");
    let time = || -> (u64, u64) {
        redis::from_redis_value(server.command(&["TIME"])).expect("two numbers")
    };
    let (start, _) = time();
    while time().0 < start + 5 {
        let verdict = other.check("job").await.expect("the server is up");
        assert!(verdict.is_denied(), "the place was taken from its holder");
    }
    assert!(!permit.is_lost());
    permit.release().await.expect("the server is up");
    assert!(other.check("job").await.expect("the server is up").is_allowed());
}
