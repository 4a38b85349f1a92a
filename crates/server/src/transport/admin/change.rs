//! Changes at run time. Each is logged.

use hyper::Method;
use hyper::http::request::Parts;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tidegate::policy::{
    CheckError, ControlError, Descriptor, Domain, Entry, LocalOverride, OtherNumbers, Overruling,
    Policy, PolicyLimit, Request, Rule, Switch, nearest,
};
use tidegate::store::StoreError;
use tidegate::store::circuits::MAX_DRILL;
use tidegate::{InvalidLimit, Limit, Rate, Span, Timestamp};
use tidegate_core::Builder;
use tidegate_core::algorithm::blocking::Blocking;

use super::audit::Change;
use super::status;
use crate::observability::log::Level;
use crate::service::RateLimitService;
use crate::store::SharedStore;
use crate::transport::http::unreadable_json;

/// The longest reason that is accepted.
const MAX_REASON: usize = 256;

/// Why a change was not made.
#[derive(Debug)]
pub(super) enum Refused {
    /// The call is invalid.
    Wrong(String),
    /// The store failed. The same call may succeed later.
    Store(StoreError),
}

impl From<String> for Refused {
    fn from(why: String) -> Self {
        Self::Wrong(why)
    }
}

impl From<&str> for Refused {
    fn from(why: &str) -> Self {
        Self::Wrong(why.into())
    }
}

impl From<StoreError> for Refused {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

impl From<CheckError> for Refused {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Store(error) => Self::Store(error),
            error => Self::Wrong(error.to_string()),
        }
    }
}

/// Executes a call and returns the result.
pub(super) async fn carry_out(
    service: &RateLimitService,
    caller: &str,
    head: &Parts,
    body: &[u8],
) -> Result<Value, Refused> {
    let is_put = head.method == Method::PUT;
    let (answer, change) = match head.uri.path() {
        "/v1/reset" => reset(service, read(body)?).await?,
        "/v1/overrides" if is_put => set_override(service, read(body)?)?,
        "/v1/overrides" => {
            let Named { limit, reason } = read(body)?;
            let reason = checked(reason)?;
            let ended = service.limiter().end_overruling(&limit);
            ended_or_absent(ended, Change { limit: Some(limit), reason, ..Change::default() })
        }
        "/v1/kill-switch" => switch(service, read(body)?, is_put)?,
        "/v1/blocks" => block(service, read(body)?, is_put).await?,
        "/v1/local-overrides" if is_put => override_locally(service, read(body)?)?,
        "/v1/local-overrides" => {
            let key: LocalOverrideKey = read(body)?;
            let (entries, reason) = (key.entries(), checked(key.reason.clone())?);
            let ended = service.limiter().end_local_override(&key.domain, &entries);
            let value = shown(service, &key.domain, &entries);
            ended_or_absent(ended, Change { value, reason, ..Change::default() })
        }
        "/v1/drill" if is_put => start_drill(service, read(body)?)?,
        "/v1/drill" => {
            let DrillEnd { reason } =
                if body.is_empty() { DrillEnd::default() } else { read(body)? };
            let reason = checked(reason)?;
            let ended = service.shared_store().is_some_and(SharedStore::end_drill);
            ended_or_absent(ended, Change { reason, ..Change::default() })
        }
        _ => {
            let LevelName { level, reason } = read(body)?;
            let level = Level::named(&level).ok_or("level is one of error, warn, info, debug")?;
            let (value, reason) = (level.name().to_owned(), checked(reason)?);
            service.status().log().set_level(level);
            (json!({ "level": level.name() }), Change { limit: None, value, reason })
        }
    };
    change.log(caller, &format!("{} {}", head.method, head.uri.path()));
    Ok(answer)
}

/// The answer to a call that ends something, and the change.
fn ended_or_absent(ended: bool, change: Change) -> (Value, Change) {
    let state = if ended { "ended" } else { "was not in force" };
    let value = [&*change.value, state].join(" ").trim_start().to_owned();
    (json!({ "ended": ended }), Change { value, ..change })
}

