//! A node in this process, with the daemon's layers in front of Redis.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tidegate::policy::{Descriptor, Entry, Merging, Policy, PolicyLimiter, Request};
use tidegate::store::background::Background;
use tidegate::store::circuits::{CircuitReport, CircuitState};
use tidegate::store::fallback::FallbackStats;
use tidegate::store::redis::{RedisConfig, RedisStore};
use tidegate::store::shared::{SharedOptions, SharedStore};
use tidegate::store::{DecisionSource, Nodes};
use tidegate::{Clock, Verdict};
use tokio::runtime::{Builder, Runtime};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::counted::{Counted, Sent};
use super::load::{Asked, Load};

/// Longer than any step takes on any machine.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);
/// Interval between two reads of a circuit, which bounds the error of times to half a millisecond.
const BETWEEN_LOOKS: Duration = Duration::from_micros(500);
const DOMAIN: &str = "chaos";

/// The production stack, with a counter of its commands.
type Stack = SharedStore<Counted>;

/// A node with a separate runtime.
#[derive(Debug)]
pub(crate) struct Node {
    // Dropped before the runtime, on which it runs background work.
    limiter: PolicyLimiter<Stack>,
    pub(crate) sent: Arc<Sent>,
    runtime: Runtime,
}

/// The setup of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup<'a> {
    pub(crate) url: &'a str,
    /// The rules under `descriptors`.
    pub(crate) rules: &'a str,
    pub(crate) deadline: Duration,
    pub(crate) nodes: u32,
}

/// A policy with these rules.
pub(crate) fn policy_text(rules: &str) -> String {
    format!("domain: {DOMAIN}\ndescriptors:\n{rules}")
}

impl Node {
    pub(crate) fn start(setup: Setup<'_>) -> Self {
        let mut runtime = Builder::new_multi_thread();
        let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
        let clock = Clock::default();
        let (store, sent) = runtime.block_on(async {
            let config = RedisConfig::new(setup.url).expect("an address").deadline(setup.deadline);
            let config = config.settles_after(Duration::ZERO);
            let store = RedisStore::connect(config).await;
            let store = store.unwrap_or_else(|error| panic!("{error}"));
            let endpoints = store.endpoints();
            let (store, sent) = Counted::new(store);
            let nodes = Nodes::try_from(setup.nodes).expect("at least one");
            let options = SharedOptions::default().nodes(nodes).endpoints(endpoints);
            let store = SharedStore::start(store, &options, clock.clone(), &Background::tokio());
            (store.expect("address space"), sent)
        });
        let text = policy_text(setup.rules);
        let loaded = Policy::load(&[("policy.yaml", &*text)], Merging::Refuse);
        let policy = loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings));
        Self { limiter: PolicyLimiter::new(policy, store, clock), sent, runtime }
    }

    /// Sends requests at this rate; `about` chooses the key of each.
    pub(crate) fn load(
        &self,
        rate: u32,
        deadline: Duration,
        about: impl Fn(u64) -> About + Send + Sync + 'static,
    ) -> Load {
        let asker = self.asker();
        Load::start(self.runtime.handle(), (rate, deadline), move |number| {
            let (asker, about) = (asker.clone(), about(number));
            async move {
                let answer = asker.ask(about.key, &about.value).await;
                Asked { kind: about.kind, answer }
            }
        })
    }

    /// A handle for requests from tasks.
    pub(crate) fn asker(&self) -> Asker {
        Asker(self.limiter.clone())
    }

    /// Runs a task on the node's runtime.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) -> JoinHandle<()> {
        self.runtime.spawn(work)
    }

    /// Checks a key, and waits for the answer.
    pub(crate) fn check(&self, key: &str, value: &str) -> Verdict {
        let answer = self.runtime.block_on(ask(&self.limiter, key, value, false));
        answer.expect("an unavailable store is no error")
    }

    /// Sends several requests at once; returns their answers.
    pub(crate) fn check_at_once(&self, abouts: Vec<About>) -> Vec<Answer> {
        let asked = abouts.into_iter().map(|about| {
            let asker = self.asker();
            async move { asker.ask(about.key, &about.value).await }
        });
        self.runtime.block_on(futures_util::future::join_all(asked))
    }

    /// The remaining units, without taking any.
    pub(crate) fn remaining(&self, key: &str, value: &str) -> u64 {
        let answer = self.runtime.block_on(ask(&self.limiter, key, value, true));
        let answer = answer.expect("an unavailable store is no error");
        answer.remaining()
    }

    /// Returns leased units that were not spent.
    pub(crate) fn give_back(&self) {
        self.runtime.block_on(self.limiter.store().return_leases());
    }

    pub(crate) fn circuits(&self) -> Vec<CircuitReport> {
        self.limiter.store().circuits()
    }

    pub(crate) fn trips(&self) -> u64 {
        self.circuits().iter().map(|circuit| circuit.trips).sum()
    }

    pub(crate) fn stats(&self) -> FallbackStats {
        self.limiter.store().stats().fallback
    }

    /// The time at which a circuit first satisfies the condition, from now on.
    pub(crate) fn until(&self, what: &str, is_so: impl Fn(CircuitState) -> bool) -> Instant {
        let start = Instant::now();
        loop {
            if self.circuits().iter().any(|circuit| is_so(circuit.state)) {
                return Instant::now();
            }
            assert!(start.elapsed() < TIMEOUT, "waited {TIMEOUT:?} in vain until {what}");
            std::thread::park_timeout(BETWEEN_LOOKS);
        }
    }

    /// The time at which all circuits are closed.
    pub(crate) fn until_closed(&self) -> Instant {
        let start = Instant::now();
        while self.circuits().iter().any(|circuit| circuit.state != CircuitState::Closed) {
            assert!(start.elapsed() < TIMEOUT, "waited {TIMEOUT:?} in vain for the store");
            std::thread::park_timeout(BETWEEN_LOOKS);
        }
        Instant::now()
    }
}

