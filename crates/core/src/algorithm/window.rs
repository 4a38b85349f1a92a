//! Aligned windows, and the position of an instant among them; shared by the two window algorithms.

use crate::invalid::InvalidLimit;
use crate::rate::check_period;
use crate::time::{Span, Timestamp};

/// How long before its start a stored window is kept after the clock went back, in microseconds:
/// one hour. This bounds how long a corrected clock causes denials.
pub(crate) const MAX_EARLY: u64 = 3_600_000_000;

/// Windows of one length, back to back, aligned to the epoch plus an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Windows {
    pub(crate) length: u64,
    /// Added to an instant so that windows start at multiples of `length`.
    shift: u64,
}

/// Position of a stored window relative to the window of an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WindowPosition {
    /// The same window.
    Current,
    /// The stored window starts next, within [`MAX_EARLY`]: the clock went back a little. The
    /// stored window is kept, because reopening the older one would admit its units again.
    Ahead,
    /// The stored window is the previous one.
    Previous,
    /// No window is stored, or it is too old to matter.
    Past,
    /// No history could have left this window: the clock went back further.
    Impossible,
}

impl Windows {
    pub(crate) fn new(length: Span, offset: Span) -> Result<Self, InvalidLimit> {
        check_period(length)?;
        if offset >= length {
            return Err(InvalidLimit::Offset);
        }
        let length = length.as_micros();
        Ok(Self { length, shift: (length - offset.as_micros()) % length })
    }

    /// Distance from the multiples of the length since the epoch to the start of a window.
    pub(crate) const fn offset(&self) -> Span {
        Span::from_micros((self.length - self.shift) % self.length)
    }

    /// The end of the window that `now` lies in; always later than `now`.
    #[inline]
    pub(crate) fn end(&self, now: Timestamp) -> u64 {
        let shifted = now.as_micros() + self.shift;
        now.as_micros() + self.length - shifted % self.length
    }

    #[inline]
    pub(crate) fn position(&self, stored_end: u64, now: Timestamp) -> WindowPosition {
        let current_end = self.end(now);
        if stored_end == current_end {
            WindowPosition::Current
        } else if stored_end < current_end {
            if stored_end + self.length == current_end {
                WindowPosition::Previous
            } else {
                WindowPosition::Past
            }
        } else if stored_end == current_end + self.length
            && current_end - now.as_micros() <= MAX_EARLY
        {
            WindowPosition::Ahead
        } else {
            WindowPosition::Impossible
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(micros: u64) -> Timestamp {
        Timestamp::from_micros(micros)
    }

    #[test]
    fn windows_are_aligned_to_the_epoch_plus_the_offset() {
        let minute = Windows::new(Span::from_secs(60), Span::ZERO).unwrap();
        assert_eq!(minute.end(at(0)), 60_000_000);
        assert_eq!(minute.end(at(59_999_999)), 60_000_000);
        assert_eq!(minute.end(at(60_000_000)), 120_000_000);
        let from_ten = Windows::new(Span::from_secs(60), Span::from_secs(10)).unwrap();
        assert_eq!(from_ten.end(at(0)), 10_000_000);
        assert_eq!(from_ten.end(at(9_999_999)), 10_000_000);
        assert_eq!(from_ten.end(at(10_000_000)), 70_000_000);
    }

    #[test]
    fn an_offset_as_long_as_the_window_is_refused() {
        let second = Span::from_secs(1);
        assert_eq!(Windows::new(second, second), Err(InvalidLimit::Offset));
    }

    #[test]
    fn a_stored_window_is_placed_relative_to_now() {
        let windows = Windows::new(Span::from_micros(10), Span::ZERO).unwrap();
        for (stored, position) in [
            (0, WindowPosition::Past),
            (30, WindowPosition::Past),
            (40, WindowPosition::Previous),
            (50, WindowPosition::Current),
            (60, WindowPosition::Ahead),
            (70, WindowPosition::Impossible),
            (55, WindowPosition::Impossible),
        ] {
            assert_eq!(windows.position(stored, at(40)), position, "{stored}");
        }
    }

    #[test]
    fn a_window_that_starts_next_is_kept_for_the_last_hour_before_it() {
        let day = 86_400_000_000;
        let windows = Windows::new(Span::from_micros(day), Span::ZERO).unwrap();
        let (tomorrow, start) = (2 * day, day);
        assert_eq!(windows.position(tomorrow, at(start - MAX_EARLY)), WindowPosition::Ahead);
        assert_eq!(
            windows.position(tomorrow, at(start - MAX_EARLY - 1)),
            WindowPosition::Impossible
        );
        assert_eq!(windows.position(tomorrow, at(0)), WindowPosition::Impossible);
    }
}