/// A descriptor of a domain with its values as operators may see them.
fn shown(service: &RateLimitService, domain: &str, entries: &[Entry<'_>]) -> String {
    format!("{domain}/{}", service.status().key_values().show_entries(entries))
}

fn switch(
    service: &RateLimitService,
    target: Target,
    is_put: bool,
) -> Result<(Value, Change), Refused> {
    let reason = checked(target.reason.clone())?;
    let switch = target.switch()?;
    let change = Change::of_switch(&switch, is_put, reason);
    if !is_put {
        let ended = service.limiter().switch_on(&switch);
        return Ok((json!({ "ended": ended }), change));
    }
    let name = match &switch {
        Switch::All => "",
        Switch::Domain(name) | Switch::Limit(name) => name,
    };
    let switched = service.limiter().switch_off(&switch);
    switched.map_err(|error| refused(service, &error, name))?;
    Ok((status::switches(service), change))
}

fn read<T: DeserializeOwned>(body: &[u8]) -> Result<T, String> {
    const EXAMPLE: &str = r#"{"limit":"api/user#","percent":50,"seconds":900}"#;
    serde_json::from_slice(body).map_err(|error| unreadable_json(&error, body, EXAMPLE))
}

fn limits(policy: &Policy) -> impl Iterator<Item = &PolicyLimit> {
    policy.domains().flat_map(Domain::rules).flat_map(Rule::limits)
}

/// Why a control was refused; an unknown limit or domain is repeated, with the nearest known name.
fn refused(service: &RateLimitService, error: &ControlError, name: &str) -> String {
    let policy = service.policy();
    let known: Vec<&str> = match error {
        ControlError::NoSuchLimit => limits(&policy).map(PolicyLimit::id).collect(),
        ControlError::NoSuchDomain => policy.domains().map(Domain::name).collect(),
        _ => return error.to_string(),
    };
    let advice = match nearest(name, &known) {
        Some(meant) => format!("did you mean {meant:?}?"),
        None => "GET /v1/policy lists all".into(),
    };
    format!("{error}: {name:?}; {advice}")
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Named {
    limit: String,
    reason: Option<String>,
}

/// An outage drill, and its duration.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrillRequest {
    seconds: u64,
    reason: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct DrillEnd {
    reason: Option<String>,
}

fn start_drill(
    service: &RateLimitService,
    request: DrillRequest,
) -> Result<(Value, Change), Refused> {
    let reason = checked(request.reason)?;
    let store = service
        .shared_store()
        .ok_or("there is no shared store whose outage could be rehearsed: this daemon keeps its state in memory")?;
    let longest = MAX_DRILL.as_micros() / 1_000_000;
    if request.seconds == 0 || request.seconds > longest {
        return Err(format!("seconds is {}; say 1 to {longest}", request.seconds).into());
    }
    store.start_drill(Span::from_secs(request.seconds));
    let value = format!("outage drill of {} s", request.seconds);
    Ok((status::drill(service), Change { limit: None, value, reason }))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LevelName {
    level: String,
    reason: Option<String>,
}

/// The keys to reset: one whose limit comes with requests, or those of descriptors.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResetTarget {
    key: Option<String>,
    domain: Option<String>,
    #[serde(default)]
    descriptors: Vec<Vec<(String, String)>>,
    reason: Option<String>,
}

async fn reset(service: &RateLimitService, whose: ResetTarget) -> Result<(Value, Change), Refused> {
    let reason = checked(whose.reason)?;
    let (answer, value) = match (&whose.key, &whose.domain) {
        (Some(key), None) if whose.descriptors.is_empty() => {
            let had_state = service.forget(service.now(), key.as_bytes()).await?;
            let value = service.status().key_values().show_text(key);
            (json!({ "had_state": had_state }), value)
        }
        (None, Some(domain)) => {
            let entries: Vec<Vec<Entry<'_>>> = whose
                .descriptors
                .iter()
                .map(|side| side.iter().map(|(key, value)| Entry { key, value }).collect())
                .collect();
            let descriptors: Vec<Descriptor<'_>> =
                entries.iter().map(|entries| Descriptor::new(entries)).collect();
            let request = Request { domain, descriptors: &descriptors, hits: None };
            let answer = service.reset(&request).await?;
            let met = answer.parts().filter(|part| part.decision.is_some()).count();
            let value = entries.iter().map(|entries| shown(service, domain, entries));
            (json!({ "limits_reset": met }), value.collect::<Vec<_>>().join(" "))
        }
        _ => return Err("say key, or domain and descriptors as lists of [key, value] pairs".into()),
    };
    Ok((answer, Change { limit: None, value, reason }))
}

/// A key to block, and for how long; to lift a block, without a time.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct BlockRequest {
    domain: String,
    descriptor: Vec<(String, String)>,
    seconds: Option<u64>,
    reason: Option<String>,
}

async fn block(
    service: &RateLimitService,
    request: BlockRequest,
    is_put: bool,
) -> Result<(Value, Change), Refused> {
    let longest = Blocking::MAX_BLOCK.as_micros() / 1_000_000;
    let seconds = match (request.seconds, is_put) {
        (Some(seconds), true) if (1..=longest).contains(&seconds) => seconds,
        (None, false) => 0,
        (_, true) => return Err(format!("say seconds, from 1 to {longest}").into()),
        (_, false) => return Err("a block is lifted at once: leave out seconds".into()),
    };
    let reason = checked(request.reason)?;
    let entries: Vec<Entry<'_>> =
        request.descriptor.iter().map(|(key, value)| Entry { key, value }).collect();
    let descriptors = [Descriptor::new(&entries)];
    let asked = Request { domain: &request.domain, descriptors: &descriptors, hits: None };
    let limits = service.block(&asked, Span::from_secs(seconds)).await?;
    if limits == 0 {
        return Err("no limit with block_for applies to this descriptor".into());
    }
    let duration = if is_put { format!("for {seconds} s") } else { "lifted".into() };
    let value = format!("{} {duration}", shown(service, &request.domain, &entries));
    let answer = if is_put { "limits_blocked" } else { "limits_lifted" };
    Ok((json!({ answer: limits }), Change { limit: None, value, reason }))
}

/// An override of a limit, and its duration.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OverrideRequest {
    limit: String,
    percent: Option<u32>,
    rate: Option<String>,
    burst: Option<u64>,
    seconds: u64,
    reason: Option<String>,
}

