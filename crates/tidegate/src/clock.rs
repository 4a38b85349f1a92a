//! Clocks. This is the only file that reads the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tidegate_core::{Span, Timestamp};

/// Microseconds between two reads of the wall clock.
const WALL_READS_APART: u64 = 1_000_000;
/// Microseconds by which two reads of an unchanged wall clock may seem to differ.
const WALL_NOISE: u64 = 1_000;

/// The clock of a limiter.
#[derive(Clone, Debug)]
pub enum Clock {
    /// The machine's clock: wall time at the start plus monotonic time since, so that setting the
    /// wall clock neither refills nor empties a key. [`Clock::wall`] follows the wall clock.
    System(SystemClock),
    /// A clock for tests, which moves only when it is advanced.
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
    /// The current time.
    #[inline]
    #[doc(hidden)]
    pub fn now(&self) -> Timestamp {
        match self {
            Self::System(clock) => clock.now(),
            Self::Manual(clock) => clock.now(),
        }
    }

    /// The wall time at the instant at which this clock shows `now`: for calendar periods, for
    /// overrides that end at a date, and for displayed times. A correction of the wall clock is
    /// noticed within about a second.
    #[doc(hidden)]
    #[inline]
    pub fn wall(&self, now: Timestamp) -> Timestamp {
        let ahead = match self {
            Self::System(clock) => clock.0.wall_ahead.load(Ordering::Relaxed),
            Self::Manual(clock) => clock.0.wall_ahead.load(Ordering::Relaxed),
        };
        Timestamp::from_micros(now.as_micros().saturating_add_signed(ahead))
    }
}

/// The processor's time stamp counter, checked against the kernel's monotonic clock.
///
/// Reading the counter costs a third of a system call, but the counters of some virtual machines
/// jump between cores. Every tenth of a second one reader therefore compares the two: small drift
/// is corrected, and a counter that has jumped is not used again.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct SystemClock(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    counter: quanta::Clock,
    counter_at_start: u64,
    /// Microseconds per counter tick, as a fraction of 2^64.
    scale: u64,
    started: Instant,
    started_micros: u64,
    /// Microseconds to add to the counter's time.
    correction: AtomicI64,
    /// The counter at the last check, and the kernel's time since the start.
    checked_at: AtomicU64,
    checked_micros: AtomicU64,
    /// Ticks until the next check; 0, which means always, for a counter that is not trusted.
    check_after: AtomicU64,
    /// Ticks between two reads of the counter without an interruption.
    short_ticks: u64,
    /// Microseconds that the wall clock is ahead of this clock; negative if it is behind.
    wall_ahead: AtomicI64,
    /// When the wall clock is read again, in microseconds since the start.
    wall_due: AtomicU64,
}

impl SystemClock {
    /// A clock that starts at the current wall time.
    #[expect(clippy::disallowed_methods, reason = "this is the file that reads time")]
    pub fn new() -> Self {
        const TICKS: u64 = 1 << 40;
        let counter = quanta::Clock::new();
        let nanos = u128::from(counter.delta_as_nanos(0, TICKS)).max(1);
        let scale = (nanos << 24) / 1_000;
        let since_epoch = wall_micros();
        let counter_at_start = counter.raw();
        let tenth_of_a_second = u64::try_from(100_000_000 * u128::from(TICKS) / nanos);
        let tenth_of_a_second = tenth_of_a_second.unwrap_or(u64::MAX).max(1);
        Self(Arc::new(Shared {
            counter_at_start,
            scale: u64::try_from(scale).unwrap_or(u64::MAX),
            started: Instant::now(),
            started_micros: since_epoch,
            correction: AtomicI64::new(0),
            checked_at: AtomicU64::new(counter_at_start),
            checked_micros: AtomicU64::new(0),
            check_after: AtomicU64::new(tenth_of_a_second),
            short_ticks: tenth_of_a_second / 2_000,
            wall_ahead: AtomicI64::new(0),
            wall_due: AtomicU64::new(WALL_READS_APART),
            counter,
        }))
    }

