//! The scripts, assembled from one Lua file per state family.

use std::sync::LazyLock;

/// Separates the code for a single charge from the code for batches.
const CUT: &str = "-- Only batches need the rest.\n";

const TTL: &str = include_str!("../lua/ttl.lua");
const CORRUPT: &str = include_str!("../lua/corrupt.lua");
const REPLY: &str = include_str!("../lua/reply.lua");
const BUCKET: &str = include_str!("../lua/bucket.lua");
const FIXED_WINDOW: &str = include_str!("../lua/fixed_window.lua");
const SLIDING_WINDOW: &str = include_str!("../lua/sliding_window.lua");
const SLIDING_LOG: &str = include_str!("../lua/sliding_log.lua");
const INFLIGHT: &str = include_str!("../lua/inflight.lua");
const BLOCKING: &str = include_str!("../lua/blocking.lua");

/// The table in which batches look up families.
const TABLE: &str = "local families = { bucket = bucket, fixed_window = fixed_window, \
    sliding_window = sliding_window, sliding_log = sliding_log, inflight = inflight }\n";

/// The clock that decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimeSource {
    /// The store's clock: one for all nodes.
    #[default]
    Store,
    /// The caller's clock. For tests only: nodes with different clocks would decide differently.
    Caller,
}

/// A script and its hash.
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
/// The self-test runs all of them, so there must be few. A call whose script the server does not
/// know is sent again, and later requests overtake it.
#[derive(Debug)]
pub(in crate::store::redis) struct Scripts {
    pub(in crate::store::redis) time: TimeSource,
    pub(in crate::store::redis) bucket: Script,
    pub(in crate::store::redis) fixed_window: Script,
    pub(in crate::store::redis) sliding_window: Script,
    pub(in crate::store::redis) sliding_log: Script,
    pub(in crate::store::redis) inflight: Script,
    pub(in crate::store::redis) blocking: Script,
    pub(in crate::store::redis) batch_bucket: Script,
    pub(in crate::store::redis) batch: Script,
}

impl Scripts {
    /// The scripts for this clock, hashed once per process.
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
            fixed_window: single("fixed_window", FIXED_WINDOW),
            sliding_window: single("sliding_window", SLIDING_WINDOW),
            sliding_log: single("sliding_log", SLIDING_LOG),
            inflight: single("inflight", INFLIGHT),
            blocking: Script::new(&[
                clock,
                TTL,
                CORRUPT,
                REPLY,
                &families,
                TABLE,
                BLOCKING,
                &include_str!("../lua/single.lua").replace("family_", "blocking_"),
            ]),
            batch_bucket: bucket(include_str!("../lua/batch_bucket.lua")),
            batch: Script::new(&[
                clock,
                TTL,
                CORRUPT,
                REPLY,
                &families,
                TABLE,
                BLOCKING,
                include_str!("../lua/batch.lua"),
            ]),
        }
    }
}

/// The code for a single charge.
fn hot(text: &'static str) -> &'static str {
    text.split_once(CUT).map_or(text, |(hot, _)| hot)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nodes of two releases share a server and its states. A changed script must read what the old
    /// one wrote, and the old script what the new one writes; otherwise the keys need other names
    /// (`name.rs`). Once that is checked, and `cargo xtask test` has compared the new script with
    /// the model, its hash is updated here.
    #[test]
    fn no_script_changes_unnoticed() {
        let scripts = Scripts::by(TimeSource::Store);
        let Scripts { bucket, fixed_window, sliding_window, sliding_log, inflight, .. } = scripts;
        let Scripts { batch_bucket, batch, .. } = scripts;
        for (name, script, hash) in [
            ("bucket", bucket, "1c9965ad1117e1bcebb208e6f7a69eb2671c73e0"),
            ("fixed_window", fixed_window, "01896e721214d6bc360ef7927edeea549a778517"),
            ("sliding_window", sliding_window, "47708c74fcd08f9a2803d513658c9e8bb1001f3c"),
            ("sliding_log", sliding_log, "20f646a01f1bceb4ecb6201aa9c5fec8896b746f"),
            ("inflight", inflight, "a51e23b2daa902ec9015d7af94d5915748a990b5"),
            ("batch_bucket", batch_bucket, "99ce1367fb07ba60ce1835e471a350fcd1f12a52"),
            ("blocking", &scripts.blocking, "361446c3532391cae84c58da691efa55709fae07"),
            ("batch", batch, "2ecc59d9ea12070ac261857bc16603ecaa057adc"),
        ] {
            assert_eq!(script.hash, hash, "{name}");
        }
    }
}
