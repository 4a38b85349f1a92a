//! When to send requests, and which answers cannot be compared because of their time.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Time that a request may take, also on a busy machine.
const BEFORE_THE_END: Duration = Duration::from_millis(40);
/// Clocks that count from the start of a process differ by less than this.
const AFTER_THE_START: Duration = Duration::from_millis(10);
const SECOND: Duration = Duration::from_secs(1);

/// Names of units as in answers, and their seconds.
const UNITS: [(&str, u64); 7] = [
    ("SECOND", 1),
    ("MINUTE", 60),
    ("HOUR", 3_600),
    ("DAY", 86_400),
    ("WEEK", 7 * 86_400),
    ("MONTH", 30 * 86_400),
    ("YEAR", 365 * 86_400),
];

/// A whole second since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Moment(u64);

impl Moment {
    /// This second.
    pub fn now() -> Self {
        Self(since_1970().as_secs())
    }

    /// Waits until a request would be answered within the second in which it is sent.
    pub fn to_ask() -> Self {
        loop {
            let now = since_1970();
            let into = Duration::from_nanos(now.subsec_nanos().into());
            if into < AFTER_THE_START {
                thread::park_timeout(AFTER_THE_START - into);
            } else if into > SECOND - BEFORE_THE_END {
                thread::park_timeout(SECOND - into);
            } else {
                return Self(now.as_secs());
            }
        }
    }
}

/// Windows that began while both servers were being asked. The servers may have counted a request
/// in different windows, and continue to differ until these end.
#[derive(Debug, Default)]
pub struct Seam([Option<u64>; UNITS.len()]);

impl Seam {
    /// Records that a request was sent between these moments.
    pub fn note(&mut self, from: Moment, to: Moment) {
        for (window, (_, length)) in self.0.iter_mut().zip(UNITS) {
            if from.0 / length != to.0 / length {
                *window = Some(to.0 / length);
            }
        }
    }

    /// Whether counts of this unit cannot be compared now.
    pub fn touches(&self, unit: &str, now: Moment) -> bool {
        let mut units = self.0.iter().zip(UNITS);
        units.any(|(window, (name, length))| name == unit && *window == Some(now.0 / length))
    }
}

#[expect(clippy::disallowed_methods, reason = "other processes decide by the time of the machine")]
fn since_1970() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("it is later than 1970")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seam_lasts_as_long_as_the_window_that_began() {
        let mut seam = Seam::default();
        seam.note(Moment(119), Moment(120));
        assert!(seam.touches("SECOND", Moment(120)));
        assert!(!seam.touches("SECOND", Moment(121)));
        assert!(seam.touches("MINUTE", Moment(179)));
        assert!(!seam.touches("MINUTE", Moment(180)));
        assert!(!seam.touches("HOUR", Moment(120)));
    }
}
