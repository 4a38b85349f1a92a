//! What the daemon says while it runs: one line per event, on standard error.
//!
//! # Bounds
//! Of each kind of event that traffic can cause at most one line is written in a second; the next
//! line of its kind says how many were left out. Nothing is written per request. A message has at most [`MAX_MESSAGE`] bytes.

use std::fmt;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use serde_json::json;
use tidegate::{Clock, Timestamp};

/// The longest message; findings in policies can be long.
const MAX_MESSAGE: usize = 64 << 10;

/// Writes lines. Clones are handles to the same log.
#[derive(Clone, Debug)]
pub struct Log(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    level: AtomicU8,
    format: Format,
    clock: Clock,
    /// Of each kind of event.
    kinds: [Kind; Event::ALL.len()],
}

/// When one kind of event was written last, and what was left out since.
#[derive(Debug, Default)]
struct Kind {
    /// The second after it, so that 0 is never.
    next: AtomicU64,
    left_out: AtomicU64,
}

/// How much is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Somebody has to act.
    Error,
    /// Somebody should look.
    Warn,
    /// What happened.
    Info,
    /// What may help to find out why.
    Debug,
}

/// How a line is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Time, level, event and message.
    #[default]
    Text,
    /// An object of the same.
    Json,
}

/// What can happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Settings were read, or have no effect.
    Settings,
    /// A policy was put in force.
    PolicyLoaded,
    /// A policy could not be.
    PolicyRefused,
    /// The store is unavailable.
    StoreUnavailable,
    /// The store answers later than the deadline.
    StoreSlow,
    /// More requests wait for the store than may wait.
    StoreOverloaded,
    /// The store is asked again.
    StoreBack,
    /// The store refuses, and somebody has to change something.
    StoreRefuses,
    /// A server of the store has a condition that weakens limits, or no longer has it.
    StoreFinding,
    /// A listener is full.
    Full,
    /// A client was refused before it could ask: its TLS handshake failed.
    ClientRefused,
    /// The store held states that Tidegate cannot have written, and that were replaced.
    StoreCorrupt,
    /// Somebody has changed something on the admin port.
    Changed,
    /// The daemon ends.
    Stopping,
}

impl Event {
    /// All of them, in the order of their numbers.
    pub const ALL: [Self; 14] = [
        Self::Settings,
        Self::PolicyLoaded,
        Self::PolicyRefused,
        Self::StoreUnavailable,
        Self::StoreSlow,
        Self::StoreOverloaded,
        Self::StoreBack,
        Self::StoreRefuses,
        Self::StoreFinding,
        Self::Full,
        Self::ClientRefused,
        Self::StoreCorrupt,
        Self::Changed,
        Self::Stopping,
    ];

    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Settings => "settings",
            Self::PolicyLoaded => "policy_loaded",
            Self::PolicyRefused => "policy_refused",
            Self::StoreUnavailable => "store_unavailable",
            Self::StoreSlow => "store_slow",
            Self::StoreOverloaded => "store_overloaded",
            Self::StoreBack => "store_back",
            Self::StoreRefuses => "store_refuses",
            Self::StoreFinding => "store_finding",
            Self::Full => "full",
            Self::ClientRefused => "client_refused",
            Self::StoreCorrupt => "store_corrupt",
            Self::Changed => "changed",
            Self::Stopping => "stopping",
        }
    }

    /// Whether all of them are written: they happen at the start, at the end, when files change or
    /// servers come back, which is looked at no more than twice in a second, or by the hand of somebody
    /// who may.
    const fn is_rare(self) -> bool {
        !matches!(
            self,
            Self::StoreUnavailable
                | Self::StoreSlow
                | Self::StoreOverloaded
                | Self::StoreRefuses
                | Self::Full
                | Self::ClientRefused
                | Self::StoreCorrupt
        )
    }
}

impl Level {
    /// All of them, the gravest first.
    pub const ALL: [Self; 4] = [Self::Error, Self::Warn, Self::Info, Self::Debug];

