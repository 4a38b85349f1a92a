//! Time. The only file that reads it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tidegate_core::{Span, Timestamp};

/// Where a limiter gets its time from.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's: wall time at start plus monotonic time since, so that setting the wall clock
    /// neither refills nor empties anything.
    System(SystemClock),
    /// A test's: moves only when told to.
    Manual(ManualClock),
}

impl Default for Clock {
    fn default() -> Self {
        Self::System(SystemClock::new())
    }
}

impl From<ManualClock> for Clock {
    fn from(clock: ManualClock) -> Self {
        Self::Manual(clock)
    }
}

impl Clock {
    /// Now.
    #[inline]
    pub fn now(&self) -> Timestamp {
        match self {
            Self::System(clock) => clock.now(),
            Self::Manual(clock) => clock.now(),
        }
    }
}

/// The processor's time stamp counter, checked against the kernel's monotonic clock.
///
/// Reading the counter costs a third of asking the kernel, but some virtual machines have counters
/// that jump between cores. So every tenth of a second one reader compares the two: small drift is
/// corrected, and a counter found to have jumped is not used again.
#[derive(Clone, Debug)]
pub struct SystemClock(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    counter: quanta::Clock,
    counter_at_start: u64,
    /// Microseconds per counter tick, as a fraction of 2^64.
    scale: u64,
    started: Instant,
    started_micros: u64,
    /// Microseconds to add to what the counter says.
    correction: AtomicI64,
    next_check: AtomicU64,
    checked_micros: AtomicU64,
    ticks_between_checks: u64,
    distrusted: AtomicBool,
}

impl SystemClock {
    /// A clock that starts at the present wall time.
    #[expect(clippy::disallowed_methods, reason = "this is the file that reads time")]
    pub fn new() -> Self {
        const TICKS: u64 = 1 << 40;
        let counter = quanta::Clock::new();
        let nanos = u128::from(counter.delta_as_nanos(0, TICKS)).max(1);
        let scale = (nanos << 24) / 1_000;
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let counter_at_start = counter.raw();
        let ticks_between_checks = u64::try_from(100_000_000 * u128::from(TICKS) / nanos);
        Self(Arc::new(Shared {
            counter_at_start,
            scale: u64::try_from(scale).unwrap_or(u64::MAX),
            started: Instant::now(),
            started_micros: Span::from(since_epoch).as_micros(),
            correction: AtomicI64::new(0),
            next_check: AtomicU64::new(counter_at_start),
            checked_micros: AtomicU64::new(0),
            ticks_between_checks: ticks_between_checks.unwrap_or(u64::MAX).max(1),
            distrusted: AtomicBool::new(false),
            counter,
        }))
    }

    /// Now.
    #[inline]
    pub fn now(&self) -> Timestamp {
        let shared = &*self.0;
        let raw = shared.counter.raw();
        if raw >= shared.next_check.load(Ordering::Relaxed) {
            return shared.check(raw);
        }
        let corrected =
            shared.elapsed(raw).wrapping_add_signed(shared.correction.load(Ordering::Relaxed));
        Timestamp::from_micros(shared.started_micros + corrected)
    }

    /// False once the time stamp counter was found to be off, and the kernel is asked each time.
    pub fn trusts_counter(&self) -> bool {
        !self.0.distrusted.load(Ordering::Relaxed)
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Shared {
    #[inline]
    fn elapsed(&self, raw: u64) -> u64 {
        let ticks = raw.saturating_sub(self.counter_at_start);
        ((u128::from(ticks) * u128::from(self.scale)) >> 64) as u64
    }

    #[cold]
    fn check(&self, raw: u64) -> Timestamp {
        let elapsed = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let off = elapsed.wrapping_sub(self.elapsed(raw)).cast_signed();
        let before = self.correction.swap(off, Ordering::Relaxed);
        let checked = self.checked_micros.swap(elapsed, Ordering::Relaxed);
        if !is_sound(off.abs_diff(before), elapsed.saturating_sub(checked)) {
            self.distrusted.store(true, Ordering::Relaxed);
        }
        // A counter that is not trusted is always due for a check, which asks the kernel.
        let next = match self.distrusted.load(Ordering::Relaxed) {
            true => 0,
            false => raw.saturating_add(self.ticks_between_checks),
        };
        self.next_check.store(next, Ordering::Relaxed);
        Timestamp::from_micros(self.started_micros.saturating_add(elapsed))
    }
}

/// Between two checks the counter may drift by a thousandth, and seem off by as long as a thread
/// may be kept from the processor between reading the one clock and the other.
fn is_sound(strayed_micros: u64, between_checks_micros: u64) -> bool {
    const PREEMPTED: u64 = 50_000;
    strayed_micros <= PREEMPTED + between_checks_micros / 1_000
}

/// A clock for tests: it stands still until it is moved. Clones share the time.
///
/// ```
/// use tidegate::{ManualClock, Span};
///
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Span::from_secs(60));
/// assert_eq!(clock.now(), before + Span::from_secs(60));
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Manual>);

