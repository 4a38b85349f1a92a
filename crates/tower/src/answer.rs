//! Responses to requests that are not served, and the header fields of those that are.

mod grpc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use tidegate::Verdict;
use tidegate::concurrency::Shed;
use tidegate::policy::CheckError;
use tidegate::verdict::{AdmissionFields, Problem, whole_seconds};

use crate::body::ResponseBody;
use crate::request::is_grpc;
use crate::source::Wanted;

/// `Retry-After` in seconds while the store is unavailable.
const STORE_RETRY: u64 = 1;

/// What responses contain besides their status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answers {
    body: AnswerBody,
    on_success: bool,
    x_rate_limit: bool,
}

/// The body of a response to a request that is not served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerBody {
    /// `application/problem+json` (RFC 9457) with the problem types of the IETF draft.
    ProblemJson,
    /// The verdict as `application/json`.
    Json,
    /// None.
    Empty,
}

impl Default for Answers {
    fn default() -> Self {
        Self::problem_json()
    }
}

impl Answers {
    /// Problem details, and `RateLimit` fields on every response that a limit counted.
    pub const fn problem_json() -> Self {
        Self::with(AnswerBody::ProblemJson)
    }

    /// `RateLimit` fields on every response that a limit counted, and this body.
    pub const fn with(body: AnswerBody) -> Self {
        Self { body, on_success: true, x_rate_limit: false }
    }

    /// `RateLimit` fields on denials only.
    #[must_use]
    pub const fn on_denials_only(self) -> Self {
        Self { on_success: false, ..self }
    }

    /// `X-RateLimit-Limit`, `-Remaining` and `-Reset` besides `RateLimit`.
    #[must_use]
    pub const fn with_x_rate_limit(self) -> Self {
        Self { x_rate_limit: true, ..self }
    }

    pub(crate) const fn is_on_success(&self) -> bool {
        self.on_success
    }

    /// What the header fields of admissions require from a decision.
    pub(crate) const fn wanted(&self) -> Wanted {
        if self.x_rate_limit { Wanted::Everything } else { Wanted::RateLimit }
    }

    /// The header fields of an admission.
    pub(crate) fn fields_of_admission(&self, verdict: &Verdict) -> Fields {
        match verdict.admission_fields() {
            Some(fields) if !self.x_rate_limit => Fields::RateLimit(fields),
            _ => self.fields(verdict),
        }
    }

    /// The header fields of a verdict.
    pub(crate) fn fields(&self, verdict: &Verdict) -> Fields {
        let headers = verdict.headers();
        let headers = if self.x_rate_limit { headers.with_x_rate_limit() } else { headers };
        let pair = |(name, value): (&'static str, String)| {
            // Quoted names and numbers are valid in a header. A text without spare capacity becomes
            // a value without another allocation.
            let value = value.into_boxed_str().into_boxed_bytes();
            let value = HeaderValue::from_maybe_shared(Bytes::from(value)).ok()?;
            Some((HeaderName::from_static(name), value))
        };
        Fields::List(headers.into_iter().filter_map(pair).collect())
    }

