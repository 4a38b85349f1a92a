//! The decision about a request, and the return of its units if it is not served.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::request::Parts;
use http::{Request, Response};
use tidegate::Verdict;
use tidegate::concurrency::{Class, ConcurrencyLimiter, Shed};
use tidegate::policy::{CheckError, HoldUntil};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::answer::{Fields, Rejection};
use crate::body::ResponseBody;
use crate::event::Event;
use crate::layer::{Hold, Settings};
use crate::request::Cost;
use crate::settle::cancel;
use crate::source::{Answer, Boxed, Decided, Refusal, Wanted, now_or_later};

impl Settings {
    /// Decides a request at once; `None` if the decision may have to wait.
    #[inline]
    pub(crate) fn decide_now(&self, head: &Parts, cost: Option<u64>) -> Option<Decided> {
        let wanted = match self.answers.is_on_success() && !self.is_shadow {
            true => self.answers.wanted(),
            false => Wanted::Nothing,
        };
        self.source.decide_now(head, cost, wanted)
    }

    /// The cost of a request; `None` for the default.
    #[inline]
    pub(crate) fn cost_of(&self, head: &Parts) -> Option<u64> {
        let set = head.extensions.get::<Cost>().map(|cost| cost.0);
        set.or_else(|| self.cost.as_ref().map(|cost| cost(head)))
    }

    #[inline]
    fn tell(&self, event: &Event<'_>) {
        if let Some(observe) = &self.observe {
            observe(event);
        }
    }

    /// Whether a request is admitted without a delay and without a concurrency limiter. Reports the
    /// admission to the observer.
    #[inline]
    pub(crate) fn starts_at_once(&self, answer: &Answer) -> bool {
        let is_protected = self.concurrency.is_some() || answer.guard.is_some();
        let starts =
            answer.is_admission() && !is_protected && self.delay_of(answer) == Duration::ZERO;
        if let (true, Some(verdict)) = (starts, &answer.verdict) {
            self.tell(&Event::Admitted(verdict));
        }
        starts
    }

    /// The answer to an admitted request, or the rejection of another.
    pub(crate) fn judge(&self, decided: Decided) -> Result<Answer, Rejection> {
        match decided {
            Ok(answer) if answer.verdict.is_none() => Ok(answer),
            Ok(answer) if answer.is_admission() => {
                if let (Some(observe), Some(verdict)) = (&self.observe, &answer.verdict) {
                    observe(&Event::Admitted(verdict));
                }
                Ok(answer)
            }
            decided => self.judge_denial(decided),
        }
    }

    /// The answer or the rejection that follows from any decision but an admission.
    #[cold]
    fn judge_denial(&self, decided: Decided) -> Result<Answer, Rejection> {
        match decided {
            Ok(Answer { verdict: Some(verdict), place, guard, .. }) if self.is_shadow => {
                self.tell(&Event::WouldDeny(&verdict));
                Ok(Answer { verdict: Some(verdict), place, fields: None, guard })
            }
            Ok(Answer { verdict: Some(verdict), .. }) => {
                self.tell(&Event::Denied(&verdict));
                Err(Rejection::Denied(verdict))
            }
            Ok(undecided) => Ok(undecided),
            Err(Refusal::Shed(shed)) => Err(self.shed(shed)),
            Err(Refusal::Failed(error, guard)) => {
                self.tell(&Event::Failed(&error));
                let is_outage = matches!(*error, CheckError::Store(_)) && self.admits_on_failure;
                match is_outage || self.is_shadow {
                    true => Ok(Answer { guard, ..Answer::default() }),
                    false => Err(Rejection::Failed(*error)),
                }
            }
        }
    }

    /// How long an admitted request has to wait before it starts.
    #[inline]
    pub(crate) fn delay_of(&self, admitted: &Answer) -> Duration {
        match &admitted.verdict {
            Some(verdict) if !self.is_shadow => verdict.delay(),
            _ => Duration::ZERO,
        }
    }

