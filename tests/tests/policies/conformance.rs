//! Every conformance case, in the library over memory and over a real Redis.

use std::collections::HashMap;
use std::fmt::Debug;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;

use tidegate::policy::{
    CheckError, Descriptor, Entry, Form, Hits, Leases, Metadata, MetricDetail, Policy,
    PolicyLimiter, Request, RequestLimit, RequestOutcome, Reservations, Rule,
};
use tidegate::store::Store;
use tidegate::store::memory::MemoryStore;
use tidegate::store::redis::{RedisConfig, RedisStore};
use tidegate::verdict::Standing;
use tidegate::{Clock, Hashing, ManualClock, Span, Verdict};
use tidegate_tests::conformance::{
    Action, Case, CaseRequest, ExpectedRule, Limiting, Outcome, Reply, Status, Sums, Wait, cases,
    run_case, whole_seconds,
};
use tidegate_tests::servers::RedisServer;
use tidegate_tests::shared_comparison::store;

/// What the suite has grown to; it must not shrink unnoticed.
const LEAST_CASES: usize = 270;
/// What never takes as long on any machine.
const TIMEOUT: Duration = Duration::from_secs(30);

fn all_cases() -> Vec<Case> {
    cases(&Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance"))
}

/// The policy of a case; an error if it is read though it should not be, or the other way round.
fn load(case: &Case) -> Result<Option<Policy>, String> {
    let files: Vec<(&str, &str)> =
        case.files.iter().map(|(name, text)| (&**name, &**text)).collect();
    let loaded = Policy::load_at(&files, case.merging(), case.start());
    if case.rejected.is_empty() {
        return match loaded.policy {
            Some(policy) => Ok(Some(policy)),
            None => Err(format!("{}: {}", case.name, loaded.findings)),
        };
    }
    for rejected in &case.rejected {
        let place = format!(".yaml:{}: ", rejected.at);
        let is_told = |line: &str| {
            line.contains(&place) && line.contains(&*rejected.says) && !line.contains(": warning: ")
        };
        if !loaded.findings.lines().any(is_told) {
            return Err(format!("{}: {rejected:?} is not in\n{}", case.name, loaded.findings));
        }
    }
    if loaded.policy.is_some() || loaded.errors != case.rejected.len() {
        return Err(format!("{}: {} errors\n{}", case.name, loaded.errors, loaded.findings));
    }
    Ok(None)
}

/// A question as the library is asked.
fn with_request<T>(question: &CaseRequest, ask: impl FnOnce(&Request<'_>) -> T) -> T {
    let entries: Vec<Vec<Entry<'_>>> = question
        .descriptors
        .iter()
        .map(|side| side.entries.iter().map(|(key, value)| Entry { key, value }).collect())
        .collect();
    let hits = |hits: i64| match hits {
        0.. => Hits::Take(hits.unsigned_abs()),
        _ => Hits::Return(hits.unsigned_abs()),
    };
    let limit = |(requests_per_unit, unit)| RequestLimit { requests_per_unit, unit };
    let sides = question.descriptors.iter().zip(&entries);
    let descriptors: Vec<Descriptor<'_>> = sides
        .map(|(side, entries)| Descriptor {
            hits: side.hits.map(hits),
            limit: side.limit.map(limit),
            ..Descriptor::new(entries)
        })
        .collect();
    let hits = (question.hits > 0).then_some(question.hits);
    ask(&Request { domain: &question.domain, descriptors: &descriptors, hits })
}

fn reply(question: &CaseRequest, answer: Result<Verdict, CheckError>) -> Reply {
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return Reply::Failed(error.to_string()),
    };
    let status = |descriptor: usize| status(&answer, descriptor);
    let statuses = (0..question.descriptors.len()).map(status).collect();
    let retry_after = (!answer.is_allowed()).then(|| wait(answer.retry_after().map(Span::from)));
    Reply::Decided { allowed: answer.is_allowed(), statuses: Some(statuses), retry_after }
}

fn wait(span: Option<Span>) -> Wait {
    span.map_or(Wait::Never, |span| Wait::Seconds(whole_seconds(span)))
}

/// What the answer tells of one descriptor.
fn status(answer: &Verdict, descriptor: usize) -> Status {
    let over =
        answer.parts().any(|part| part.descriptor == descriptor && part.counts() && part.denies());
    let Some((part, decision)) =
        answer.strictest_of(descriptor).and_then(|part| Some((part, part.decision?)))
    else {
        let unlimited = answer
            .parts()
            .any(|part| part.descriptor == descriptor && part.standing == Standing::Unlimited);
        let limit = Some(if unlimited { Limiting::Unlimited } else { Limiting::Nothing });
        let remaining = Some(if unlimited { u32::MAX.into() } else { 0 });
        return Status { over, limit, remaining, ..Status::default() };
    };
    let written = part.rule.map(|(_, limit)| limit);
    let name = written.and_then(|limit| limit.name()).unwrap_or_default().to_owned();
    let unit = match written.map(|limit| limit.form()) {
        Some(Form::Envoy { unit, .. }) => Some(unit),
        Some(Form::Native) => None,
        None => part.request_limit().map(|limit| limit.unit),
    };
    let retry_after = (!decision.is_allowed()).then(|| wait(decision.retry_after()));
    Status {
        over,
        limit: Some(Limiting::Numbers { name, capacity: decision.limit, unit }),
        remaining: Some(decision.remaining),
        reset: Some(whole_seconds(decision.reset_after)),
        retry_after,
        delay: Some(decision.delay()),
    }
}

/// The leases and reservations of requests, by the names that a case gives them.
type Holders = HashMap<String, (Leases, Reservations)>;

/// The same text, as over a network.
fn sent<T: ToString + FromStr<Err: Debug>>(value: &T) -> T {
    value.to_string().parse().expect("its own text")
}

async fn settle<S: Store>(
    limiter: &PolicyLimiter<S>,
    reservations: &Reservations,
    outcome: &Outcome,
) -> Reply {
    let costs: Vec<(&str, u64)> =
        outcome.costs.iter().map(|(name, units)| (&**name, *units)).collect();
    let seen = match (outcome.cancel, outcome.status) {
        (true, _) => RequestOutcome::cancelled(),
        (false, Some(status)) => RequestOutcome::status(status),
        (false, None) => RequestOutcome::default(),
    };
    let seen = outcome.actual.map_or(seen, |units| seen.cost(units)).costs(&costs);
    match limiter.settle(reservations, &seen).await {
        Ok(it) => Reply::Settled(Sums::of([
            it.settled,
            it.not_open,
            it.open,
            it.returned,
            it.dropped,
            it.booked,
            it.unbooked,
        ])),
        Err(error) => Reply::Failed(error.to_string()),
    }
}

async fn ask<S: Store>(
    limiter: &PolicyLimiter<S>,
    question: &CaseRequest,
    request: &Request<'_>,
    holders: &mut Holders,
) -> Reply {
    let holder = question.holder.clone().unwrap_or_default();
    let answer = match question.action {
        Action::Check => limiter.reserve(request).await.map(|(verdict, reservations)| {
            if !reservations.is_empty() {
                holders.insert(holder, (Leases::default(), sent(&reservations)));
            }
            verdict
        }),
        Action::Settle => return settle(limiter, &holders[&holder].1, &question.outcome).await,
        Action::Peek => limiter.peek(request).await,
        Action::Refund => limiter.refund(request).await,
        Action::Reset => limiter.reset(request).await,
        Action::Acquire => limiter.acquire_leases(request).await.map(|granted| {
            let leases =
                if granted.leases.is_empty() { granted.leases } else { sent(&granted.leases) };
            holders.insert(holder, (leases, granted.reservations));
            granted.verdict
        }),
        Action::Release | Action::Renew => {
            let leases = &holders[&holder].0;
            let done = match question.action {
                Action::Release => limiter.release(leases).await.map(|()| true),
                _ => limiter.renew(leases).await,
            };
            return done.map_or_else(|error| Reply::Failed(error.to_string()), Reply::of_lease);
        }
    };
    reply(question, answer)
}

/// Runs a case by this limiter. Whatever is charged is peeked at before: both must say the same.
fn decide<S: Store>(
    case: &Case,
    limiter: &PolicyLimiter<S>,
    clock: &ManualClock,
    runtime: &tokio::runtime::Runtime,
) -> Result<(), String> {
    let mut holders = Holders::new();
    run_case(case, &mut |question: &CaseRequest| {
        clock.set(question.now);
        with_request(question, |request| {
            runtime.block_on(async {
                let peeked = limiter.peek(request).await.map(|answer| answer.is_allowed());
                let answer = ask(limiter, question, request, &mut holders).await;
                let is_charge = question.action.charges();
                match (&answer, peeked) {
                    (Reply::Decided { allowed, .. }, Ok(peeked))
                        if is_charge && peeked != *allowed =>
                    {
                        Reply::Failed(format!("peeked {peeked:?}, then {allowed:?}"))
                    }
                    _ => answer,
                }
            })
        })
    })
}

/// What a case says of rules, which no answer tells.
fn check_rule(case: &Case, seen: &ExpectedRule, policy: &Policy) -> Result<(), String> {
    let domain = policy.domain(case.domain.as_deref().unwrap_or("api"));
    let mut rules = domain.into_iter().flat_map(|domain| domain.rules());
    let rule = rules.find(|rule| rule.path() == seen.rule);
    let rule = rule.ok_or_else(|| format!("{}: no rule {}", case.name, seen.rule))?;
    let metric = match rule.metric_detail() {
        MetricDetail::Names => "names",
        MetricDetail::Value => "value",
        MetricDetail::Everything => "everything",
    };
    let metadata = rule.metadata().map(in_one_line).unwrap_or_default();
    let fits = |expected: &Option<String>, is: &str| expected.as_ref().is_none_or(|it| it == is);
    let counted = shadow_counts(rule);
    if fits(&seen.metric, metric)
        && fits(&seen.metadata, &metadata)
        && seen.shadow.is_none_or(|shadow| Some(shadow) == counted)
    {
        return Ok(());
    }
    Err(format!("{}: {seen:?}, but {metric}, {metadata}, {counted:?}", case.name))
}

fn shadow_counts(rule: &Rule) -> Option<[u64; 3]> {
    let agreement = rule.limits().first()?.shadow()?.agreement();
    Some([agreement.agree, agreement.would_deny, agreement.would_allow])
}

fn in_one_line(metadata: &Metadata) -> String {
    let joined = |texts: Vec<String>| texts.join(", ");
    match metadata {
        Metadata::Null => "null".into(),
        Metadata::Bool(flag) => flag.to_string(),
        Metadata::Number(text) | Metadata::Text(text) => (&**text).into(),
        Metadata::List(items) => format!("[{}]", joined(items.iter().map(in_one_line).collect())),
        Metadata::Map(pairs) => {
            let pair =
                |(key, value): &(Box<str>, Metadata)| format!("{key}: {}", in_one_line(value));
            format!("{{{}}}", joined(pairs.iter().map(pair).collect()))
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime")
}

fn in_memory(case: &Case, runtime: &tokio::runtime::Runtime) -> Result<(), String> {
    let Some(policy) = load(case)? else { return Ok(()) };
    let clock = ManualClock::at(case.start());
    let store = MemoryStore::new(1 << 20, Hashing::Fast).expect("a megabyte");
    let store = store.with_clock(Clock::from(clock.clone()));
    let limiter = PolicyLimiter::new(policy, store, Clock::from(clock.clone()));
    decide(case, &limiter, &clock, runtime)?;
    case.rules.iter().try_for_each(|seen| check_rule(case, seen, &limiter.policy()))
}

/// By the caller's clock, so that every case can be run, those in which time passes too.
fn in_redis(
    case: &Case,
    server: &RedisServer,
    store: RedisStore,
    runtime: &tokio::runtime::Runtime,
) -> Result<(), String> {
    let Some(policy) = load(case)? else { return Ok(()) };
    server.command(&["FLUSHDB"]);
    let clock = ManualClock::at(case.start());
    let limiter = PolicyLimiter::new(policy, store, Clock::from(clock.clone()));
    decide(case, &limiter, &clock, runtime)
}

fn report(failures: &[String], cases: usize) {
    assert!(failures.is_empty(), "{} of {cases} cases:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn every_case_holds_in_memory() {
    let (cases, runtime) = (all_cases(), runtime());
    assert!(cases.len() >= LEAST_CASES, "{} cases", cases.len());
    let failures: Vec<String> =
        cases.iter().filter_map(|case| in_memory(case, &runtime).err()).collect();
    report(&failures, cases.len());
}

#[test]
fn every_case_holds_in_redis() {
    let (cases, server, runtime) = (all_cases(), RedisServer::start(), runtime());
    let failures: Vec<String> = cases
        .iter()
        .filter(|case| !case.steps.is_empty())
        .filter_map(|case| {
            let store = runtime.block_on(store(&server.url()));
            in_redis(case, &server, store, &runtime).err()
        })
        .collect();
    report(&failures, cases.len());
}

/// With the scripts and the clock of production. Time passes as it likes, so a case may fall on the
/// boundary of a window: it does so seldom, and not three times.
#[test]
fn cases_in_which_time_stands_still_hold_by_the_servers_clock() {
    const ATTEMPTS: usize = 3;
    let (cases, server, runtime) = (all_cases(), RedisServer::start(), runtime());
    let still =
        |case: &&Case| !case.steps.is_empty() && case.at.is_none() && !case.moves_the_clock();
    let cases: Vec<&Case> = cases.iter().filter(still).collect();
    let store = |runtime: &tokio::runtime::Runtime| {
        let config = RedisConfig::new(&server.url()).expect("a valid address");
        let config = config.deadline(TIMEOUT).connect_timeout(TIMEOUT);
        runtime.block_on(RedisStore::connect(config)).expect("a fresh server")
    };
    let attempt = |case: &Case| {
        let Some(policy) = load(case)? else { return Ok(()) };
        server.command(&["FLUSHDB"]);
        let limiter = PolicyLimiter::new(policy, store(&runtime), Clock::default());
        let mut holders = Holders::new();
        run_case(case, &mut |question: &CaseRequest| {
            without_times(with_request(question, |request| {
                runtime.block_on(ask(&limiter, question, request, &mut holders))
            }))
        })
    };
    let failing = |case: &&Case| {
        let attempts = (0..ATTEMPTS).map(|_| attempt(case));
        attempts.take_while(Result::is_err).nth(ATTEMPTS - 1).and_then(Result::err)
    };
    let failures: Vec<String> = cases.iter().filter_map(failing).collect();
    assert!(cases.len() > 100, "{} cases", cases.len());
    report(&failures, cases.len());
}

/// A reply that tells nothing that depends on when within a window it was asked.
fn without_times(reply: Reply) -> Reply {
    let Reply::Decided { allowed, statuses: Some(statuses), .. } = reply else { return reply };
    let timeless = |status| Status { reset: None, retry_after: None, delay: None, ..status };
    let statuses = Some(statuses.into_iter().map(timeless).collect());
    Reply::Decided { allowed, statuses, retry_after: None }
}

#[test]
fn no_two_cases_have_one_name() {
    let cases = all_cases();
    let mut names: Vec<&str> = cases.iter().map(|case| &*case.name).collect();
    names.sort_unstable();
    let twice: Vec<&&str> =
        names.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| &pair[0]).collect();
    assert!(twice.is_empty(), "{twice:?}");
}
