//! The decision about a request, and the return of its units if it is not served.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response};
use tidegate::concurrency::{Class, Permit as ConcurrencyPermit, Shed};
use tidegate::policy::CheckError;
use tidegate::{Listing, Permit, Verdict};

use crate::answer::{Fields, Rejection};
use crate::body::ResponseBody;
use crate::event::Event;
use crate::layer::Settings;
use crate::request::Cost;
use crate::settle::cancel;
use crate::source::{Boxed, Decided, Deciding, now_or_later};

/// A request within its limits.
#[derive(Default)]
pub(crate) struct Admitted {
    /// `None` if the request was admitted without a decision.
    pub(crate) verdict: Option<Verdict>,
    pub(crate) place: Option<Permit>,
}

impl Settings {
    #[inline]
    pub(crate) fn decide(&self, head: Parts, cost: Option<u64>) -> Deciding {
        let is_listed = self.answers.is_on_success() && !self.is_shadow;
        let listing = if is_listed { Listing::Always } else { Listing::Denials };
        self.source.decide(head, cost, listing)
    }

    /// The cost of a request; `None` for the default.
    #[inline]
    pub(crate) fn cost_of(&self, head: &Parts) -> Option<u64> {
        let set = head.extensions.get::<Cost>().map(|cost| cost.0);
        set.or_else(|| self.cost.as_ref().map(|cost| cost(head)))
    }

    pub(crate) fn class_of(&self, head: &Parts) -> Class {
        self.class.as_ref().map_or(Class::CRITICAL, |class| class(head))
    }

    #[inline]
    fn tell(&self, event: &Event<'_>) {
        if let Some(observe) = &self.observe {
            observe(event);
        }
    }

    /// What follows from a decision.
    #[inline]
    pub(crate) fn judge(&self, decided: Decided) -> Result<Admitted, Rejection> {
        match decided {
            Ok((verdict, place)) if verdict.is_allowed() => {
                self.tell(&Event::Admitted(&verdict));
                Ok(Admitted { verdict: Some(verdict), place })
            }
            Ok((verdict, place)) if self.is_shadow => {
                self.tell(&Event::WouldDeny(&verdict));
                Ok(Admitted { verdict: Some(verdict), place })
            }
            Ok((verdict, _)) => {
                self.tell(&Event::Denied(&verdict));
                Err(Rejection::Denied(verdict))
            }
            Err(error) => {
                self.tell(&Event::Failed(&error));
                let is_outage = matches!(error, CheckError::Store(_)) && self.admits_on_failure;
                match is_outage || self.is_shadow {
                    true => Ok(Admitted { verdict: None, place: None }),
                    false => Err(Rejection::Failed(error)),
                }
            }
        }
    }

    /// How long an admitted request has to wait before it starts.
    #[inline]
    pub(crate) fn delay_of(&self, admitted: &Admitted) -> Duration {
        match &admitted.verdict {
            Some(verdict) if !self.is_shadow => verdict.delay(),
            _ => Duration::ZERO,
        }
    }

    /// The header fields of an admitted request.
    #[inline]
    pub(crate) fn fields_of(&self, admitted: &Admitted) -> Fields {
        match &admitted.verdict {
            Some(verdict) if self.answers.is_on_success() && !self.is_shadow => {
                self.answers.fields(verdict)
            }
            _ => Fields::default(),
        }
    }

    /// A permit of the concurrency limiter, if there is one and no request waits; `Err` if the request
    /// has to wait.
    #[inline]
    pub(crate) fn take_permit(&self, head: &Parts) -> Result<Option<ConcurrencyPermit>, ()> {
        let Some(limiter) = &self.concurrency else { return Ok(None) };
        limiter.take(self.class_of(head)).map(Some).ok_or(())
    }

    pub(crate) fn reject<B>(
        &self,
        head: &Parts,
        rejection: &Rejection,
    ) -> Response<ResponseBody<B>> {
        self.answers.reject(head, rejection)
    }