    /// The response to a request that is not served.
    pub(crate) fn reject<B>(
        &self,
        head: &Parts,
        rejection: &Rejection,
    ) -> Response<ResponseBody<B>> {
        if is_grpc(&head.headers) {
            return self.reject_call(head, rejection);
        }
        let problem = rejection.problem();
        let (text, kind) = match (self.body, rejection) {
            (AnswerBody::Empty, _) => (String::new(), None),
            (AnswerBody::Json, Rejection::Denied(verdict)) => {
                (verdict.json(), Some("application/json"))
            }
            (_, Rejection::Denied(verdict)) => {
                (verdict.problem_json(), Some("application/problem+json"))
            }
            (_, _) => (problem.json(&rejection.detail()), Some("application/problem+json")),
        };
        let mut response = Response::new(ResponseBody::text(text.into()));
        *response.status_mut() =
            StatusCode::from_u16(problem.status()).unwrap_or(StatusCode::TOO_MANY_REQUESTS);
        let headers = response.headers_mut();
        if let Some(kind) = kind {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        self.describe(rejection, headers);
        response
    }

    fn reject_call<B>(&self, head: &Parts, rejection: &Rejection) -> Response<ResponseBody<B>> {
        let mut response = Response::new(ResponseBody::text(Bytes::new()));
        let headers = response.headers_mut();
        if let Some(kind) = head.headers.get(CONTENT_TYPE) {
            headers.insert(CONTENT_TYPE, kind.clone());
        }
        grpc::write_status(rejection, headers);
        self.describe(rejection, headers);
        response
    }

    /// Adds the header fields with the time to retry.
    fn describe(&self, rejection: &Rejection, headers: &mut HeaderMap) {
        match rejection {
            // A 503 has no quota fields.
            Rejection::Denied(verdict) if verdict.is_unavailable() => {
                let seconds = verdict.headers().retry_after().unwrap_or(STORE_RETRY);
                headers.insert(RETRY_AFTER, seconds.into());
            }
            Rejection::Denied(verdict) => self.fields(verdict).merge_into(headers),
            Rejection::Shed(shed) => {
                headers.insert(RETRY_AFTER, whole_seconds(shed.retry_after()).into());
            }
            Rejection::Failed(CheckError::Store(_)) => {
                headers.insert(RETRY_AFTER, STORE_RETRY.into());
            }
            Rejection::Failed(_) => {}
            #[cfg(feature = "client")]
            Rejection::Throttled(_) | Rejection::Unpaced(_) => {}
        }
    }
}

/// Why a request is not served.
#[derive(Debug)]
pub(crate) enum Rejection {
    Denied(Verdict),
    Shed(Shed),
    Failed(CheckError),
    /// By this client, because the server rejects most requests.
    #[cfg(feature = "client")]
    Throttled(&'static str),
    /// By this client, because its own limit admits the request too late.
    #[cfg(feature = "client")]
    Unpaced(&'static str),
}

impl Rejection {
    fn problem(&self) -> Problem {
        match self {
            Self::Denied(verdict) if verdict.is_unavailable() => Problem::ReducedCapacity,
            Self::Denied(_) => Problem::QuotaExceeded,
            Self::Shed(_) | Self::Failed(CheckError::Store(_)) => Problem::ReducedCapacity,
            Self::Failed(CheckError::Request(_)) => Problem::BadRequest,
            Self::Failed(_) => Problem::Misconfigured,
            #[cfg(feature = "client")]
            Self::Throttled(_) => Problem::ReducedCapacity,
            #[cfg(feature = "client")]
            Self::Unpaced(_) => Problem::QuotaExceeded,
        }
    }

    fn detail(&self) -> String {
        match self {
            Self::Denied(_) => self.problem().title().into(),
            Self::Shed(shed) => format!("too many requests in progress: {}", shed.reason().name()),
            // The error may name servers. Only the observer gets it, not the client.
            Self::Failed(CheckError::Store(_)) => "the store gives no decision".into(),
            Self::Failed(error) => format!("rate limits: {error}"),
            #[cfg(feature = "client")]
            Self::Throttled(why) | Self::Unpaced(why) => (*why).into(),
        }
    }
}

/// Header fields that are added to a response.
#[derive(Debug, Default)]
pub(crate) enum Fields {
    #[default]
    None,
    /// `RateLimit-Policy` and `RateLimit`.
    RateLimit(AdmissionFields),
    List(Vec<(HeaderName, HeaderValue)>),
}

static RATE_LIMIT: HeaderName = HeaderName::from_static("ratelimit");
static RATE_LIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

impl Fields {
    /// Adds the fields as further list members. The later one of two `Retry-After` times stays.
    pub(crate) fn merge_into(self, headers: &mut HeaderMap) {
        match self {
            Self::None => {}
            Self::RateLimit(fields) => {
                headers.append(&RATE_LIMIT_POLICY, fields.policy());
                if let Some(state) = fields.state() {
                    headers.append(&RATE_LIMIT, state);
                }
            }
            Self::List(fields) => {
                fields.into_iter().for_each(|(name, value)| merge(name, value, headers));
            }
        }
    }
}

fn merge(name: HeaderName, value: HeaderValue, headers: &mut HeaderMap) {
    if name != RETRY_AFTER {
        headers.append(name, value);
    } else if headers.get(&name).is_none_or(|known| seconds(known) <= seconds(&value)) {
        headers.insert(name, value);
    }
}

/// Seconds; a date, which the inner service chose, is later than any number.
fn seconds(value: &HeaderValue) -> u64 {
    value.to_str().ok().and_then(|text| text.parse().ok()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_the_inner_service_stay_and_the_later_retry_wins() {
        let field = |name, value| (HeaderName::from_static(name), HeaderValue::from_static(value));
        for (inner, ours, expected) in [
            ("5", "9", "9"),
            ("9", "5", "9"),
            ("Fri, 31 Dec 1999 23:59:59 GMT", "5", "Fri, 31 Dec 1999 23:59:59 GMT"),
        ] {
            let mut headers: HeaderMap =
                [field("ratelimit", "\"a\";r=1"), field("retry-after", inner)]
                    .into_iter()
                    .collect();
            let ours = vec![field("ratelimit", "\"b\";r=2"), field("retry-after", ours)];
            Fields::List(ours).merge_into(&mut headers);
            let members: Vec<_> = headers.get_all("ratelimit").iter().collect();
            assert_eq!(members, ["\"a\";r=1", "\"b\";r=2"]);
            assert_eq!(headers["retry-after"], expected);
        }
    }
}
