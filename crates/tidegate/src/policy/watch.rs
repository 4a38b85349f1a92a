//! Noticing that policy files have changed.
//!
//! The system's events say so at once, in most cases; looking at the files every few seconds finds
//! what they leave out: network file systems, lost events, exhausted watches. Either is only a hint:
//! what counts is whether the texts differ.

mod debounce;
mod fingerprint;
mod places;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use self::debounce::{Debounce, Wake};
use self::fingerprint::Fingerprint;
use self::places::Places;
use crate::policy::Policy;
use crate::policy::document::source::{Revision, Source, SourceError, Texts};

/// How often the files are looked at without an event.
const POLL: Duration = Duration::from_secs(5);

/// Looking costs system calls; nobody needs it more often.
const SHORTEST_POLL: Duration = Duration::from_millis(10);

/// How often in a row reading is begun anew because a file changed meanwhile.
const MAX_READS: usize = 8;

/// Reads a policy again whenever its files change, in a thread of its own that ends with this value.
///
/// A change is handed on 50 to 100 ms after the last event of a burst; while files never rest, every
/// half second. Whoever writes policies should rename the finished file over the old one: a file
/// written in place for longer than that can be read half, and half a policy may be a valid one.
/// Only what is certainly unfinished, an empty file, is refused.
#[derive(Debug)]
pub struct Watch {
    bell: Arc<Debounce>,
    trouble: Arc<Mutex<Option<String>>>,
    /// None while dropping.
    thread: Option<JoinHandle<()>>,
}

/// What to watch, and from where on.
#[derive(Debug)]
pub struct WatchBuilder {
    source: Source,
    accepted: Option<Accepted>,
    poll: Duration,
    wants_events: bool,
}

/// A policy that can take the place of the last one.
#[derive(Clone, Debug)]
pub struct Update {
    /// The policy.
    pub policy: Policy,
    /// Warnings, one `file:line:column: warning: message` per line.
    pub findings: String,
    /// Names its texts. After a refusal the files may be back at what is in force already.
    pub revision: Revision,
}

/// Why the files as they are now cannot take the place of the last policy.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// They could not be read.
    Unreadable(SourceError),
    /// They have errors.
    Wrong {
        /// How many errors there were.
        errors: usize,
        /// Errors and warnings, one `file:line:column: message` per line.
        findings: String,
    },
    /// There was a policy, and now there would be none: more likely an accident than a wish.
    NoDomainLeft {
        /// What is missing or empty.
        what: String,
    },
    /// A file that said something is empty: more likely half written than meant so.
    Emptied {
        /// The file.
        file: String,
    },
    /// Files changed each time while they were read.
    Restless,
}

/// The last texts that made a policy.
#[derive(Debug)]
struct Accepted {
    revision: Revision,
    /// Files that said something.
    telling: BTreeSet<String>,
}

/// What was handed on last; the same is not handed on twice.
#[derive(Debug, PartialEq)]
enum Reported {
    Texts(Revision),
    /// Files that could not be read have no revision, only this.
    Trouble(String),
}

impl Watch {
    /// Watches files and hands on what becomes of them, as told by the builder.
    pub fn builder(source: Source) -> WatchBuilder {
        let source = source.refusing_pipes();
        WatchBuilder { source, accepted: None, poll: POLL, wants_events: true }
    }

    /// Reads the files at once and hands on the outcome even if nothing has changed: somebody asked.
    /// Does not wait for it.
    pub fn reload_now(&self) {
        self.bell.ask();
    }

    /// Why some changes are noticed by looking every few seconds only; none if events come.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.bell.end();
        let Some(thread) = self.thread.take() else { return };
        // Who drops it from within its callback cannot wait for the callback's end.
        if thread.thread().id() != thread::current().id() {
            // If the callback panicked, the thread has said so already.
            let _ = thread.join();
        }
    }
}

impl WatchBuilder {
    /// What the caller has loaded already. It is not handed on again, whatever differs from it is,
    /// even if it changed before the watch began.
    #[must_use]
    pub fn in_force(mut self, texts: &Texts) -> Self {
        self.accepted = Some(Accepted::of(texts));
        self
    }

    /// How often to look without an event; 5 seconds unless told otherwise, at least 10 ms.
    #[must_use]
    pub fn poll_every(mut self, poll: Duration) -> Self {
        self.poll = poll.max(SHORTEST_POLL);
        self
    }

    /// Takes no events from the system, whose watches may be scarce: changes wait for the next look.
    #[must_use]
    pub fn without_events(mut self) -> Self {
        self.wants_events = false;
        self
    }

    /// Starts the thread. It calls `callback` with each change; dropping the watch waits for a call
    /// under way. Fails only if there can be no thread.
    pub fn start(
        self,
        callback: impl FnMut(Result<Update, Refusal>) + Send + 'static,
    ) -> io::Result<Watch> {
        let bell = Arc::new(Debounce::default());
        let trouble = Arc::new(Mutex::new(None));
        let look = Look {
            bell: Arc::clone(&bell),
            trouble: Arc::clone(&trouble),
            told: self.accepted.as_ref().map(|accepted| Reported::Texts(accepted.revision)),
            accepted: self.accepted,
            source: self.source,
            seen: None,
            is_sure: false,
            callback,
        };
        let (poll, wants_events) = (self.poll, self.wants_events);
        let thread = thread::Builder::new().name("tidegate-watch".into()).spawn(move || {
            let places = wants_events.then(|| Places::new(Arc::clone(&look.bell)));
            look.until_the_end(places, poll);
        })?;
        Ok(Watch { bell, trouble, thread: Some(thread) })
    }
}

