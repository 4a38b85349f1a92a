//! Reloads a policy when its files change.
//!
//! File system events report most changes at once. Polling every few seconds finds the rest:
//! network file systems, lost events, exhausted watches. Both are only hints; the policy is
//! reloaded if the texts differ.

mod debounce;
mod fingerprint;
mod folders;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use self::debounce::{Debounce, Wake};
use self::fingerprint::Fingerprint;
use self::folders::WatchedFolders;
use crate::policy::Policy;
use crate::policy::document::source::{Revision, Source, SourceError, Texts};

/// Interval between polls.
const POLL: Duration = Duration::from_secs(5);

/// The shortest interval between polls, because each costs system calls.
const SHORTEST_POLL: Duration = Duration::from_millis(10);

/// How often reading is restarted because a file changed meanwhile.
const MAX_READS: usize = 8;

/// Reloads a policy whenever its files change, in a background thread that ends with this value.
///
/// A change is reported 50 to 100 ms after the last event of a burst, and every half second while
/// files keep changing. Write policies to a new file and rename it over the old one: a file written
/// in place for longer than that can be read half-written, and half a policy may be valid. Only an
/// empty file, which is certainly unfinished, is refused.
#[derive(Debug)]
pub struct Watch {
    debounce: Arc<Debounce>,
    trouble: Arc<Mutex<Option<String>>>,
    /// `None` while dropping.
    thread: Option<JoinHandle<()>>,
}

/// Configures a [`Watch`].
#[derive(Debug)]
#[doc(hidden)]
pub struct WatchBuilder {
    source: Source,
    accepted: Option<Accepted>,
    poll: Duration,
    wants_events: bool,
}

/// A policy that can replace the last one.
#[derive(Clone, Debug)]
#[doc(hidden)]
pub struct Update {
    /// The policy.
    pub policy: Policy,
    /// Warnings, one `file:line:column: warning: message` per line.
    pub findings: String,
    /// The revision of its texts. After a refusal the files may have returned to the policy in
    /// force.
    pub revision: Revision,
}

/// Why the files cannot replace the last policy.
#[derive(Debug)]
#[non_exhaustive]
pub enum Refusal {
    /// The files could not be read.
    Unreadable(SourceError),
    /// The files have errors.
    Wrong {
        /// Number of errors.
        errors: usize,
        /// Errors and warnings, one `file:line:column: message` per line.
        findings: String,
    },
    /// The files contain no domain any more, which is probably an accident.
    NoDomainLeft {
        /// The missing or empty file or folder.
        what: String,
    },
    /// A file that had content is empty, so it is probably half-written.
    Emptied {
        /// The file.
        file: String,
    },
    /// The files changed during every attempt to read them.
    Restless,
}

/// The last texts that were loaded as a policy.
#[derive(Debug)]
struct Accepted {
    revision: Revision,
    /// Files with content.
    telling: BTreeSet<String>,
}

/// The last report, to avoid repeating it.
#[derive(Debug, PartialEq)]
enum Reported {
    Texts(Revision),
    /// An error while reading; there is no revision then.
    Trouble(String),
}

impl Watch {
    /// Configures a watch of these files.
    #[doc(hidden)]
    pub fn builder(source: Source) -> WatchBuilder {
        let source = source.refusing_pipes();
        WatchBuilder { source, accepted: None, poll: POLL, wants_events: true }
    }

    /// Reads the files at once and reports the outcome even if nothing has changed. Does not wait
    /// for the outcome.
    #[doc(hidden)]
    pub fn reload_now(&self) {
        self.debounce.request_reload();
    }

    /// Why some changes are found by polling only; `None` if events work.
    #[doc(hidden)]
    pub fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.debounce.end();
        let Some(thread) = self.thread.take() else { return };
        // The callback itself may drop the watch; joining would then never return.
        if thread.thread().id() != thread::current().id() {
            // If the callback panicked, the panic has been reported already.
            let _ = thread.join();
        }
    }
}

impl WatchBuilder {
    /// The texts that the caller has already loaded. They are not reported again; any difference
    /// is, even if it occurred before the watch began.
    #[doc(hidden)]
    #[must_use]
    pub fn in_force(mut self, texts: &Texts) -> Self {
        self.accepted = Some(Accepted::of(texts));
        self
    }

    /// Sets the interval between polls; 5 seconds by default, at least 10 ms.
    #[doc(hidden)]
    #[must_use]
    pub fn poll_every(mut self, poll: Duration) -> Self {
        self.poll = poll.max(SHORTEST_POLL);
        self
    }

    /// Uses no file system events, whose watches may be scarce; changes are found by polling.
    #[doc(hidden)]
    #[must_use]
    pub fn without_events(mut self) -> Self {
        self.wants_events = false;
        self
    }