#[derive(Debug)]
struct Manual {
    micros: AtomicU64,
    #[cfg(feature = "tokio")]
    moved: tokio::sync::Notify,
}

impl ManualClock {
    /// A clock that stands at 2020-01-01 00:00 UTC, the start of a window of any usual length.
    pub fn new() -> Self {
        Self::at(Timestamp::from_secs(1_577_836_800))
    }

    /// A clock that stands at `now`.
    pub fn at(now: Timestamp) -> Self {
        Self(Arc::new(Manual {
            micros: AtomicU64::new(now.as_micros()),
            #[cfg(feature = "tokio")]
            moved: tokio::sync::Notify::new(),
        }))
    }

    /// Now.
    #[inline]
    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.micros.load(Ordering::SeqCst))
    }

    /// Moves the clock forwards, and wakes whoever waits for the new time.
    pub fn advance(&self, span: Span) {
        self.set(self.now() + span);
    }

    /// Sets the clock to any instant, earlier ones too.
    pub fn set(&self, now: Timestamp) {
        self.0.micros.store(now.as_micros(), Ordering::SeqCst);
        #[cfg(feature = "tokio")]
        self.0.moved.notify_waiters();
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(feature = "tokio")]
impl Clock {
    /// Completes once the clock has reached `instant`.
    pub(crate) async fn sleep_until(&self, instant: Timestamp) {
        match self {
            Self::System(clock) => {
                // A timer may fire a little early by our clock: ask again.
                while clock.now() < instant {
                    let wait = instant.since(clock.now()).as_micros();
                    tokio::time::sleep(std::time::Duration::from_micros(wait)).await;
                }
            }
            Self::Manual(clock) => loop {
                let moved = clock.0.moved.notified();
                if clock.now() >= instant {
                    return;
                }
                moved.await;
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[expect(clippy::disallowed_methods, reason = "compares with the kernel's clock")]
    fn the_system_clock_agrees_with_the_kernel() {
        let (clock, start) = (SystemClock::new(), Instant::now());
        let first = clock.now();
        let mut last = first;
        while start.elapsed().as_millis() < 350 {
            let now = clock.now();
            // Corrections are far below what this would allow.
            assert!(now + Span::from_millis(5) >= last, "{now} after {last}");
            last = now;
        }
        let passed = u64::try_from(start.elapsed().as_micros()).unwrap();
        let measured = clock.now().since(first).as_micros();
        assert!(measured.abs_diff(passed) < 100_000, "{measured} measured, {passed} passed");
        assert!(clock.trusts_counter());
    }

    #[test]
    fn a_counter_that_strays_is_not_used_again() {
        let clock = SystemClock::new();
        let shared = &*clock.0;
        // As if the counter had jumped back by an hour: governor's 1891 s Retry-After.
        shared.correction.store(-3_600_000_000, Ordering::Relaxed);
        shared.next_check.store(0, Ordering::Relaxed);
        let _ = clock.now();
        assert!(!clock.trusts_counter());
        let first = clock.now();
        assert!(clock.now().since(first) < Span::from_secs(60));
        assert_eq!(shared.next_check.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn a_manual_clock_moves_only_when_told() {
        let clock = ManualClock::at(Timestamp::from_secs(10));
        let shared = Clock::from(clock.clone());
        assert_eq!(shared.now(), Timestamp::from_secs(10));
        clock.advance(Span::from_millis(1));
        assert_eq!(shared.now(), Timestamp::from_micros(10_001_000));
        clock.set(Timestamp::from_secs(5));
        assert_eq!(shared.now(), Timestamp::from_secs(5));
    }
}
