//! Requests in JSON: a limit that comes with the request, or descriptors for the policy.

use serde::{Deserialize, Deserializer};
use tidegate::policy::{
    CheckError, Descriptor, Entry, Granted, Hits, InlineLimit, Leases, MAX_DESCRIPTORS, Request,
    Reservations,
};
use tidegate::store::MAX_TOGETHER;
use tidegate::{AlgorithmName, InvalidLimit, Limit, Op, Rate, Verdict};
use tidegate_core::{Builder, UnknownAlgorithm};

use super::Reply;
use super::descriptor_input::{DescriptorInput, Text};
use super::object::Object;
use super::reply::{self, Refused};
use super::unreadable::unreadable;
use super::whole_number::WholeNumber;
use crate::service::RateLimitService;
use crate::transport::access::Caller;

/// The action on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Decide and charge.
    Check,
    /// Decide without charging.
    Peek,
    /// Return the units that were charged.
    Refund,
    /// Reset the keys of the request.
    Reset,
    /// List the limits that apply, and their state.
    Explain,
    /// Decide and charge, in-flight limits included.
    Acquire,
}

/// A request: a key with one limit or several, or a domain of the policy with descriptors.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CheckRequest<'a> {
    #[serde(borrow, deserialize_with = "present")]
    key: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "present")]
    rate: Option<Text<'a>>,
    #[serde(deserialize_with = "present")]
    burst: Option<WholeNumber>,
    #[serde(deserialize_with = "present")]
    queue: Option<WholeNumber>,
    #[serde(borrow, deserialize_with = "present")]
    algorithm: Option<Text<'a>>,
    #[serde(deserialize_with = "present")]
    cost: Option<WholeNumber>,
    #[serde(borrow, deserialize_with = "present")]
    limits: Option<Vec<Object<Self>>>,
    #[serde(borrow, deserialize_with = "present")]
    domain: Option<Text<'a>>,
    #[serde(borrow, deserialize_with = "present")]
    descriptors: Option<Vec<DescriptorInput<'a>>>,
}

/// Parses a field that must not be `null`, which differs from an absent field.
fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(from: D) -> Result<Option<T>, D::Error> {
    T::deserialize(from).map(Some)
}

/// Answers one request.
pub(crate) async fn answer(
    service: &RateLimitService,
    caller: &Caller<'_>,
    action: Action,
    body: &[u8],
) -> Reply {
    let answers = &caller.settings.answers;
    let read = read(body).and_then(|check| {
        let is_reading = matches!(action, Action::Peek | Action::Explain);
        if matches!(action, Action::Refund | Action::Reset | Action::Acquire)
            || (!is_reading && check.returns_units())
        {
            caller.may_return_units()?;
        }
        Ok(check)
    });
    let answer = match read {
        Ok(check) => check.decide(service, action).await,
        Err(refused) => Err(refused),
    };
    match answer {
        Ok(granted) if action == Action::Explain => reply::explanation(&granted.verdict, answers),
        Ok(granted) => reply::granted(&granted, answers),
        Err(refused) => refused.reply(),
    }
}

fn read(body: &[u8]) -> Result<CheckRequest<'_>, Refused> {
    match serde_json::from_slice(body) {
        Ok(Object(check)) => Ok(check),
        Err(error) => malformed(unreadable(&error, body, EXAMPLE)),
    }
}

/// A valid request, for error messages.
pub(super) const EXAMPLE: &str = r#"{"key":"user:17","rate":"100/60s"}"#;

fn malformed<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused::Malformed(why.into()))
}