/// A handle to a node.
#[derive(Clone, Debug)]
pub(crate) struct Asker(PolicyLimiter<Stack>);

impl Asker {
    pub(crate) async fn ask(&self, key: &str, value: &str) -> Answer {
        Answer::of(ask(&self.0, key, value, false).await)
    }
}

/// The key of a request.
#[derive(Clone, Debug)]
pub(crate) struct About {
    /// The kind under which it is counted.
    pub(crate) kind: usize,
    pub(crate) key: &'static str,
    pub(crate) value: String,
}

/// The answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Allowed(DecisionSource),
    Denied(DecisionSource),
    /// An error, which no caller should ever get.
    Nothing,
}

impl Answer {
    fn of(answer: Result<Verdict, tidegate::policy::CheckError>) -> Self {
        match answer {
            Ok(answer) if answer.is_allowed() => Self::Allowed(answer.source()),
            Ok(answer) => Self::Denied(answer.source()),
            Err(_) => Self::Nothing,
        }
    }

    pub(crate) const fn is_allowed(self) -> bool {
        matches!(self, Self::Allowed(_))
    }

    pub(crate) const fn is_by_store(self) -> bool {
        matches!(self, Self::Allowed(DecisionSource::Store) | Self::Denied(DecisionSource::Store))
    }
}

async fn ask(
    limiter: &PolicyLimiter<Stack>,
    key: &str,
    value: &str,
    peeks: bool,
) -> Result<Verdict, tidegate::policy::CheckError> {
    let entries = [Entry { key, value }];
    let descriptors = [Descriptor::new(&entries)];
    let request = Request { domain: DOMAIN, descriptors: &descriptors, hits: None };
    match peeks {
        true => limiter.peek(&request).await,
        false => limiter.check(&request).await,
    }
}

/// Waits for this long, also after spurious wake-ups.
pub(crate) fn let_pass(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::thread::park_timeout(time.saturating_sub(start.elapsed()));
    }
}
