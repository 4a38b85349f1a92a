//! Rounding to the units of protocols, for every codec: waits and resets round up, so that a client
//! that waits for the reported time has waited long enough.

use std::time::Duration;

/// Whole seconds, rounded up.
///
/// ```
/// use std::time::Duration;
/// assert_eq!(tidegate::verdict::whole_seconds(Duration::from_millis(1_001)), 2);
/// ```
#[doc(hidden)]
pub fn whole_seconds(time: impl Into<Duration>) -> u64 {
    let time = time.into();
    time.as_secs() + u64::from(time.subsec_nanos() > 0)
}

/// Whole milliseconds, rounded up.
#[doc(hidden)]
pub fn whole_millis(time: impl Into<Duration>) -> u64 {
    u64::try_from(time.into().as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}