    /// The current time.
    #[inline]
    #[doc(hidden)]
    pub fn now(&self) -> Timestamp {
        let shared = &*self.0;
        let raw = shared.counter.raw();
        // Wrapping: a counter that went back has a large difference and is checked.
        let since_check = raw.wrapping_sub(shared.checked_at.load(Ordering::Relaxed));
        if since_check >= shared.check_after.load(Ordering::Relaxed) {
            return shared.check();
        }
        let correction = shared.correction.load(Ordering::Relaxed);
        let micros = shared.started_micros.wrapping_add(shared.elapsed(raw));
        Timestamp::from_micros(micros.wrapping_add_signed(correction))
    }

    /// False once the counter was found to be wrong and the kernel's clock is used instead.
    #[doc(hidden)]
    pub fn trusts_counter(&self) -> bool {
        self.0.counter_is_trusted()
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

    /// Reads the kernel's clock and compares the counter with it.
    #[cold]
    fn check(&self) -> Timestamp {
        let raw = self.counter.raw();
        let elapsed = u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let now = Timestamp::from_micros(self.started_micros.saturating_add(elapsed));
        let wall = self.is_wall_due(elapsed).then(wall_micros);
        let interrupted = self.counter.raw().wrapping_sub(raw) > self.short_ticks;
        if let Some(wall) = wall
            && !interrupted
        {
            self.follow_wall(wall, now, elapsed);
        }
        if !self.counter_is_trusted() || interrupted {
            // If the thread was preempted between the two reads, the comparison is not valid.
            return now;
        }
        let off = elapsed.wrapping_sub(self.elapsed(raw)).cast_signed();
        let before = self.correction.swap(off, Ordering::Relaxed);
        let checked = self.checked_micros.swap(elapsed, Ordering::Relaxed);
        self.checked_at.store(raw, Ordering::Relaxed);
        let sound = is_sound(off.abs_diff(before), elapsed.saturating_sub(checked));
        if !sound || raw < self.counter_at_start {
            self.check_after.store(0, Ordering::Relaxed);
        }
        now
    }

    fn is_wall_due(&self, elapsed: u64) -> bool {
        elapsed >= self.wall_due.load(Ordering::Relaxed)
    }

    /// Records how far the wall clock is ahead, read when this clock showed `now`. Ignores a
    /// difference below [`WALL_NOISE`], which the reading itself causes.
    fn follow_wall(&self, wall: u64, now: Timestamp, elapsed: u64) {
        let ahead = wall.wrapping_sub(now.as_micros()).cast_signed();
        if ahead.abs_diff(self.wall_ahead.load(Ordering::Relaxed)) >= WALL_NOISE {
            self.wall_ahead.store(ahead, Ordering::Relaxed);
        }
        self.wall_due.store(elapsed.saturating_add(WALL_READS_APART), Ordering::Relaxed);
    }

    fn counter_is_trusted(&self) -> bool {
        self.check_after.load(Ordering::Relaxed) > 0
    }
}

/// The kernel's wall clock, in microseconds since the epoch.
#[expect(clippy::disallowed_methods, reason = "this is the file that reads time")]
fn wall_micros() -> u64 {
    Span::from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()).as_micros()
}

