//! File descriptors: as many as the system lets us have, and some that connections never get.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Kept back for policies, certificates, the store and whatever else has to be opened while clients
/// hold all they can.
const KEPT: u64 = 128;

/// Raises the limit as far as it goes, and says how many connections fit below it (F20).
pub(crate) fn for_connections() -> usize {
    let limits = getrlimit(Resource::Nofile);
    if limits.current < limits.maximum || limits.maximum.is_none() {
        // Without the right to do so, the old limit stays.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limits.maximum, ..limits });
    }
    // No limit at all is told by `None`; connections are bounded by the settings then.
    let open = getrlimit(Resource::Nofile).current.unwrap_or(u64::from(u32::MAX));
    let kept = KEPT.min(open / 2);
    usize::try_from(open - kept).unwrap_or(usize::MAX)
}
