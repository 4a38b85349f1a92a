//! The scripts, put together from one Lua file per state family.

use std::sync::LazyLock;

/// Cuts what a single charge needs from what only batches do.
const CUT: &str = "-- Only batches need the rest.\n";

const TTL: &str = include_str!("../lua/ttl.lua");
const CORRUPT: &str = include_str!("../lua/corrupt.lua");
const REPLY: &str = include_str!("../lua/reply.lua");
const BUCKET: &str = include_str!("../lua/bucket.lua");
const FIXED_WINDOW: &str = include_str!("../lua/fixed_window.lua");
const SLIDING_WINDOW: &str = include_str!("../lua/sliding_window.lua");
const SLIDING_LOG: &str = include_str!("../lua/sliding_log.lua");
const INFLIGHT: &str = include_str!("../lua/inflight.lua");

/// What batches find the families by.
const TABLE: &str = "local families = { bucket = bucket, fixed_window = fixed_window, \
    sliding_window = sliding_window, sliding_log = sliding_log, inflight = inflight }\n";

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
pub(in crate::store::redis) struct Script {
    pub(in crate::store::redis) text: String,
    pub(in crate::store::redis) hash: String,
}

impl Script {
    fn new(parts: &[&str]) -> Self {
        let text = parts.concat();
        let hash = redis::Script::new(&text).get_hash().to_owned();
        Self { text, hash }
    }
}

/// One script for each family's single take, one for takes on buckets, and one for everything else.
/// Few, so that the self-test runs them all: a script that the server does not know is sent again,
/// after what was asked later.
#[derive(Debug)]
pub(in crate::store::redis) struct Scripts {
    pub(in crate::store::redis) time: TimeSource,
    pub(in crate::store::redis) bucket: Script,
    pub(in crate::store::redis) whole_bucket: Script,
    pub(in crate::store::redis) fixed_window: Script,
    pub(in crate::store::redis) sliding_window: Script,
    pub(in crate::store::redis) sliding_log: Script,
    pub(in crate::store::redis) inflight: Script,
    pub(in crate::store::redis) batch_bucket: Script,
    pub(in crate::store::redis) batch: Script,
}

impl Scripts {
    /// The scripts that go by this clock, hashed once per process.
    pub(in crate::store::redis) fn by(time: TimeSource) -> &'static Self {
        static STORE: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(TimeSource::Store));
        static CALLER: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(TimeSource::Caller));
        match time {
            TimeSource::Store => &STORE,
            TimeSource::Caller => &CALLER,
        }
    }

    fn new(time: TimeSource) -> Self {
        let clock = match time {
            TimeSource::Store => include_str!("../lua/prelude.lua"),
            TimeSource::Caller => include_str!("../lua/given_time.lua"),
        };
        let single = |family: &str, text: &'static str| {
            let ending =
                include_str!("../lua/single.lua").replace("family_", &format!("{family}_"));
            Script::new(&[clock, TTL, CORRUPT, REPLY, hot(text), &ending])
        };
        let families = [BUCKET, FIXED_WINDOW, SLIDING_WINDOW, SLIDING_LOG, INFLIGHT].concat();
        let bucket = |ending| Script::new(&[clock, TTL, CORRUPT, hot(BUCKET), ending]);
        Self {
            time,
            bucket: bucket(include_str!("../lua/single_bucket.lua")),
            whole_bucket: bucket(include_str!("../lua/single_whole_bucket.lua")),
            fixed_window: single("fixed_window", FIXED_WINDOW),
            sliding_window: single("sliding_window", SLIDING_WINDOW),
            sliding_log: single("sliding_log", SLIDING_LOG),
            inflight: single("inflight", INFLIGHT),
            batch_bucket: bucket(include_str!("../lua/batch_bucket.lua")),
            batch: Script::new(&[
                clock,
                TTL,
                CORRUPT,
                REPLY,
                &families,
                TABLE,
                include_str!("../lua/batch.lua"),
            ]),
        }
    }
}

/// What a single charge needs.
fn hot(text: &'static str) -> &'static str {
    text.split_once(CUT).map_or(text, |(hot, _)| hot)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes of two releases share a server and its states. So a script that changes must still
    /// read what the old one wrote, and the old one what it writes; if it cannot, the keys need
    /// other names (`name.rs`). Once that is settled, and `cargo xtask test` has compared the new
    /// script with the model, its hash goes here.
    #[test]
    fn no_script_changes_unnoticed() {
        let scripts = Scripts::by(TimeSource::Store);
        let Scripts { bucket, fixed_window, sliding_window, sliding_log, inflight, .. } = scripts;
        let Scripts { whole_bucket, batch_bucket, .. } = scripts;
        let batch = &scripts.batch;
        for (name, script, hash) in [
            ("bucket", bucket, "d97a69b209d41077c5fef94a798f82d8308bdc5c"),
            ("whole_bucket", whole_bucket, "4b39bb55fd7c4425888b55087e7b50a290cc6ec3"),
            ("fixed_window", fixed_window, "81c246806428089aa0b92b425043dfe7db41af60"),
            ("sliding_window", sliding_window, "a364e1783af2ff1c071202f5f95c4ee25a22b2fc"),
            ("sliding_log", sliding_log, "b358009de39097a77f063d1e6ef883b70c1d3c27"),
            ("inflight", inflight, "3449c32bbb7d317bd50d60372125c1590a5a6922"),
            ("batch_bucket", batch_bucket, "a57b216e195d112325d63fa8af3f8219ebce5710"),
            ("batch", batch, "c5e6c8fd82a891eaebe03eba8f00db1a30046418"),
        ] {
            assert_eq!(script.hash, hash, "{name}");
        }
    }
}