/// Whether the drift is plausible: a thousandth of the time between two checks, and a little for
/// the reading.
fn is_sound(strayed_micros: u64, between_checks_micros: u64) -> bool {
    const READING: u64 = 1_000;
    strayed_micros <= READING + between_checks_micros / 1_000
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
    wall_ahead: AtomicI64,
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
            wall_ahead: AtomicI64::new(0),
            #[cfg(feature = "tokio")]
            moved: tokio::sync::Notify::new(),
        }))
    }

    /// The current time.
    #[inline]
    #[doc(hidden)]
    pub fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.micros.load(Ordering::SeqCst))
    }

    /// Moves the clock forwards, and wakes the waiters whose time has come.
    pub fn advance(&self, time: impl Into<Span>) {
        self.set(self.now() + time.into());
    }

    /// Sets the value of [`Clock::wall`] at the current instant, like a corrected wall clock, and
    /// leaves the clock itself unchanged.
    #[doc(hidden)]
    pub fn set_wall(&self, wall: Timestamp) {
        let ahead = wall.as_micros().wrapping_sub(self.now().as_micros()).cast_signed();
        self.0.wall_ahead.store(ahead, Ordering::SeqCst);
    }

    /// Sets the clock to any instant, also an earlier one.
    #[doc(hidden)]
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
                // A timer may fire slightly early by this clock, so check again.
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
            // Corrections are far below this tolerance.
            assert!(now + Span::from_millis(5) >= last, "{now} after {last}");
            last = now;
        }
        let passed = u64::try_from(start.elapsed().as_micros()).unwrap();
        let measured = clock.now().since(first).as_micros();
        assert!(measured.abs_diff(passed) < 100_000, "{measured} measured, {passed} passed");
        assert!(clock.trusts_counter());
    }

    /// governor's 1891 s Retry-After: counters of virtual machines jump, in both directions.
    #[test]
    fn a_counter_that_jumps_is_not_used_again() {
        for jump in [3_600_000_000_000_i64, -3_600_000_000_000] {
            let clock = SystemClock::new();
            let before = clock.now();
            let mut jumped = Arc::into_inner(clock.0).expect("the only handle");
            // The counter cannot be moved, so its last value is moved instead.
            let elsewhere = |raw: u64| raw.wrapping_add_signed(-jump);
            jumped.counter_at_start = elsewhere(jumped.counter_at_start);
            let checked_at = elsewhere(jumped.checked_at.load(Ordering::Relaxed));
            jumped.checked_at.store(checked_at, Ordering::Relaxed);
            let clock = SystemClock(Arc::new(jumped));
            for _ in 0..1_000 {
                assert!(clock.now().since(before) < Span::from_secs(60), "{jump}");
                assert!(clock.now() >= before, "{jump}");
            }
            assert!(!clock.trusts_counter(), "{jump}");
        }
    }

    #[test]
    fn a_corrected_wall_clock_is_followed_once_a_second() {
        let shared = SystemClock::new().0;
        let now = Timestamp::from_micros(shared.started_micros);
        let clock = Clock::System(SystemClock(Arc::clone(&shared)));
        assert!(!shared.is_wall_due(WALL_READS_APART - 1) && shared.is_wall_due(WALL_READS_APART));
        for seconds in [86_400, -7_200] {
            let ahead = seconds * 1_000_000;
            let wall = now.as_micros().checked_add_signed(ahead).unwrap();
            shared.follow_wall(wall, now, WALL_READS_APART);
            assert_eq!(clock.wall(now), Timestamp::from_micros(wall));
            shared.follow_wall(wall + WALL_NOISE - 1, now, WALL_READS_APART);
            assert_eq!(clock.wall(now), Timestamp::from_micros(wall), "noise is not followed");
            assert!(!shared.is_wall_due(2 * WALL_READS_APART - 1));
        }
        assert!(clock.now().since(now) < Span::from_secs(3_600), "the clock itself goes on");
    }

    #[test]
    fn a_manual_clock_moves_only_when_advanced() {
        let clock = ManualClock::at(Timestamp::from_secs(10));
        let shared = Clock::from(clock.clone());
        assert_eq!(shared.now(), Timestamp::from_secs(10));
        clock.advance(Span::from_millis(1));
        assert_eq!(shared.now(), Timestamp::from_micros(10_001_000));
        clock.set(Timestamp::from_secs(5));
        assert_eq!(shared.now(), Timestamp::from_secs(5));
    }
}
