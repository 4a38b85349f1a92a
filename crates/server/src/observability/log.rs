//! The daemon's log: `tracing` events on standard error, one line each, as text or JSON.
//!
//! # Bounds
//! No event is written per request. [`Throttle`] limits events that clients can cause. A line of text
//! has at most [`MAX_LINE`] bytes.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::io::{self, Write};
use std::panic::{self, PanicHookInfo};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::thread;

use tidegate::Clock;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::{Layer, Registry, fmt, reload};

use super::throttle::{Admitted, Frequent, Throttle};

/// The longest line of text.
const MAX_LINE: usize = 64 << 10;

/// Events of our crates; those of dependencies are not logged.
const OURS: &str = "tidegate";

/// Changes on the admin port: logged at every level.
pub(crate) const AUDIT: &str = "audit";

/// The handle to a daemon's log. Clones are handles to the same log.
#[derive(Clone, Debug)]
pub struct Log(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    level: AtomicU8,
    /// `None` if another subscriber takes the events of this process.
    filter: Option<reload::Handle<Targets, Registry>>,
    throttle: Throttle,
    clock: Clock,
}

/// The levels of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// An operator has to act.
    Error,
    /// An operator should look.
    Warn,
    /// Events of normal operation.
    Info,
    /// Details for finding a cause.
    Debug,
}

/// The format of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Time, level, message, and the fields as `name=value`.
    #[default]
    Text,
    /// One object with the same.
    Json,
}

impl Level {
    /// All levels, the most severe first.
    pub const ALL: [Self; 4] = [Self::Error, Self::Warn, Self::Info, Self::Debug];

    /// The name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
        }
    }

    /// The level of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.name() == name)
    }

    fn filter(self) -> Targets {
        let level = match self {
            Self::Error => LevelFilter::ERROR,
            Self::Warn => LevelFilter::WARN,
            Self::Info => LevelFilter::INFO,
            Self::Debug => LevelFilter::DEBUG,
        };
        Targets::new().with_target(OURS, level).with_target(AUDIT, LevelFilter::INFO)
    }
}

impl Default for Log {
    /// A log that leaves the events to the subscriber of the process, if there is one.
    fn default() -> Self {
        Self::new(Level::Info, None)
    }
}

impl Log {
    /// Writes the events of this process to standard error, panics included. The first call in a process
    /// counts.
    pub fn install(level: Level, format: Format) -> Self {
        let (filter, handle) = reload::Layer::new(level.filter());
        let subscriber = Registry::default().with(filter).with(lines(format));
        let is_first = tracing::subscriber::set_global_default(subscriber).is_ok();
        if is_first {
            panic::set_hook(Box::new(log_panic));
        }
        Self::new(level, Some(handle).filter(|_| is_first))
    }

    fn new(level: Level, filter: Option<reload::Handle<Targets, Registry>>) -> Self {
        let level = AtomicU8::new(level as u8);
        let (throttle, clock) = (Throttle::default(), Clock::default());
        Self(Arc::new(Shared { level, filter, throttle, clock }))
    }

    /// The minimum level of log lines.
    pub fn level(&self) -> Level {
        let level = self.0.level.load(Ordering::Relaxed);
        Level::ALL.into_iter().find(|it| *it as u8 == level).unwrap_or(Level::Info)
    }

    /// Changes the level from now on.
    pub fn set_level(&self, level: Level) {
        self.0.level.store(level as u8, Ordering::Relaxed);
        if let Some(filter) = &self.0.filter {
            // Fails only once the subscriber is gone, which stays as long as the process.
            let _ = filter.reload(level.filter());
        }
    }

    /// Admits an event of a kind that clients can cause, or counts it as suppressed.
    pub(crate) fn admit(&self, kind: Frequent) -> Option<Admitted> {
        self.0.throttle.admit(kind, self.0.clock.now())
    }
}

/// The layer that writes lines, over the filter.
type Filtered = Layered<reload::Layer<Targets, Registry>, Registry>;

fn lines(format: Format) -> Box<dyn Layer<Filtered> + Send + Sync> {
    match format {
        Format::Text => {
            fmt::layer().with_ansi(false).with_target(false).with_writer(|| OneLine).boxed()
        }
        Format::Json => fmt::layer()
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .with_target(false)
            .with_writer(io::stderr)
            .boxed(),
    }
}

/// Logs a panic of any thread; with its backtrace, if `RUST_BACKTRACE` asks for one.
fn log_panic(info: &PanicHookInfo<'_>) {
    let backtrace = Backtrace::capture();
    let backtrace =
        (backtrace.status() == BacktraceStatus::Captured).then(|| backtrace.to_string());
    let thread = thread::current();
    let location = info.location().map(ToString::to_string);
    let payload = info.payload();
    let text = payload.downcast_ref::<&str>().copied();
    let message = text.or_else(|| payload.downcast_ref::<String>().map(|text| &**text));
    let message = message.unwrap_or("no message");
    tracing::error!(
        event = "panic",
        thread = thread.name(),
        location,
        backtrace,
        "panic: {message}"
    );
}

/// Writes an event of text to standard error as one line.
struct OneLine;

impl Write for OneLine {
    /// Takes a whole event, as `tracing_subscriber` hands it over.
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        io::stderr().lock().write_all(one_line(&String::from_utf8_lossy(event)).as_bytes())?;
        Ok(event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn one_line(event: &str) -> String {
    let mut line = printable(event.trim_end());
    let end = line.char_indices().map(|(at, _)| at).find(|at| *at >= MAX_LINE);
    line.truncate(end.unwrap_or(line.len()));
    line + "\n"
}

/// Escapes control characters, and characters that hide or reorder others, so that the text stays
/// on one line and a terminal shows its true content.
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

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn an_event_of_text_is_one_bounded_line() {
        let line = one_line("a\nb\r\x1b[31mc\u{9b}2Jd\u{2028}\u{202e}e\té\n");
        assert_eq!(line, "a\\nb\\r\\u{1b}[31mc\\u{9b}2Jd\\u{2028}\\u{202e}e\\té\n");
        assert!(one_line(&"é".repeat(MAX_LINE)).len() < MAX_LINE + 10);
    }

    /// Run by the next test in a process of its own, which has one log.
    #[test]
    #[ignore = "panics"]
    fn panics_in_a_thread() {
        Log::install(Level::Error, Format::Json);
        let ended = thread::Builder::new().name("w\n1".into()).spawn(|| panic!("a\n\"b\""));
        assert!(ended.unwrap().join().is_err());
    }

    #[test]
    fn a_panic_is_one_line_of_the_log() {
        let name = "observability::log::tests::panics_in_a_thread";
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--ignored", "--nocapture"])
            .output()
            .unwrap();
        let text = String::from_utf8(output.stderr).unwrap();
        let [line] = text.lines().collect::<Vec<_>>()[..] else { panic!("{text}") };
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        assert_eq!((&line["event"], &line["level"]), (&"panic".into(), &"ERROR".into()));
        assert_eq!(
            (&line["message"], &line["thread"]),
            (&"panic: a\n\"b\"".into(), &"w\n1".into())
        );
        assert!(line["location"].as_str().unwrap().contains("log.rs:"), "{line}");
    }

    /// Without a subscriber of its own, a log still knows its level.
    #[test]
    fn the_level_can_be_changed() {
        let log = Log::default();
        assert_eq!(log.level(), Level::Info);
        log.set_level(Level::Debug);
        assert_eq!((log.clone().level(), Level::named("trace")), (Level::Debug, None));
    }
}
