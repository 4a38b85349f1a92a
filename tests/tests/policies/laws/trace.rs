//! Random policies, what is asked of them, and a bench to ask it.

use std::fmt;

use fastrand::Rng;
use tidegate::policy::{
    Agreement, Descriptor, Entry, Hits, Merging, Policy, PolicyLimiter, Request,
};
use tidegate::store::memory::MemoryStore;
use tidegate::{Clock, Explanation, Hashing, ManualClock, Span, Verdict};

const KEYS: [&str; 3] = ["a", "b", "c"];
const VALUES: [&str; 2] = ["x", "y"];
/// The largest count, burst or queue of a random limit.
const MOST: u64 = 5;

fn one_of<'a>(rng: &mut Rng, words: &[&'a str]) -> &'a str {
    words[rng.usize(0..words.len())]
}

/// Any algorithm with any numbers, as the fields of a limit.
pub(crate) fn plain_limit(rng: &mut Rng) -> String {
    let (count, per) = (rng.u64(1..=MOST), one_of(rng, &["s", "10s", "min"]));
    let algorithm = one_of(
        rng,
        &["token_bucket", "gcra", "leaky_bucket", "fixed_window", "sliding_window", "sliding_log"],
    );
    let mut text = format!("rate: {count}/{per}, algorithm: {algorithm}");
    let is_bucket = ["token_bucket", "gcra", "leaky_bucket"].contains(&algorithm);
    if is_bucket && rng.bool() {
        text += &format!(", burst: {}", rng.u64(1..=MOST));
    }
    if algorithm == "leaky_bucket" && rng.bool() {
        text += &format!(", queue: {}", rng.u64(0..=MOST));
    }
    text
}

/// The same, and perhaps a cost.
pub(crate) fn any_limit(rng: &mut Rng) -> String {
    let cost = if rng.u8(..) < 64 { format!(", cost: {}", rng.u64(0..=3)) } else { String::new() };
    plain_limit(rng) + &cost
}

/// And perhaps more: a shadow, a limit beside, a window that counts what it denies.
fn special_limit(rng: &mut Rng) -> String {
    match rng.u8(0..6) {
        0 => format!("{}, mode: shadow", any_limit(rng)),
        1 => format!("{}, shadow: {{{}}}", any_limit(rng), plain_limit(rng)),
        2 => {
            let count = rng.u64(1..=MOST);
            format!("rate: {count}/10s, algorithm: fixed_window, count_denied: true")
        }
        _ => any_limit(rng),
    }
}

/// A random policy.
pub(crate) struct Sketch {
    charge: &'static str,
    descriptors: Vec<String>,
}

impl Sketch {
    /// With both forms, and everything that a limit can be.
    pub(crate) fn anything(rng: &mut Rng) -> Self {
        let charge = ["", "charge: together\n", "charge: each\n"][rng.usize(0..3)];
        let descriptor = |rng: &mut Rng| match rng.u8(0..3) {
            0 => special_limit(rng),
            1 => several(rng, special_limit),
            _ => envoy_form(rng),
        };
        Self { charge, descriptors: KEYS.iter().map(|_| descriptor(rng)).collect() }
    }

    /// Limits of ours, charged together, all of which count.
    pub(crate) fn ours(rng: &mut Rng) -> Self {
        let descriptor =
            |rng: &mut Rng| if rng.bool() { any_limit(rng) } else { several(rng, any_limit) };
        Self { charge: "", descriptors: KEYS.iter().map(|_| descriptor(rng)).collect() }
    }
}

fn several(rng: &mut Rng, limit: impl Fn(&mut Rng) -> String) -> String {
    let limits: Vec<String> =
        (0..rng.usize(2..4)).map(|n| format!("{{name: l{n}, {}}}", limit(rng))).collect();
    format!("limits: [{}]", limits.join(", "))
}

fn envoy_form(rng: &mut Rng) -> String {
    let (count, unit) = (rng.u64(0..=MOST), one_of(rng, &["second", "minute"]));
    let mode = one_of(rng, &["", "shadow_mode: true, ", "quota_mode: true, "]);
    format!("{mode}rate_limit: {{unit: {unit}, requests_per_unit: {count}}}")
}

impl fmt::Display for Sketch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "domain: api\n{}descriptors:\n", self.charge)?;
        for (key, descriptor) in KEYS.iter().zip(&self.descriptors) {
            writeln!(f, "  - {{key: {key}, {descriptor}}}")?;
        }
        Ok(())
    }
}

/// How long until the next request: mostly no time at all.
pub(crate) fn pause(rng: &mut Rng) -> Span {
    match rng.u8(0..4) {
        0 => Span::from_millis(rng.u64(0..3_000)),
        1 => Span::from_micros(rng.u64(0..20_000_000)),
        _ => Span::ZERO,
    }
}