fn set_override(
    service: &RateLimitService,
    request: OverrideRequest,
) -> Result<(Value, Change), String> {
    let numbers = match (request.percent, &request.rate) {
        (Some(percent), None) if request.burst.is_none() => OtherNumbers::Percent(percent),
        (None, Some(rate)) => OtherNumbers::Limit(numbers(service, &request, rate)?),
        _ => return Err("say percent, or rate and perhaps burst".into()),
    };
    let (reason, until) = (checked(request.reason)?, until(service, request.seconds));
    let mut value = match (request.percent, request.rate) {
        (Some(percent), _) => format!("{percent}%"),
        (None, rate) => rate.unwrap_or_default(),
    };
    if let Some(burst) = request.burst {
        value += &format!(" burst {burst}");
    }
    value += &format!(" for {} s", request.seconds);
    let overruling = Overruling { numbers, until, reason: reason.clone() };
    let overruled = service.limiter().overrule(&request.limit, &overruling);
    overruled.map_err(|error| refused(service, &error, &request.limit))?;
    Ok((status::overrides(service), Change { limit: Some(request.limit), value, reason }))
}

/// A reason of bounded length; an empty one is none.
fn checked(reason: Option<String>) -> Result<Option<String>, String> {
    let reason = reason.filter(|reason| !reason.is_empty());
    if reason.as_ref().is_some_and(|reason| reason.len() > MAX_REASON) {
        return Err(format!("a reason has at most {MAX_REASON} bytes"));
    }
    Ok(reason)
}

fn until(service: &RateLimitService, seconds: u64) -> Timestamp {
    let until =
        seconds.saturating_mul(1_000_000).saturating_add(service.time(service.now()).as_micros());
    Timestamp::from_micros(until)
}

/// A key that this node decides locally.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LocalOverrideKey {
    domain: String,
    descriptor: Vec<(String, String)>,
    reason: Option<String>,
}

impl LocalOverrideKey {
    fn entries(&self) -> Vec<Entry<'_>> {
        self.descriptor.iter().map(|(key, value)| Entry { key, value }).collect()
    }
}

/// A key that this node decides locally, and for how long; until it is deleted if no time is given.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LocalOverrideRequest {
    domain: String,
    descriptor: Vec<(String, String)>,
    seconds: Option<u64>,
    reason: Option<String>,
}

fn override_locally(
    service: &RateLimitService,
    request: LocalOverrideRequest,
) -> Result<(Value, Change), String> {
    let nodes = service
        .nodes()
        .cloned()
        .ok_or("all state is in this process: there is nothing to spare")?;
    let until = request.seconds.map(|seconds| until(service, seconds));
    let reason = checked(request.reason)?;
    let local_override = LocalOverride { nodes, until, reason: reason.clone() };
    let key =
        LocalOverrideKey { domain: request.domain, descriptor: request.descriptor, reason: None };
    let changed = service.limiter().override_locally(&key.domain, &key.entries(), &local_override);
    changed.map_err(|error| refused(service, &error, &key.domain))?;
    let lasts =
        request.seconds.map_or_else(|| "until ended".into(), |secs| format!("for {secs} s"));
    let value = format!("{} {lasts}", shown(service, &key.domain, &key.entries()));
    Ok((status::local_overrides(service), Change { limit: None, value, reason }))
}

/// The limit of a rate, with the algorithm of the limit that it overrides.
fn numbers(
    service: &RateLimitService,
    request: &OverrideRequest,
    rate: &str,
) -> Result<Limit, String> {
    let rate: Rate = rate.parse().map_err(|wrong: InvalidLimit| wrong.to_string())?;
    let policy = service.policy();
    let limit = limits(&policy).find(|limit| limit.id() == request.limit);
    let limit =
        limit.ok_or_else(|| refused(service, &ControlError::NoSuchLimit, &request.limit))?;
    let Some(algorithm) = limit.algorithm() else {
        return Err("an in-flight limit has no rate: set a percent".into());
    };
    let builder = Builder::new(algorithm, rate);
    let builder = request.burst.map_or(builder, |burst| builder.burst(burst));
    builder.build().map_err(|wrong| wrong.to_string())
}

/// The limits to put into shadow mode: all, those of a domain, or one.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Target {
    #[serde(default)]
    all: bool,
    domain: Option<String>,
    limit: Option<String>,
    reason: Option<String>,
}

impl Target {
    fn switch(self) -> Result<Switch, &'static str> {
        match (self.all, self.domain, self.limit) {
            (true, None, None) => Ok(Switch::All),
            (false, Some(domain), None) => Ok(Switch::Domain(domain)),
            (false, None, Some(limit)) => Ok(Switch::Limit(limit)),
            _ => Err("expected one of \"all\": true, domain, limit"),
        }
    }
}