    /// The header fields of an admitted request.
    #[inline]
    pub(crate) fn fields_of(&self, admitted: &mut Answer) -> Fields {
        match (admitted.fields.take(), &admitted.verdict) {
            (Some(fields), _) => Fields::RateLimit(fields),
            (None, Some(verdict)) if self.answers.is_on_success() && !self.is_shadow => {
                self.answers.fields_of_admission(verdict)
            }
            _ => Fields::None,
        }
    }

    /// Sheds a request that would not get a permit, before a shared store is called for it.
    pub(crate) fn shed_early(&self, head: &Parts) -> Result<(), Rejection> {
        match &self.concurrency {
            Some(limiter) if self.source.is_remote() => {
                let class = self.class.as_ref().map_or(Class::CRITICAL, |class| class(head));
                limiter.shed_early(class).map_err(|shed| self.shed(shed))
            }
            _ => Ok(()),
        }
    }

    /// The concurrency limiter that has to admit a request: the layer's own, or else the one that the policy
    /// names.
    #[inline]
    pub(crate) fn gate<'a>(&'a self, head: &Parts, admitted: &'a Answer) -> Option<Gate<'a>> {
        let guard = admitted.guard.as_ref();
        let limiter = self.concurrency.as_ref().or(guard.map(|guard| &guard.limiter))?;
        let class = match &self.class {
            Some(class) => class(head),
            None => guard.map_or(Class::CRITICAL, |guard| guard.class),
        };
        self.tell(&Event::Class(class));
        Some(Gate { limiter, class, user: guard.and_then(|guard| guard.identity) })
    }

    /// When the permit of a request is released.
    pub(crate) fn hold_of(&self, admitted: &Answer) -> Hold {
        match &admitted.guard {
            Some(guard) if guard.hold == HoldUntil::Head => Hold::Head,
            _ => self.hold,
        }
    }

    /// Sheds a request whose class is shed while the workers are busy.
    #[inline]
    pub(crate) fn shed_busy(&self, gate: &Gate<'_>, head: &Parts) -> Result<(), Rejection> {
        let user = || gate.user.or_else(|| self.source.user(head));
        gate.limiter.shed_busy(gate.class, user).map_err(|shed| self.shed(shed))
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

/// A concurrency limiter, and the class and user of a request that has to pass it.
pub(crate) struct Gate<'a> {
    pub(crate) limiter: &'a ConcurrencyLimiter,
    pub(crate) class: Class,
    /// A hash of the user.
    user: Option<u64>,
}

/// A request that waits. Dropping it, because the client has gone or the server sheds it, returns its
/// units.
pub(crate) struct Charged {
    pub(crate) head: Parts,
    pub(crate) admitted: Answer,
    settings: Arc<Settings>,
    cost: Option<u64>,
    is_waiting: bool,
}

impl Charged {
    pub(crate) const fn new(
        settings: Arc<Settings>,
        cost: Option<u64>,
        head: Parts,
        admitted: Answer,
    ) -> Self {
        Self { head, admitted, settings, cost, is_waiting: true }
    }

    /// Ends the wait: the request keeps its units.
    pub(crate) fn start(mut self) -> (Parts, Answer) {
        self.is_waiting = false;
        self.take()
    }

    fn take(&mut self) -> (Parts, Answer) {
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
        let (head, Answer { verdict, mut place, .. }) = self.take();
        if let Some(settlement) = place.as_mut().and_then(|place| place.take_settlement()) {
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
            if let (head, Ok(admitted)) = deciding.await {
                drop(Charged::new(settings, cost, head, admitted));
            }
        }));
    }
}

/// Completes a future at once if it does not wait, or else in the background, in the task that is returned.
/// Without a runtime, which is then shutting down, the units stay taken.
pub(crate) fn in_background(mut future: Boxed<()>) -> Option<JoinHandle<()>> {
    match now_or_later(&mut future) {
        Some(()) => None,
        None => Handle::try_current().ok().map(|runtime| runtime.spawn(future)),
    }
}