/// The thread's own.
struct Look<F> {
    bell: Arc<Debounce>,
    trouble: Arc<Mutex<Option<String>>>,
    source: Source,
    accepted: Option<Accepted>,
    told: Option<Reported>,
    seen: Option<Fingerprint>,
    /// Times have a grain: a file written twice within one has one fingerprint for two texts. So the
    /// fingerprint is trusted only once a later reading has found the same.
    is_sure: bool,
    callback: F,
}

impl<F: FnMut(Result<Update, Refusal>)> Look<F> {
    fn until_the_end(mut self, mut places: Option<Places>, poll: Duration) {
        let mut wake = Wake::Changed;
        while wake != Wake::Over {
            let is_asked = self.bell.begin_look();
            // First: what changes while the files are read is an event then.
            if let Some(places) = &mut places {
                places.follow(&self.source);
                let trouble = places.trouble().map(Into::into);
                *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
            }
            self.look(is_asked);
            wake = self.bell.wait(poll);
            if wake == Wake::Changed {
                wake = self.bell.settle();
            }
        }
    }

    fn look(&mut self, is_asked: bool) {
        let before = Fingerprint::of(&self.source);
        let is_same = self.seen.as_ref() == Some(&before);
        if is_same && self.is_sure && !is_asked {
            return;
        }
        let Some((outcome, after)) = self.read(before) else {
            self.seen = None;
            self.tell(
                is_asked,
                Reported::Trouble(Refusal::Restless.to_string()),
                Err(Refusal::Restless),
            );
            // Another look, once they have settled.
            self.bell.change();
            return;
        };
        self.is_sure = is_same && self.seen.as_ref() == Some(&after);
        self.seen = Some(after);
        match outcome {
            Ok(texts) => self.weigh(&texts, is_asked),
            Err(error) => {
                let refusal = self.unreadable(error);
                self.tell(is_asked, Reported::Trouble(refusal.to_string()), Err(refusal));
            }
        }
    }

    /// Reads until nothing changes meanwhile, so that no two versions are mixed.
    fn read(&self, mut before: Fingerprint) -> Option<(Result<Texts, SourceError>, Fingerprint)> {
        for _ in 0..MAX_READS {
            let outcome = self.source.read();
            let after = Fingerprint::of(&self.source);
            if before == after {
                return Some((outcome, after));
            }
            before = after;
        }
        None
    }

    fn weigh(&mut self, texts: &Texts, is_asked: bool) {
        let revision = texts.revision();
        let told = Reported::Texts(revision);
        if self.told.as_ref() == Some(&told) && !is_asked {
            return;
        }
        let outcome = self.update(texts, revision);
        if outcome.is_ok() {
            self.accepted = Some(Accepted::of(texts));
        }
        self.tell(is_asked, told, outcome);
    }

    fn update(&self, texts: &Texts, revision: Revision) -> Result<Update, Refusal> {
        if let Some(accepted) = &self.accepted {
            let mut blank = texts.files().filter(|(_, tells)| !tells).map(|(name, _)| name);
            let emptied = blank.find(|name| accepted.telling.contains(*name));
            if texts.files().all(|(_, tells)| !tells) && !accepted.telling.is_empty() {
                let what = emptied.map(|file| format!("{file} is empty"));
                let what = what.unwrap_or_else(|| "nothing is in the files".into());
                return Err(Refusal::NoDomainLeft { what });
            }
            if let Some(file) = emptied {
                return Err(Refusal::Emptied { file: file.into() });
            }
        }
        let loaded = texts.load();
        let Some(policy) = loaded.policy else {
            return Err(Refusal::Wrong { errors: loaded.errors, findings: loaded.findings });
        };
        Ok(Update { policy, findings: loaded.findings, revision })
    }

    fn unreadable(&self, error: SourceError) -> Refusal {
        match error {
            SourceError::NoFiles { .. } if self.accepted.is_some() => {
                Refusal::NoDomainLeft { what: error.to_string() }
            }
            error => Refusal::Unreadable(error),
        }
    }

    fn tell(&mut self, is_asked: bool, told: Reported, outcome: Result<Update, Refusal>) {
        let is_news = self.told.as_ref() != Some(&told);
        self.is_sure &= !is_news;
        if (is_news || is_asked) && !self.bell.is_over() {
            self.told = Some(told);
            (self.callback)(outcome);
        }
    }
}

impl Accepted {
    fn of(texts: &Texts) -> Self {
        let telling = texts.files().filter(|(_, tells)| *tells).map(|(name, _)| name.to_owned());
        Self { revision: texts.revision(), telling: telling.collect() }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable(error) => error.fmt(f),
            Self::Wrong { errors, findings } => {
                write!(f, "{errors} errors\n{findings}")
            }
            Self::NoDomainLeft { what } => {
                write!(f, "{what}: no domain left; keeping the last policy")
            }
            Self::Emptied { file } => write!(
                f,
                "{file} is empty and was not; keeping the last policy (delete the file if its \
                 limits are to go)"
            ),
            Self::Restless => f.write_str("the files change while they are read"),
        }
    }
}

impl std::error::Error for Refusal {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable(error) => Some(error),
            Self::Wrong { .. }
            | Self::NoDomainLeft { .. }
            | Self::Emptied { .. }
            | Self::Restless => None,
        }
    }
}
