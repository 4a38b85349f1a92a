//! The verbs of the library: over memory, over Redis, and of a policy.

use tidegate::policy::{
    CheckError, Descriptor, Entry, Merging, Policy, PolicyLimiter, Request, RequestOutcome,
};
use tidegate::store::StoreError;
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::{RedisConfig, RedisStore};
use tidegate::{Admission, Limit, Limiter, LimiterBuilder, Rate, SharedLimiter, Span, Verdict};
use tidegate_tests::servers::RedisServer;
use tokio::runtime::{Builder, Runtime};

use super::{EACH, Interface, POLICY, Seen, Verb};

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn seen(verdict: &Verdict) -> Seen {
    (verdict.is_allowed(), verdict.remaining())
}

fn hourly(units: u64) -> Limit {
    Limit::token_bucket(Rate::per_hour(units)).build().expect("a limit")
}

fn user() -> LimiterBuilder {
    Limiter::builder().limit("user", hourly(5))
}

fn both() -> LimiterBuilder {
    user().limit("tenant", hourly(1))
}

/// A unit every 20 ms.
fn fast() -> LimiterBuilder {
    Limiter::builder().limit("fast", Limit::gcra(Rate::per_second(50)).build().expect("a limit"))
}

fn places() -> LimiterBuilder {
    let limit = Limit::in_flight(2, Span::from_secs(60)).expect("a limit");
    Limiter::builder().limit("places", limit)
}

fn granted(admissions: &[Admission]) -> usize {
    admissions.iter().filter(|admission| admission.is_granted()).count()
}

fn names(verdict: &Verdict) -> Vec<String> {
    verdict.parts().map(|part| part.name.to_owned()).collect()
}

fn state(verdict: &Verdict) -> String {
    let state = verdict.parts().find_map(|part| part.state).expect("a state");
    format!("{} of {}", state.remaining, state.limit)
}

/// `Limiter` over memory.
pub(crate) struct Memory {
    user: Limiter,
    both: Limiter,
}

impl Memory {
    pub(crate) fn new() -> Self {
        let limiter = |builder: LimiterBuilder| builder.build().expect("a limiter");
        Self { user: limiter(user()), both: limiter(both()) }
    }
}

impl Interface for Memory {
    fn charge(&mut self, verb: Verb, user: &str, cost: u64) -> Seen {
        seen(&match verb {
            Verb::Check if cost == 1 => self.user.check(user),
            Verb::Check => self.user.check_cost(user, cost),
            Verb::Peek => self.user.peek(user, cost),
            Verb::Refund => self.user.refund(user, cost),
            Verb::Reset => self.user.reset(user),
        })
    }

    fn together(&mut self, user: &str, tenant: &str) -> bool {
        let verdict = self.both.check_together(&[user, tenant]);
        if verdict.is_allowed() {
            // The limiter of one limit has a state of its own.
            assert!(self.user.check(user).is_allowed());
        }
        let stood = self.both.explain(user);
        assert_eq!(state(&stood), "4 of 5", "charged with the tenant or not at all");
        verdict.is_allowed()
    }

    fn each(&mut self, users: [&str; 2]) -> [bool; 2] {
        let mut verdicts = Vec::new();
        self.user.check_each(&users, &mut verdicts);
        [verdicts[0].is_allowed(), verdicts[1].is_allowed()]
    }

    fn report(&mut self, user: &str) -> (Vec<String>, u64) {
        let verdict = self.user.report(user, 1);
        (names(&verdict), verdict.remaining())
    }

    fn explain(&mut self, user: &str) -> String {
        state(&self.user.explain(user))
    }

    fn until_ready(&mut self) -> bool {
        let limiter = fast().build().expect("a limiter");
        runtime().block_on(async {
            limiter.until_ready("k").await.is_allowed()
                && limiter.check("k").is_denied()
                && limiter.until_ready("k").await.is_allowed()
        })
    }

    fn permits(&mut self) -> (usize, usize) {
        let limiter = places().build().expect("a limiter");
        let mut held: Vec<Admission> = (0..3).map(|_| limiter.acquire("k")).collect();
        let first = granted(&held);
        held.truncate(1);
        (first, granted(&[limiter.acquire("k"), limiter.acquire("k")]))
    }
}

/// `SharedLimiter` over Redis.
pub(crate) struct SharedStore {
    server: RedisServer,
    runtime: Runtime,
    user: SharedLimiter<RedisStore>,
}

impl SharedStore {
    pub(crate) fn new() -> Self {
        let (server, runtime) = (RedisServer::start(), runtime());
        let user = runtime.block_on(shared(&server, user()));
        Self { server, runtime, user }
    }
}

async fn shared(server: &RedisServer, builder: LimiterBuilder) -> SharedLimiter<RedisStore> {
    let config = RedisConfig::new(&server.url()).expect("an address");
    let store = RedisStore::connect(config).await.expect("a server");
    builder.shared(store).expect("a limiter")
}

impl Interface for SharedStore {
    fn charge(&mut self, verb: Verb, user: &str, cost: u64) -> Seen {
        let Self { runtime, user: limiter, .. } = self;
        let verdict: Result<Verdict, StoreError> = runtime.block_on(async {
            match verb {
                Verb::Check if cost == 1 => limiter.check(user).await,
                Verb::Check => limiter.check_cost(user, cost).await,
                Verb::Peek => limiter.peek(user, cost).await,
                Verb::Refund => limiter.refund(user, cost).await,
                Verb::Reset => limiter.reset(user).await,
            }
        });
        seen(&verdict.expect("a decision"))
    }

