//! The scripts, put together from one Lua file per state family.

use std::sync::LazyLock;

/// Cuts what a single charge needs from what only batches do.
const CUT: &str = "-- Only batches need the rest.\n";

const REPLY: &str = include_str!("lua/reply.lua");
const BUCKET: &str = include_str!("lua/bucket.lua");
const FIXED_WINDOW: &str = include_str!("lua/fixed_window.lua");
const SLIDING_WINDOW: &str = include_str!("lua/sliding_window.lua");
const SLIDING_LOG: &str = include_str!("lua/sliding_log.lua");
const INFLIGHT: &str = include_str!("lua/inflight.lua");

/// Whose clock decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeSource {
    /// The store's: one clock for all nodes.
    #[default]
    Store,
    /// The caller's. For tests only: nodes that disagree about the time disagree about limits.
    Caller,
}

/// A script and what the server calls it.
#[derive(Debug)]
pub(super) struct Script {
    pub(super) text: String,
    pub(super) hash: String,
}

impl Script {
    fn new(parts: &[&str]) -> Self {
        let text = parts.concat();
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}

/// One script for each family's single take, and one for everything else.
#[derive(Debug)]
pub(super) struct Scripts {
    pub(super) time: TimeSource,
    pub(super) bucket: Script,
    pub(super) fixed_window: Script,
    pub(super) sliding_window: Script,
    pub(super) sliding_log: Script,
    pub(super) inflight: Script,
    pub(super) batch: Script,
}

impl Scripts {
    /// The scripts that go by this clock, hashed once per process.
    pub(super) fn by(time: TimeSource) -> &'static Self {
        static STORE: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(TimeSource::Store));
        static CALLER: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(TimeSource::Caller));
        match time {
            TimeSource::Store => &STORE,
            TimeSource::Caller => &CALLER,
        }
    }

    fn new(time: TimeSource) -> Self {
        let clock = match time {
            TimeSource::Store => include_str!("lua/prelude.lua"),
            TimeSource::Caller => include_str!("lua/given_time.lua"),
        };
        let single = |family: &str, text: &'static str| {
            let ending = include_str!("lua/single.lua").replace("family_", &format!("{family}_"));
            Script::new(&[clock, REPLY, hot(text), &ending])
        };
        let ending = include_str!("lua/single_bucket.lua");
        let families = [BUCKET, FIXED_WINDOW, SLIDING_WINDOW, SLIDING_LOG, INFLIGHT].concat();
        Self {
            time,
            bucket: Script::new(&[clock, REPLY, hot(BUCKET), ending]),
            fixed_window: single("fixed_window", FIXED_WINDOW),
            sliding_window: single("sliding_window", SLIDING_WINDOW),
            sliding_log: single("sliding_log", SLIDING_LOG),
            inflight: single("inflight", INFLIGHT),
            batch: Script::new(&[clock, REPLY, &families, include_str!("lua/batch.lua")]),
        }
    }
}

/// What a single charge needs.
fn hot(text: &'static str) -> &'static str {
    text.split_once(CUT).map_or(text, |(hot, _)| hot)
}