    /// As settings spell it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }

    /// By its name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }
}

impl Default for Log {
    fn default() -> Self {
        Self::new(Level::Info, Format::Text, Clock::default())
    }
}

impl Log {
    /// A log that writes what is at least as grave as `level`.
    pub fn new(level: Level, format: Format, clock: Clock) -> Self {
        let level = AtomicU8::new(level as u8);
        Self(Arc::new(Shared { level, format, clock, kinds: Default::default() }))
    }

    /// What is written.
    pub fn level(&self) -> Level {
        let level = self.0.level.load(Ordering::Relaxed);
        Level::ALL.into_iter().find(|it| *it as u8 == level).unwrap_or(Level::Info)
    }

    /// Writes more or less from now on.
    pub fn set_level(&self, level: Level) {
        self.0.level.store(level as u8, Ordering::Relaxed);
    }

    /// Says what happened, unless it is not grave enough or its kind was told this second.
    pub fn say(&self, level: Level, event: Event, message: impl fmt::Display) {
        let now = self.0.clock.now();
        if let Some(left_out) = self.may_say(level, event, now) {
            let now = self.0.clock.wall(now);
            let line =
                Line { now, level, event, left_out }.text(self.0.format, &message.to_string());
            // Nobody is there to be told that nobody reads it.
            let _ = io::stderr().lock().write_all(line.as_bytes());
        }
    }

    /// How many of its kind were left out before, if this one may be written.
    fn may_say(&self, level: Level, event: Event, now: Timestamp) -> Option<u64> {
        if level > self.level() {
            return None;
        }
        let Some(kind) = self.0.kinds.get(event as usize) else { return Some(0) };
        let (second, next) = (now.as_micros() / 1_000_000 + 1, kind.next.load(Ordering::Relaxed));
        // Whoever of several comes first writes.
        let is_first = event.is_rare()
            || (second > next
                && kind
                    .next
                    .compare_exchange(next, second, Ordering::Relaxed, Ordering::Relaxed)
                    .is_ok());
        if !is_first {
            kind.left_out.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(kind.left_out.swap(0, Ordering::Relaxed))
    }
}

/// A line to be written.
struct Line {
    now: Timestamp,
    level: Level,
    event: Event,
    /// How many of its kind were not.
    left_out: u64,
}

impl Line {
    fn text(&self, format: Format, message: &str) -> String {
        let end = message.char_indices().map(|(at, _)| at).find(|at| *at >= MAX_MESSAGE);
        let message = message[..end.unwrap_or(message.len())].trim_end();
        let (time, left_out) = (Utc(self.now), self.left_out);
        let (level, event) = (self.level.name(), self.event.name());
        match format {
            Format::Text => {
                let message = printable(message);
                match left_out {
                    0 => format!("{time} {level} {event}: {message}\n"),
                    _ => format!(
                        "{time} {level} {event}: {message} (and {left_out} more like this)\n"
                    ),
                }
            }
            Format::Json => {
                let mut line = json!({
                    "time": time.to_string(), "level": level, "event": event, "message": message,
                });
                if left_out > 0 {
                    line["left_out"] = left_out.into();
                }
                format!("{line}\n")
            }
        }
    }
}

/// The text with control characters escaped, and those that hide or reorder others: it stays on one
/// line, and a terminal shows what is there.
pub fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            _ if c.is_control() => shown.extend(c.escape_default()),
            '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}' => shown.extend(c.escape_default()),
            _ => shown.push(c),
        }
    }
    shown
}

/// A time as RFC 3339 writes it, to the millisecond.
pub(crate) struct Utc(pub(crate) Timestamp);