    fn together(&mut self, user: &str, tenant: &str) -> bool {
        let Self { server, runtime, .. } = self;
        // The limit named "user" has the same keys in both limiters.
        runtime.block_on(async {
            let limiter = shared(server, both()).await;
            limiter.check_together(&[user, tenant]).await.expect("a decision").is_allowed()
        })
    }

    fn each(&mut self, users: [&str; 2]) -> [bool; 2] {
        let mut verdicts = Vec::new();
        let decided = self.runtime.block_on(self.user.check_each(&users, &mut verdicts));
        decided.expect("decisions");
        [verdicts[0].is_allowed(), verdicts[1].is_allowed()]
    }

    fn report(&mut self, user: &str) -> (Vec<String>, u64) {
        let verdict = self.runtime.block_on(self.user.report(user, 1)).expect("a decision");
        (names(&verdict), verdict.remaining())
    }

    fn explain(&mut self, user: &str) -> String {
        state(&self.runtime.block_on(self.user.explain(user)).expect("a state"))
    }

    fn until_ready(&mut self) -> bool {
        let Self { server, runtime, .. } = self;
        runtime.block_on(async {
            let limiter = shared(server, fast()).await;
            let ready = async || limiter.until_ready("k").await.expect("a decision").is_allowed();
            ready().await && ready().await && ready().await
        })
    }

    fn permits(&mut self) -> (usize, usize) {
        let Self { server, runtime, .. } = self;
        runtime.block_on(async {
            let limiter = shared(server, places()).await;
            let acquire = async || limiter.acquire("k").await.expect("a decision");
            let mut held = vec![acquire().await, acquire().await, acquire().await];
            let first = granted(&held);
            held.truncate(2);
            let permit = held.pop().and_then(Admission::permit).expect("a permit");
            permit.release().await.expect("a server");
            (first, granted(&[acquire().await, acquire().await]))
        })
    }
}

/// `PolicyLimiter`.
pub(crate) struct Policies {
    limiter: PolicyLimiter<MemoryStore>,
    each: PolicyLimiter<MemoryStore>,
    runtime: Runtime,
}

impl Policies {
    pub(crate) fn new() -> Self {
        let limiter = |text: &str| {
            let loaded = Policy::load(&[("policy.yaml", text)], Merging::Refuse);
            PolicyLimiter::in_memory(loaded.policy.expect("a policy")).expect("memory")
        };
        Self { limiter: limiter(POLICY), each: limiter(EACH), runtime: runtime() }
    }
}

fn ask<T>(
    entries: &[(&str, &str)],
    hits: Option<u64>,
    ask: impl FnOnce(&Request<'_>) -> Result<T, CheckError>,
) -> T {
    let entries: Vec<[Entry<'_>; 1]> =
        entries.iter().map(|(key, value)| [Entry { key, value }]).collect();
    let descriptors: Vec<Descriptor<'_>> = entries.iter().map(|it| Descriptor::new(it)).collect();
    ask(&Request { domain: "api", descriptors: &descriptors, hits }).expect("a decision")
}

impl Interface for Policies {
    fn charge(&mut self, verb: Verb, user: &str, cost: u64) -> Seen {
        let Self { limiter, runtime, .. } = self;
        let verdict = ask(&[("user", user)], Some(cost), |request| {
            runtime.block_on(async {
                match verb {
                    Verb::Check => limiter.check(request).await,
                    Verb::Peek => limiter.peek(request).await,
                    Verb::Refund => limiter.refund(request).await,
                    Verb::Reset => limiter.reset(request).await,
                }
            })
        });
        seen(&verdict)
    }

    fn together(&mut self, user: &str, tenant: &str) -> bool {
        let entries = [("user", user), ("tenant", tenant)];
        ask(&entries, None, |request| self.limiter.check_now(request)).is_allowed()
    }

    fn each(&mut self, users: [&str; 2]) -> [bool; 2] {
        // Under `charge: each` the user is charged though the tenant denies.
        let entries = [("user", users[1]), ("tenant", "of each")];
        let check = || ask(&entries, None, |request| self.each.check_now(request));
        assert!(check().is_allowed() && check().is_denied());
        let left = ask(&entries[..1], None, |request| self.each.check_now(request)).remaining();
        assert_eq!(left, 2);
        users.map(|user| {
            ask(&[("user", user)], None, |request| self.limiter.check_now(request)).is_allowed()
        })
    }

    fn report(&mut self, user: &str) -> (Vec<String>, u64) {
        let verdict = ask(&[("user", user)], None, |request| self.limiter.check_now(request));
        (names(&verdict), verdict.remaining())
    }

    fn explain(&mut self, user: &str) -> String {
        state(&ask(&[("user", user)], None, |request| self.limiter.explain_now(request)))
    }

    fn settle(&mut self, user: &str) -> (u64, u64) {
        let acquire = || ask(&[("model", user)], None, |request| self.limiter.acquire_now(request));
        let mut permit = acquire().permit().expect("five are free");
        let before = permit.verdict().remaining();
        let settlement = permit.take_settlement().expect("an actual cost");
        let settled = self.runtime.block_on(settlement.settle(RequestOutcome::default().cost(2)));
        assert_eq!(settled.expect("memory always answers").returned, 1);
        let after = ask(&[("model", user)], Some(1), |request| {
            self.runtime.block_on(self.limiter.peek(request))
        });
        (before, after.remaining())
    }

    fn permits(&mut self) -> (usize, usize) {
        let acquire = || ask(&[("job", "j")], None, |request| self.limiter.acquire_now(request));
        let mut held = vec![acquire(), acquire(), acquire()];
        let first = granted(&held);
        held.truncate(1);
        (first, granted(&[acquire(), acquire()]))
    }
}
