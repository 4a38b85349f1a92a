//! Every conformance case that the protocol can say, asked by a client of Redis.

use std::collections::HashMap;
use std::path::Path;

use tidegate_tests::conformance::{
    Action, Case, CaseRequest, DescriptorInput, Limiting, Outcome, Reply, Status, Sums, Wait,
    cases, run_case,
};

use super::*;

/// What can be asked has grown to this; it must not shrink unnoticed.
const LEAST_CASES: usize = 181;

/// Whether a command can say it: there are descriptors, with neither costs nor limits of their own.
fn can_be_said(question: &CaseRequest) -> bool {
    if question.action.is_about_leases() || question.action == Action::Settle {
        return true;
    }
    let is_plain = |side: &DescriptorInput| {
        side.hits.is_none() && side.limit.is_none() && !side.entries.is_empty()
    };
    !question.descriptors.is_empty() && question.descriptors.iter().all(is_plain)
}

fn command(question: &CaseRequest) -> redis::Cmd {
    let mut command = redis::cmd(match question.action {
        Action::Check => "TG.CHECK",
        Action::Peek => "TG.PEEK",
        Action::Refund => "TG.REFUND",
        Action::Reset => "TG.RESET",
        Action::Acquire => "TG.ACQUIRE",
        Action::Release | Action::Renew | Action::Settle => {
            unreachable!("they have no descriptors")
        }
    });
    command.arg(&question.domain);
    for (number, side) in question.descriptors.iter().enumerate() {
        if number > 0 {
            command.arg("AND");
        }
        for (key, value) in &side.entries {
            command.arg(key).arg(value);
        }
    }
    if question.hits > 0 {
        command.arg("COST").arg(question.hits);
    }
    command
}

/// The leases of requests, by the names that a case gives them.
type Holders = HashMap<String, String>;

fn settle(client: &mut redis::Connection, outcome: &Outcome, reservation: &str) -> Reply {
    let mut command = redis::cmd("TG.SETTLE");
    command.arg(reservation);
    if outcome.cancel {
        command.arg("CANCEL");
    }
    outcome.status.iter().for_each(|status| {
        command.arg("STATUS").arg(status);
    });
    outcome.actual.iter().for_each(|units| {
        command.arg("ACTUAL").arg(units);
    });
    for (name, units) in &outcome.costs {
        command.arg("FOR").arg(name).arg(units);
    }
    match command.query(client) {
        Ok(numbers) => Reply::Settled(Sums::of(numbers)),
        Err(error) => Reply::Failed(error.to_string()),
    }
}

fn ask(client: &mut redis::Connection, question: &CaseRequest, holders: &mut Holders) -> Reply {
    let holder = question.holder.clone().unwrap_or_default();
    if question.action.is_about_leases() {
        let release = question.action == Action::Release;
        let mut command = redis::cmd(if release { "TG.RELEASE" } else { "TG.RENEW" });
        let done: i64 = command.arg(&holders[&holder]).query(client).expect("a reply");
        return Reply::of_lease(done == 1);
    }
    if question.action == Action::Settle {
        return settle(client, &question.outcome, &holders[&holder]);
    }
    let answer: redis::RedisResult<Vec<redis::Value>> = command(question).query(client);
    let answer = match answer {
        Ok(answer) => answer,
        Err(error) => return Reply::Failed(error.to_string()),
    };
    type Numbers = (i64, i64, i64, i64, i64, String);
    let (numbers, held) = answer.split_at(6);
    let numbers = redis::Value::Array(numbers.to_vec());
    let (limited, limit, remaining, retry, reset, name): Numbers =
        redis::from_redis_value(numbers).expect("five numbers and a name");
    assert!(held.len() >= usize::from(question.action == Action::Acquire));
    // No case both holds places and settles.
    for text in held {
        let text: String = redis::from_redis_value(text.clone()).expect("a text");
        if !text.is_empty() {
            holders.insert(holder.clone(), text);
        }
    }
    let over = limited == 1;
    let wait = match u64::try_from(retry) {
        Ok(milliseconds) => Wait::Seconds(milliseconds.div_ceil(1_000)),
        Err(_) => Wait::Never,
    };
    // The status of a single descriptor is that of the request, unless it is a shadow.
    let is_told = question.descriptors.len() == 1 && remaining >= 0;
    let remaining = u64::try_from(remaining).ok();
    let capacity = u64::try_from(limit).ok();
    let status = Status {
        over,
        remaining,
        limit: capacity.map(|capacity| Limiting::Ours { name, capacity }),
        reset: u64::try_from(reset).ok().map(|milliseconds| milliseconds.div_ceil(1_000)),
        ..Status::default()
    };
    let statuses = is_told.then(|| vec![status]);
    Reply::Decided { allowed: !over, statuses, retry_after: over.then_some(wait) }
}

fn run(case: &Case) -> Result<bool, String> {
    let files: Vec<(&str, &str)> =
        case.files.iter().map(|(name, text)| (&**name, &**text)).collect();
    let loaded = Policy::load_at(&files, case.merging(), case.start());
    let Some(policy) = loaded.policy else { return Ok(false) };
    let transport = Transport::open();
    transport.service.replace(policy);
    let mut client = transport.client();
    let mut is_asked = false;
    let mut unsayable = false;
    let mut holders = Holders::new();
    let done = run_case(case, &mut |question| {
        unsayable |= !can_be_said(question);
        if unsayable {
            return Reply::Failed("it cannot be said".into());
        }
        is_asked = true;
        transport.clock.set(question.now);
        ask(&mut client, question, &mut holders)
    });
    if unsayable { Ok(false) } else { done.map(|()| is_asked) }
}

#[test]
fn every_case_holds_over_this_transport() {
    let cases = cases(&Path::new(env!("CARGO_MANIFEST_DIR")).join("conformance"));
    let results: Vec<Result<bool, String>> = cases.iter().map(run).collect();
    let failures: Vec<&String> =
        results.iter().filter_map(|result| result.as_ref().err()).collect();
    assert!(failures.is_empty(), "{} cases:\n{failures:#?}", failures.len());
    let asked = results.iter().filter(|result| **result == Ok(true)).count();
    assert!(asked >= LEAST_CASES, "only {asked} of {} cases", cases.len());
}