    /// Starts the thread, which calls `callback` with each change. Dropping the watch waits for a
    /// running call. Fails only if no thread can be started.
    pub fn start(
        self,
        callback: impl FnMut(Result<Update, Refusal>) + Send + 'static,
    ) -> io::Result<Watch> {
        let debounce = Arc::new(Debounce::default());
        let trouble = Arc::new(Mutex::new(None));
        let reloader = Reloader {
            debounce: Arc::clone(&debounce),
            trouble: Arc::clone(&trouble),
            reported: self.accepted.as_ref().map(|accepted| Reported::Texts(accepted.revision)),
            accepted: self.accepted,
            source: self.source,
            seen: None,
            is_sure: false,
            callback,
        };
        let (poll, wants_events) = (self.poll, self.wants_events);
        let thread = thread::Builder::new().name("tidegate-watch".into()).spawn(move || {
            let watched = wants_events.then(|| WatchedFolders::new(Arc::clone(&reloader.debounce)));
            reloader.run(watched, poll);
        })?;
        Ok(Watch { debounce, trouble, thread: Some(thread) })
    }
}

/// The state of the background thread.
struct Reloader<F> {
    debounce: Arc<Debounce>,
    trouble: Arc<Mutex<Option<String>>>,
    source: Source,
    accepted: Option<Accepted>,
    reported: Option<Reported>,
    seen: Option<Fingerprint>,
    /// File times are coarse: a file written twice within one tick has the same fingerprint for two
    /// texts. A fingerprint is therefore trusted only after a later read found the same texts.
    is_sure: bool,
    callback: F,
}

impl<F: FnMut(Result<Update, Refusal>)> Reloader<F> {
    fn run(mut self, mut watched: Option<WatchedFolders>, poll: Duration) {
        let mut wake = Wake::Changed;
        while wake != Wake::Ended {
            let is_requested = self.debounce.begin_read();
            // Updated first, so that changes during the read cause another event.
            if let Some(watched) = &mut watched {
                watched.follow(&self.source);
                let trouble = watched.trouble().map(Into::into);
                *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = trouble;
            }
            self.reload(is_requested);
            wake = self.debounce.wait(poll);
            if wake == Wake::Changed {
                wake = self.debounce.settle();
            }
        }
    }

    fn reload(&mut self, is_requested: bool) {
        let before = Fingerprint::of(&self.source);
        let is_same = self.seen.as_ref() == Some(&before);
        if is_same && self.is_sure && !is_requested {
            return;
        }
        let Some((outcome, after)) = self.read(before) else {
            self.seen = None;
            self.report(
                is_requested,
                Reported::Trouble(Refusal::Restless.to_string()),
                Err(Refusal::Restless),
            );
            // Reads again once the files have settled.
            self.debounce.change();
            return;
        };
        self.is_sure = is_same && self.seen.as_ref() == Some(&after);
        self.seen = Some(after);
        match outcome {
            Ok(texts) => self.weigh(&texts, is_requested),
            Err(error) => {
                let refusal = self.unreadable(error);
                self.report(is_requested, Reported::Trouble(refusal.to_string()), Err(refusal));
            }
        }
    }

    /// Reads until no file changes meanwhile, so that versions are not mixed.
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

    fn weigh(&mut self, texts: &Texts, is_requested: bool) {
        let revision = texts.revision();
        let reported = Reported::Texts(revision);
        if self.reported.as_ref() == Some(&reported) && !is_requested {
            return;
        }
        let outcome = self.update(texts, revision);
        if outcome.is_ok() {
            self.accepted = Some(Accepted::of(texts));
        }
        self.report(is_requested, reported, outcome);
    }

    fn update(&self, texts: &Texts, revision: Revision) -> Result<Update, Refusal> {
        if let Some(accepted) = &self.accepted {
            let mut blank = texts.files().filter(|(_, tells)| !tells).map(|(name, _)| name);
            let emptied = blank.find(|name| accepted.telling.contains(*name));
            if texts.files().all(|(_, tells)| !tells) && !accepted.telling.is_empty() {
                let what = emptied.map(|file| format!("{file} is empty"));
                let what = what.unwrap_or_else(|| "the files are empty".into());
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

    fn report(&mut self, is_requested: bool, reported: Reported, outcome: Result<Update, Refusal>) {
        let is_news = self.reported.as_ref() != Some(&reported);
        self.is_sure &= !is_news;
        if (is_news || is_requested) && !self.debounce.is_over() {
            self.reported = Some(reported);
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
                "{file} has become empty; keeping the last policy (delete the file to remove its \
                 limits)"
            ),
            Self::Restless => f.write_str("the files keep changing while they are read"),
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