    pub(crate) fn shed(&self, shed: Shed) -> Rejection {
        self.tell(&Event::Shed(&shed));
        Rejection::Shed(shed)
    }

    /// The denial of a request that cannot wait for its delay.
    pub(crate) fn too_late(&self, verdict: Verdict) -> Rejection {
        let verdict = verdict.without_waiting();
        self.tell(&Event::TooLate(&verdict));
        Rejection::Denied(verdict)
    }
}

/// A request that waits. Dropping it, because the client has gone or the server sheds it, returns its
/// units.
pub(crate) struct Charged {
    pub(crate) head: Parts,
    pub(crate) admitted: Admitted,
    settings: Arc<Settings>,
    cost: Option<u64>,
    is_waiting: bool,
}

impl Charged {
    pub(crate) const fn new(
        settings: Arc<Settings>,
        cost: Option<u64>,
        head: Parts,
        admitted: Admitted,
    ) -> Self {
        Self { head, admitted, settings, cost, is_waiting: true }
    }

    /// Ends the wait: the request keeps its units.
    pub(crate) fn start(mut self) -> (Parts, Admitted) {
        self.is_waiting = false;
        self.take()
    }

    fn take(&mut self) -> (Parts, Admitted) {
        let (nothing, ()) = Request::new(()).into_parts();
        let head = std::mem::replace(&mut self.head, nothing);
        (head, std::mem::take(&mut self.admitted))
    }
}

impl Drop for Charged {
    fn drop(&mut self) {
        if !self.is_waiting {
            return;
        }
        let (head, Admitted { verdict, mut place }) = self.take();
        if let Some(settlement) = place.as_mut().and_then(Permit::take_settlement) {
            cancel(Arc::new(settlement));
        }
        drop(place);
        if let Some(verdict) = verdict.filter(Verdict::is_allowed) {
            in_background(self.settings.source.cancel(head, self.cost, verdict));
        }
    }
}

/// A decision that is awaited. If the request is dropped meanwhile, the decision is awaited in the
/// background and its units are returned.
pub(crate) struct Awaited {
    settings: Arc<Settings>,
    cost: Option<u64>,
    /// `None` once it is decided.
    deciding: Option<Boxed<(Parts, Decided)>>,
}

impl Awaited {
    pub(crate) const fn new(
        settings: Arc<Settings>,
        cost: Option<u64>,
        deciding: Boxed<(Parts, Decided)>,
    ) -> Self {
        Self { settings, cost, deciding: Some(deciding) }
    }

    /// Waits for the decision, and judges it.
    pub(crate) async fn judged(mut self) -> Result<Charged, (Parts, Rejection)> {
        let (head, decided) = poll_fn(|context| match &mut self.deciding {
            Some(deciding) => deciding.as_mut().poll(context),
            None => Poll::Pending,
        })
        .await;
        self.deciding = None;
        match self.settings.judge(decided) {
            Ok(admitted) => Ok(Charged::new(Arc::clone(&self.settings), self.cost, head, admitted)),
            Err(rejection) => Err((head, rejection)),
        }
    }
}

impl Drop for Awaited {
    fn drop(&mut self) {
        let Some(deciding) = self.deciding.take() else { return };
        let (settings, cost) = (Arc::clone(&self.settings), self.cost);
        in_background(Box::pin(async move {
            if let (head, Ok((verdict, place))) = deciding.await {
                let admitted = Admitted { verdict: Some(verdict), place };
                drop(Charged::new(settings, cost, head, admitted));
            }
        }));
    }
}

/// Completes a future at once if it does not wait, or else in the background. Without a runtime, which
/// is then shutting down, the units stay taken.
pub(crate) fn in_background(mut future: Boxed<()>) {
    if now_or_later(&mut future).is_none()
        && let Ok(runtime) = tokio::runtime::Handle::try_current()
    {
        runtime.spawn(future);
    }
}
