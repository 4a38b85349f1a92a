//! Entries of the access log.
//!
//! The layers that a request passes add their part of its entry to [`Notes`], a task-local value of
//! the request's future.

mod line;

use std::fmt;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use hyper::body::{Body, Bytes, Frame, SizeHint};
use hyper::header::{HeaderValue, USER_AGENT};
use hyper::http::request::Parts;
use hyper::{Request, Response};
use tidegate::concurrency::Class;
use tidegate::policy::CheckError;
use tidegate::{Span, Timestamp, Verdict};
use tidegate_tower::Event;

use crate::observability::access_log::AccessLog;
use crate::service::RateLimitService;
use crate::settings::{AccessFormat, Gateway};

tokio::task_local! {
    /// The notes of the request whose future runs.
    static NOTES: Arc<Mutex<Notes>>;
}

/// Facts about a request that the layers of the gateway add.
#[derive(Debug, Default)]
pub(super) struct Notes {
    pub(super) upstream: Option<Box<str>>,
    pub(super) request_id: Option<HeaderValue>,
    /// The strictest limit, or the one that denied the request.
    limit: Option<Box<str>>,
    class: Option<Class>,
    pub(super) reason: Option<&'static str>,
}

/// Adds to the notes of the request whose future runs, if there is an access log.
pub(super) fn note(add: impl FnOnce(&mut Notes)) {
    let _ = NOTES.try_with(|notes| add(&mut notes.lock().unwrap_or_else(PoisonError::into_inner)));
}

/// Adds the decision of the limits.
pub(super) fn note_event(event: &Event<'_>) {
    note(|notes| match event {
        Event::Admitted(verdict) => notes.limited_by(verdict),
        Event::Denied(verdict) => {
            notes.reason = Some("quota");
            notes.limited_by(verdict);
        }
        Event::TooLate(verdict) => {
            notes.reason = Some("too_late");
            notes.limited_by(verdict);
        }
        Event::Shed(shed) => {
            notes.reason = Some(shed.reason().name());
            notes.class = Some(shed.class());
        }
        Event::Class(class) => notes.class = Some(*class),
        Event::Failed(error) => {
            notes.reason = Some(match error {
                CheckError::Store(_) => "store",
                CheckError::Request(_) => "ambiguous",
                _ => "policy",
            });
        }
        _ => {}
    });
}

impl Notes {
    fn limited_by(&mut self, verdict: &Verdict) {
        let part = verdict.strictest();
        self.limit = part.map(|part| part.rule.map_or(part.name, |(_, limit)| limit.id()).into());
    }
}

/// The access log of one connection.
#[derive(Clone, Debug)]
pub(super) struct Access {
    log: AccessLog,
    format: AccessFormat,
    client: Option<IpAddr>,
    /// The domain that `gateway.domain` names.
    domain: Option<Box<str>>,
    service: RateLimitService,
}

/// A request that is not logged yet.
struct Entry {
    access: Access,
    head: Head,
    notes: Arc<Mutex<Notes>>,
    /// `None` until there is a response.
    answered: Option<Answered>,
    bytes: u64,
    is_cut: bool,
}

/// The logged parts of a request's head.
#[derive(Debug)]
struct Head {
    began: Timestamp,
    method: Box<str>,
    path: Box<str>,
    agent: Option<HeaderValue>,
}

#[derive(Clone, Copy, Debug)]
struct Answered {
    status: u16,
    after: Span,
}

impl Access {
    /// `None` without an access log.
    pub(super) fn new(
        gateway: &Gateway,
        client: Option<IpAddr>,
        service: &RateLimitService,
    ) -> Option<Self> {
        let format = gateway.edge.access_log?;
        let log = service.status().access_log()?.clone();
        let domain = gateway.domain.as_deref().map(Into::into);
        Some(Self { log, format, client, domain, service: service.clone() })
    }

    /// Answers a request, and logs it once the body of the response ends.
    pub(super) async fn observe<I, O, F: Future<Output = Response<O>>>(
        &self,
        request: Request<I>,
        answer: impl FnOnce(Request<I>) -> F,
    ) -> Response<LoggedBody<O>> {
        let (head, body) = request.into_parts();
        let mut entry = self.entry(Head::of(&head, self.service.now()));
        let answer = answer(Request::from_parts(head, body));
        let response = NOTES.scope(Arc::clone(&entry.notes), answer).await;
        let after = self.service.now().since(entry.head.began);
        entry.answered = Some(Answered { status: response.status().as_u16(), after });
        response.map(|body| LoggedBody { body, entry })
    }

    /// Logs a request that hyper has refused.
    pub(super) fn log_malformed(&self, error: &hyper::Error) {
        if !error.is_parse() {
            return;
        }
        let status = if error.is_parse_too_large() { 431 } else { 400 };
        let (began, text) = (self.service.now(), Box::<str>::from("-"));
        let head = Head { began, method: text.clone(), path: text, agent: None };
        let mut entry = self.entry(head);
        entry.answered = Some(Answered { status, after: Span::ZERO });
        entry.notes.lock().unwrap_or_else(PoisonError::into_inner).reason = Some("malformed");
    }

    fn entry(&self, head: Head) -> Entry {
        let (access, notes) = (self.clone(), Arc::default());
        Entry { access, head, notes, answered: None, bytes: 0, is_cut: false }
    }
}

impl Head {
    fn of(head: &Parts, began: Timestamp) -> Self {
        Self {
            began,
            method: line::bounded(head.method.as_str(), line::MAX_METHOD).into(),
            // Without the query, which may contain tokens and names.
            path: line::bounded(head.uri.path(), line::MAX_PATH).into(),
            agent: head.headers.get(USER_AGENT).cloned(),
        }
    }
}

impl Drop for Entry {
    /// Logs the request, however it has ended.
    fn drop(&mut self) {
        let line = line::write(self);
        self.access.log.push(line.as_bytes());
    }
}

/// The body of a response, which is logged once it has ended.
pub(super) struct LoggedBody<B> {
    body: B,
    entry: Entry,
}

impl<B> fmt::Debug for LoggedBody<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LoggedBody").field("bytes", &self.entry.bytes).finish_non_exhaustive()
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for LoggedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        let this = self.get_mut();
        let frame = Pin::new(&mut this.body).poll_frame(context);
        match &frame {
            Poll::Ready(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, Bytes::len) as u64;
                this.entry.bytes = this.entry.bytes.saturating_add(length);
            }
            Poll::Ready(Some(Err(_))) => this.entry.is_cut = true,
            Poll::Ready(None) | Poll::Pending => {}
        }
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