/// Keys, values, and what each costs.
#[derive(Clone, Debug)]
pub(crate) struct Asked(Vec<(&'static str, &'static str, Option<Hits>)>);

impl Asked {
    /// One to three descriptors, some of which may be the same.
    pub(crate) fn taking(rng: &mut Rng) -> Self {
        let one = |rng: &mut Rng| {
            let hits = rng.bool().then(|| Hits::Take(rng.u64(0..=MOST + 2)));
            (KEYS[rng.usize(0..KEYS.len())], VALUES[rng.usize(0..VALUES.len())], hits)
        };
        Self((0..rng.usize(1..4)).map(|_| one(rng)).collect())
    }

    /// The same, some of which give units back.
    pub(crate) fn anything(rng: &mut Rng) -> Self {
        let mut asked = Self::taking(rng);
        for (.., hits) in &mut asked.0 {
            if rng.u8(..) < 32 {
                *hits = Some(Hits::Return(rng.u64(0..=MOST)));
            }
        }
        asked
    }

    /// One value of each of the first two keys.
    pub(crate) fn of_both(rng: &mut Rng) -> Self {
        let hits = rng.bool().then(|| Hits::Take(rng.u64(0..=MOST + 2)));
        let value = VALUES[rng.usize(0..VALUES.len())];
        Self(vec![("a", value, hits), ("b", "x", None)])
    }

    pub(crate) fn only(&self, key: &str) -> Self {
        Self(self.0.iter().filter(|asked| asked.0 == key).copied().collect())
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn gives_back(&self) -> bool {
        self.0.iter().any(|(.., hits)| matches!(hits, Some(Hits::Return(_))))
    }

    pub(crate) fn meets_a_state_twice(&self) -> bool {
        let same = |a: usize, b: usize| self.0[a].0 == self.0[b].0 && self.0[a].1 == self.0[b].1;
        (0..self.0.len()).any(|a| (0..a).any(|b| same(a, b)))
    }
}

/// A policy in memory, and its clock.
pub(crate) struct Bench {
    limiter: PolicyLimiter<MemoryStore>,
    clock: ManualClock,
}

impl Bench {
    pub(crate) fn new(text: &str) -> Self {
        let loaded = Policy::load(&[("law.yaml", text)], Merging::Refuse);
        let policy = loaded.policy.unwrap_or_else(|| panic!("{}\n{text}", loaded.findings));
        let clock = ManualClock::new();
        let store = MemoryStore::new(MemoryStore::MIN_BYTES, Hashing::Fast).expect("some memory");
        let store = store.with_clock(Clock::from(clock.clone()));
        Self { limiter: PolicyLimiter::new(policy, store, Clock::from(clock.clone())), clock }
    }

    pub(crate) fn advance(&self, span: Span) {
        self.clock.advance(span);
    }

    pub(crate) fn check(&self, asked: &Asked) -> Verdict {
        with_request(asked, |request| self.limiter.check_now(request).expect("a decision"))
    }

    pub(crate) fn explain(&self, asked: &Asked) -> Verdict {
        with_request(asked, |request| self.limiter.explain_now(request).expect("an explanation"))
    }

    /// What every state there may be means.
    pub(crate) fn states(&self) -> Vec<Option<Explanation>> {
        let all = KEYS.iter().flat_map(|key| VALUES.iter().map(move |value| (*key, *value, None)));
        let now = self.clock.now();
        // Whatever is idle now is as good as never seen, whenever it was.
        let since = |state: Explanation| Explanation { idle_at: state.idle_at.max(now), ..state };
        let mut states = Vec::new();
        for one in all {
            let verdict = self.explain(&Asked(vec![one]));
            states.extend(verdict.parts().map(|part| part.state.cloned().map(since)));
        }
        states
    }

    /// What was counted beside the limit of a key.
    pub(crate) fn agreement(&self, key: &str) -> Agreement {
        let policy = self.limiter.policy();
        let mut rules = policy.domain("api").expect("its domain").rules().iter();
        let rule = rules.find(|rule| rule.path() == key).expect("its rule");
        rule.limits()[0].shadow().expect("a limit beside").agreement()
    }
}

fn with_request<T>(asked: &Asked, ask: impl FnOnce(&Request<'_>) -> T) -> T {
    let entries: Vec<[Entry<'_>; 1]> =
        asked.0.iter().map(|(key, value, _)| [Entry { key, value }]).collect();
    let descriptors: Vec<Descriptor<'_>> = asked
        .0
        .iter()
        .zip(&entries)
        .map(|((.., hits), entries)| Descriptor { hits: *hits, ..Descriptor::new(entries) })
        .collect();
    ask(&Request { domain: "api", descriptors: &descriptors, hits: None })
}
