//! Malformed policies: parts of valid ones, cut, repeated and mixed.

use fastrand::Rng;
use tidegate::policy::{Descriptor, Entry, HttpRequest, Merging, Policy, PolicyLimiter, Request};

/// The longest text of a mutator.
const MAX_BYTES: usize = 16 << 10;

/// Pieces that are likely to break parsers and numbers.
const PIECES: &[&str] = &[
    "\t",
    "\n",
    " ",
    "  - ",
    ": ",
    "{",
    "}",
    "[",
    "]",
    "&a ",
    "*a",
    "!!binary ",
    "|",
    ">",
    "'",
    "\"",
    "\\",
    "#",
    "---\n",
    "...\n",
    "%",
    "~",
    "null",
    "true",
    "-1",
    "0",
    "1e9",
    "0x7fffffffffffffff",
    "18446744073709551616",
    "0/s",
    "1/0s",
    "999999999999999/us",
    "1/year",
    "..",
    "*",
    "**",
    "é",
    "\u{feff}",
    "\u{0}",
    "? ",
    "<<: ",
    "100.01%",
    "-0%",
    "9999-12-31",
    "0000-00-00",
    "/{a",
    "/{a}/{a}",
    "{rest...}",
    "::/129",
    "10.0.0.0/33",
    "Europe/Nowhere",
];

/// Makes texts from other texts.
#[derive(Debug)]
pub struct Mutator {
    rng: Rng,
    seeds: Vec<String>,
}

impl Mutator {
    /// Starts from these texts; the same seed gives the same results.
    pub fn new(seed: u64, seeds: Vec<String>) -> Self {
        Self { rng: Rng::with_seed(seed), seeds }
    }

    /// Returns another text.
    pub fn next_text(&mut self) -> String {
        let mut text = self.rng.choice(&self.seeds).cloned().unwrap_or_default();
        for _ in 0..self.rng.usize(1..8) {
            text = self.changed(&text);
            let end = (0..=MAX_BYTES.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
            text.truncate(end.unwrap_or(0));
        }
        text
    }

    fn changed(&mut self, text: &str) -> String {
        let (from, to) = (self.place(text), self.place(text));
        let (from, to) = (from.min(to), from.max(to));
        let piece = self.rng.choice(PIECES).copied().unwrap_or_default();
        match self.rng.u8(0..7) {
            // Inserts a foreign piece.
            0 | 1 => format!("{}{piece}{}", &text[..from], &text[from..]),
            // Replaces a part by a foreign piece.
            2 => format!("{}{piece}{}", &text[..from], &text[to..]),
            // Removes a part.
            3 => format!("{}{}", &text[..from], &text[to..]),
            // Repeats a part.
            4 => format!("{}{}{}", &text[..to], &text[from..to], &text[to..]),
            // Inserts lines of another policy.
            5 => {
                let other = self.rng.choice(&self.seeds).cloned().unwrap_or_default();
                let at = self.place(&other);
                let lines: String =
                    other[at..].lines().take(5).map(|line| format!("{line}\n")).collect();
                format!("{}{lines}{}", &text[..from], &text[from..])
            }
            // Nests deeper and deeper.
            _ => format!(
                "{}{}{}",
                &text[..from],
                piece.repeat(self.rng.usize(1..300)),
                &text[from..]
            ),
        }
    }

    /// A position between two characters.
    fn place(&mut self, text: &str) -> usize {
        let at = self.rng.usize(0..=text.len());
        (0..=at).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
    }
}

/// Loads a text, and if it is a policy, decides some requests by it; returns whether it is one.
pub fn try_policy(text: &str) -> bool {
    let loaded = Policy::load(&[("mutant.yaml", text)], Merging::Allow);
    assert_eq!(loaded.policy.is_none(), loaded.errors > 0, "{}", loaded.findings);
    let Some(policy) = loaded.policy else {
        assert!(!loaded.findings.is_empty(), "refused without a word");
        return false;
    };
    let domains: Vec<String> = policy.domains().map(|domain| domain.name().to_owned()).collect();
    let headers = [("x-api-key", "k"), ("x-forwarded-for", "1.2.3.4, ::1"), ("cookie", "a=b; c")];
    for domain in policy.domains() {
        let request = HttpRequest {
            method: "GET",
            path: "/v1//users/%37?x=%2",
            host: Some("api.example.com:80"),
            headers: &headers,
            peer: None,
        };
        let described = domain.requests().describe(&request);
        let count = described.map_or(0, |described| described.descriptors().len());
        assert!(count <= tidegate::policy::MAX_DESCRIBED);
    }
    let store = tidegate::store::memory::MemoryStore::new(64 << 10, tidegate::Hashing::Fast);
    let store = store.expect("a small store");
    let limiter = PolicyLimiter::new(policy, store, tidegate::Clock::default());
    for domain in &domains {
        for key in ["user", "api_key", "client", "path", "key"] {
            let entries = [Entry { key, value: "x" }, Entry { key: "path", value: "/v1/x" }];
            let descriptors = [Descriptor::new(&entries[..1]), Descriptor::new(&entries)];
            let request = Request { domain, descriptors: &descriptors, hits: Some(3) };
            // An error about too many limits is a valid answer, too.
            let _ = limiter.check_now(&request);
            let _ = limiter.explain_now(&request);
        }
    }
    true
}