impl CheckRequest<'_> {
    /// Decides the request. Only an acquire holds places, and only a check or an acquire opens reservations.
    pub(crate) async fn decide(
        &self,
        service: &RateLimitService,
        action: Action,
    ) -> Result<Granted, Refused> {
        let given_limit = match self.form()? {
            Form::One | Form::Several(_) if action == Action::Acquire => {
                return malformed("acquire needs domain and descriptors");
            }
            Form::One => vec![self.given_limit(action)?],
            Form::Several(limits) => {
                let given_limit = limits.iter().map(|Object(limit)| limit.given_limit(action));
                given_limit.collect::<Result<Vec<_>, _>>()?
            }
            Form::Policy(domain, sides) => {
                return self.ask_policy(service, action, (domain, sides)).await;
            }
        };
        let (inline, now): (Vec<_>, _) =
            (given_limit.iter().map(GivenLimit::inline).collect(), service.now());
        let verdict = match action {
            Action::Explain => service.explain_inline(now, &inline).await?,
            _ => service.report_inline(now, &inline).await?,
        };
        Ok(holding_nothing(verdict))
    }

    /// Whether a check of the request returns units.
    pub(crate) fn returns_units(&self) -> bool {
        let sides = self.descriptors.as_deref().unwrap_or_default();
        sides.iter().any(|side| matches!(side.hits, Some(Hits::Return(_))))
    }

    /// Whether the request is valid.
    pub(crate) fn verify(&self) -> Result<(), Refused> {
        match self.form()? {
            Form::One => self.given_limit(Action::Check).map(drop),
            Form::Several(limits) => limits
                .iter()
                .try_for_each(|Object(limit)| limit.given_limit(Action::Check).map(drop)),
            Form::Policy(..) => Ok(()),
        }
    }

    /// The form of the request.
    fn form(&self) -> Result<Form<'_>, Refused> {
        match (&self.key, &self.limits, &self.domain) {
            (Some(_), None, None) => Ok(Form::One),
            (None, Some(limits), None) => {
                let is_bare = !self.has_numbers() && self.cost.is_none();
                if !is_bare || self.descriptors.is_some() {
                    return malformed(
                        "with `limits`, write `key`, `rate`, `burst`, `queue`, `algorithm` and `cost` in each limit, not beside the list",
                    );
                }
                if !(1..=MAX_TOGETHER).contains(&limits.len()) {
                    return malformed(format!("a request has 1 to {MAX_TOGETHER} limits"));
                }
                Ok(Form::Several(limits))
            }
            (None, None, Some(domain)) => {
                if self.has_numbers() {
                    return malformed(
                        "with `domain`, leave out `rate`, `burst`, `queue` and `algorithm`: the policy sets them",
                    );
                }
                let sides = self.descriptors.as_deref().unwrap_or_default();
                let wrong = match sides.len() {
                    _ if domain.is_empty() => CheckError::NoDomain,
                    0 => CheckError::NoDescriptors,
                    1..=MAX_DESCRIPTORS => return Ok(Form::Policy(domain, sides)),
                    _ => CheckError::TooManyDescriptors,
                };
                Err(wrong.into())
            }
            _ => malformed("expected key and rate, or limits, or domain and descriptors"),
        }
    }

    const fn has_numbers(&self) -> bool {
        self.rate.is_some()
            || self.burst.is_some()
            || self.queue.is_some()
            || self.algorithm.is_some()
    }

    /// The limit that came with the request, and the operation.
    fn given_limit(&self, action: Action) -> Result<GivenLimit<'_>, Refused> {
        let (Some(key), Some(rate)) = (&self.key, &self.rate) else {
            return malformed("a key needs a rate, such as 100/60s");
        };
        if key.is_empty() {
            return malformed(
                "key must not be empty: it identifies the client or resource, such as user:17",
            );
        }
        if self.descriptors.is_some() || self.domain.is_some() || self.limits.is_some() {
            return malformed(
                "expected `key` with `rate`, `burst`, `queue`, `algorithm` and `cost` only; `domain`, `descriptors` and `limits` are other forms of the request",
            );
        }
        let algorithm = match &self.algorithm {
            None => AlgorithmName::TokenBucket,
            Some(name) => {
                name.parse().or_else(|wrong: UnknownAlgorithm| malformed(wrong.to_string()))?
            }
        };
        let rate: Rate = rate.parse().or_else(|wrong: InvalidLimit| match wrong {
            InvalidLimit::RateText => malformed(wrong.to_string()),
            _ => Err(Refused::Impossible(wrong.to_string())),
        })?;
        let builder = Builder::new(algorithm, rate);
        let builder = self.burst.map_or(builder, |WholeNumber(burst)| builder.burst(burst));
        let builder = self.queue.map_or(builder, |WholeNumber(queue)| builder.queue(queue));
        let limit = builder.build().map_err(|wrong| Refused::Impossible(wrong.to_string()))?;
        let cost = self.cost.map_or(1, |WholeNumber(cost)| cost);
        let op = match action {
            Action::Check | Action::Acquire => Op::Take(cost),
            Action::Peek | Action::Explain => Op::Read(cost),
            Action::Refund => Op::Return(cost),
            Action::Reset => Op::Reset,
        };
        Ok(GivenLimit { key, algorithm, limit, op })
    }

    async fn ask_policy(
        &self,
        service: &RateLimitService,
        action: Action,
        (domain, sides): (&str, &[DescriptorInput<'_>]),
    ) -> Result<Granted, Refused> {
        let entries: Vec<Entry<'_>> = sides.iter().flat_map(DescriptorInput::entries).collect();
        let mut rest = &entries[..];
        let descriptors: Vec<Descriptor<'_>> = sides
            .iter()
            .map(|side| {
                let (entries, others) = rest.split_at(side.entries().len());
                rest = others;
                Descriptor { hits: side.hits, limit: side.limit, ..Descriptor::new(entries) }
            })
            .collect();
        let request = Request {
            domain,
            descriptors: &descriptors,
            hits: self.cost.map(|WholeNumber(cost)| cost),
        };
        let verdict = match action {
            Action::Check => {
                let (verdict, reservations) = service.reserve(&request).await?;
                return Ok(Granted { reservations, ..holding_nothing(verdict) });
            }
            Action::Peek => service.peek(&request).await?,
            Action::Refund => service.refund(&request).await?,
            Action::Reset => service.reset(&request).await?,
            Action::Explain => service.explain(&request).await?,
            Action::Acquire => return Ok(service.acquire(&request).await?),
        };
        Ok(holding_nothing(verdict))
    }
}

/// A request without places and reservations.
fn holding_nothing(verdict: Verdict) -> Granted {
    Granted { verdict, leases: Leases::default(), reservations: Reservations::default() }
}

/// The forms of requests.
enum Form<'q> {
    One,
    Several(&'q [Object<CheckRequest<'q>>]),
    Policy(&'q str, &'q [DescriptorInput<'q>]),
}

/// A limit that came with the request, and the operation.
struct GivenLimit<'a> {
    key: &'a str,
    algorithm: AlgorithmName,
    limit: Limit,
    op: Op,
}

impl GivenLimit<'_> {
    const fn inline(&self) -> InlineLimit<'_> {
        let Self { key, algorithm, ref limit, op } = *self;
        InlineLimit { key: key.as_bytes(), algorithm, limit, op }
    }
}