impl fmt::Display for Utc {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millis = self.0.as_micros() / 1_000;
        let (days, rest) = (millis / 86_400_000, millis % 86_400_000);
        // Counted from 1 March 0000, so that the leap day is the last of its year.
        let days = days + 719_468;
        let (era, day_of_era) = (days / 146_097, days % 146_097);
        let leap_days = day_of_era / 1_460 - day_of_era / 36_524 + day_of_era / 146_096;
        let year_of_era = (day_of_era - leap_days.min(day_of_era)) / 365;
        let before = 365 * year_of_era + year_of_era / 4 - year_of_era / 100;
        let day_of_year = day_of_era - before.min(day_of_era);
        let month = (5 * day_of_year + 2) / 153;
        let day = day_of_year - (153 * month + 2) / 5 + 1;
        let month = if month < 10 { month + 3 } else { month - 9 };
        let year = era * 400 + year_of_era + u64::from(month <= 2);
        let (hour, minute) = (rest / 3_600_000, rest / 60_000 % 60);
        let (second, milli) = (rest / 1_000 % 60, rest % 1_000);
        write!(f, "{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{milli:03}Z")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate::ManualClock;

    #[test]
    fn times_are_written_as_everybody_reads_them() {
        for (secs, text) in [
            (0, "1970-01-01T00:00:00.000Z"),
            (951_782_400, "2000-02-29T00:00:00.000Z"),
            (1_709_251_199, "2024-02-29T23:59:59.000Z"),
            (1_709_251_200, "2024-03-01T00:00:00.000Z"),
            (1_767_225_599, "2025-12-31T23:59:59.000Z"),
            (4_107_542_400, "2100-03-01T00:00:00.000Z"),
        ] {
            assert_eq!(Utc(Timestamp::from_secs(secs)).to_string(), text);
        }
    }

    #[test]
    fn a_kind_of_event_is_written_once_a_second_with_what_was_left_out() {
        let clock = ManualClock::new();
        clock.set(Timestamp::from_secs(100));
        let log = Log::new(Level::Warn, Format::Json, clock.clone().into());
        let may = |level, event| log.may_say(level, event, Clock::from(clock.clone()).now());
        assert_eq!(may(Level::Info, Event::StoreUnavailable), None);
        assert_eq!(may(Level::Warn, Event::StoreUnavailable), Some(0));
        for _ in 0..1_000 {
            assert_eq!(may(Level::Warn, Event::StoreUnavailable), None);
        }
        // Others are not held back by it.
        assert_eq!(may(Level::Error, Event::StoreRefuses), Some(0));
        clock.set(Timestamp::from_secs(101));
        assert_eq!(may(Level::Warn, Event::StoreUnavailable), Some(1_000));
        log.set_level(Level::Error);
        assert_eq!((log.level(), may(Level::Warn, Event::Full)), (Level::Error, None));
    }

    #[test]
    fn a_line_is_one_line_for_machines_and_is_bounded() {
        let now = Timestamp::from_secs(1);
        let line = |left_out| Line { now, level: Level::Warn, event: Event::Full, left_out };
        let json = line(3).text(Format::Json, "a\n\"b\"\n");
        let expected = "{\"event\":\"full\",\"left_out\":3,\"level\":\"warn\",\
                        \"message\":\"a\\n\\\"b\\\"\",\"time\":\"1970-01-01T00:00:01.000Z\"}\n";
        assert_eq!(json, expected);
        let text = line(3).text(Format::Text, "a\n");
        assert_eq!(text, "1970-01-01T00:00:01.000Z warn full: a (and 3 more like this)\n");
        let text = line(0).text(Format::Text, "a\nb\r\x1b[31mc\u{9b}2Jd\u{2028}\u{202e}e\té");
        let message = text.strip_prefix("1970-01-01T00:00:01.000Z warn full: ");
        let escaped = "a\\nb\\r\\u{1b}[31mc\\u{9b}2Jd\\u{2028}\\u{202e}e\\té\n";
        assert_eq!(message, Some(escaped));
        let long = "é".repeat(MAX_MESSAGE);
        assert!(line(0).text(Format::Text, &long).len() < MAX_MESSAGE + 100);
    }
}
