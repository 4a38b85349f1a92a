//! The policies under `examples/policies/`: each loads without a word, decides as it says, and together
//! they show every field of the language.

mod decisions;
mod fields;
mod requests;

use std::collections::BTreeMap;
use std::path::Path;
use std::task::{Context, Poll, Waker};

use tidegate::policy::{
    CheckError, Descriptor, Entry, Merging, Policy, PolicyLimiter, Request, RequestOutcome, Settled,
};
use tidegate::store::memory::MemoryStore;
use tidegate::{Admission, Clock, Hashing, ManualClock, Permit, Span, Timestamp, Verdict};

/// New Year 2027, before any override of the examples ends.
const START: Timestamp = Timestamp::from_secs(1_798_761_600);

/// The texts of all example policies, by file name.
fn files() -> BTreeMap<String, String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/policies");
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(folder).expect("the folder of the examples") {
        let path = entry.expect("a file").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        if path.extension().is_some_and(|extension| extension == "yaml") {
            files.insert(name, std::fs::read_to_string(&path).expect("a text"));
        }
    }
    files
}

/// A limiter of one of the examples, with a clock that only a test moves.
struct Desk {
    limiter: PolicyLimiter<MemoryStore>,
    clock: ManualClock,
    domain: String,
}

impl Desk {
    fn open(file: &str) -> Self {
        let text = files().remove(file).expect("an example of this name");
        let loaded = Policy::load_at(&[(file, &text)], Merging::Refuse, START);
        let policy = loaded.policy.expect("an example can be used");
        let domain = policy.domains().next().expect("a domain").name().to_owned();
        let clock = ManualClock::at(START);
        let store = MemoryStore::new(16 << 20, Hashing::Fast).expect("some megabytes");
        let store = store.with_clock(Clock::from(clock.clone()));
        let limiter = PolicyLimiter::new(policy, store, Clock::from(clock.clone()));
        Self { limiter, clock, domain }
    }

    /// Asks about descriptors, each written as `key=value key=value`.
    fn ask(&self, descriptors: &[&str]) -> Verdict {
        self.with_request(descriptors, |request| self.limiter.check_now(request))
    }

    /// The same, holding places of in-flight limits.
    fn acquire(&self, descriptors: &[&str]) -> Admission {
        self.with_request(descriptors, |request| self.limiter.acquire_now(request))
    }

    /// Settles a request that was admitted.
    fn settle(&self, mut permit: Permit, outcome: RequestOutcome<'_>) -> Settled {
        let settlement = permit.take_settlement().expect("a limit that is settled");
        let mut settling = std::pin::pin!(settlement.settle(outcome));
        match settling.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(settled) => settled.expect("memory always answers"),
            Poll::Pending => panic!("memory never waits"),
        }
    }

    fn with_request<T>(
        &self,
        descriptors: &[&str],
        ask: impl FnOnce(&Request<'_>) -> Result<T, CheckError>,
    ) -> T {
        let entries: Vec<Vec<Entry<'_>>> = descriptors
            .iter()
            .map(|text| {
                let pairs = text.split(' ').map(|pair| pair.split_once('=').expect("key=value"));
                pairs.map(|(key, value)| Entry { key, value }).collect()
            })
            .collect();
        let descriptors: Vec<Descriptor<'_>> =
            entries.iter().map(|entries| Descriptor::new(entries)).collect();
        let request = Request { domain: &self.domain, descriptors: &descriptors, hits: None };
        ask(&request).expect("a decision")
    }

    /// How many of so many requests pass.
    fn passing(&self, requests: usize, descriptors: &[&str]) -> usize {
        (0..requests).filter(|_| self.ask(descriptors).is_allowed()).count()
    }

    fn wait(&self, span: Span) {
        self.clock.advance(span);
    }
}

/// The name of the limit that speaks.
fn binding(answer: &Verdict) -> Option<&str> {
    answer.strictest().and_then(|part| part.rule).and_then(|(_, limit)| limit.name())
}

#[test]
fn every_example_loads_without_a_word() {
    let files = files();
    assert!(files.len() >= 8, "{:?}", files.keys());
    for (name, text) in &files {
        let loaded = Policy::load_at(&[(name, text)], Merging::Refuse, START);
        assert!(loaded.policy.is_some() && loaded.findings.is_empty(), "{}", loaded.findings);
    }
    let all: Vec<(&str, &str)> = files.iter().map(|(name, text)| (&**name, &**text)).collect();
    let loaded = Policy::load_at(&all, Merging::Refuse, START);
    assert_eq!(loaded.findings, "", "as one directory");
}

#[test]
fn every_example_says_what_it_is_for() {
    for (name, text) in files() {
        let first = text.lines().next().unwrap_or_default();
        assert!(first.starts_with("# ") && first.len() > 30, "{name}: {first}");
    }
}
