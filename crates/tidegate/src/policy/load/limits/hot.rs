//! Fields for hot keys: `shards`, and the `local` pre-limit of each node.

use std::num::NonZeroU16;
use std::sync::Arc;

use tidegate_core::{AlgorithmName, Limit, Rate};

use crate::key::Scope;
use crate::policy::document::Node;
use crate::policy::document::finding::Findings;
use crate::policy::language;
use crate::policy::load::Trail;
use crate::policy::load::advice::capacity;
use crate::policy::load::fields::Fields;
use crate::policy::load::limits::Defaults;
use crate::policy::load::limits::numbers::{self, Numbers};
use crate::policy::model::allowance::Allowance;
use crate::policy::model::limit::{Form, PolicyLimit};
use crate::policy::model::rule::{Charging, Rule};
use crate::store::{MAX_TOGETHER, Tier};

/// Approximate decisions per second that one core of Redis makes on one key.
const WORTH_DIVIDING_PER_SECOND: u128 = 50_000;
const MICROS: u128 = 1_000_000;

/// `shards: 8`.
pub(in crate::policy::load) fn shards(
    numbers: &Numbers,
    choices: &Defaults,
    fields: &Fields<'_>,
    findings: &mut Findings,
) -> Option<NonZeroU16> {
    let node = fields.node("shards")?;
    let shards = NonZeroU16::new(u16::try_from(fields.number("shards", findings)?).ok()?)?;
    let limit = numbers.limit()?;
    if let Some(why) = refusal(&limit, numbers, choices, shards) {
        findings.push(node.error(why).at(fields.at("shards")));
        return None;
    }
    let Rate { count, per } = numbers.rate;
    let (count, per) = (u128::from(count), u128::from(per.as_micros()));
    if count * MICROS < WORTH_DIVIDING_PER_SECOND * per {
        let why = "shards help above about 50,000 decisions per second on one key, and this limit \
                   admits fewer: `tier: leased` calls Redis less often and loses fewer units";
        findings.push(node.warning(why).at(fields.at("shards")));
    }
    Some(shards)
}

/// Why a limit cannot be sharded.
fn refusal(
    limit: &Limit,
    numbers: &Numbers,
    choices: &Defaults,
    shards: NonZeroU16,
) -> Option<String> {
    if numbers.algorithm == AlgorithmName::LeakyBucket {
        return Some("a leaky bucket spaces requests, which separate shards cannot do".into());
    }
    if choices.tier == Tier::Leased {
        return Some("a leased limit rarely calls the store and has no shards".into());
    }
    let (units, cost) = (capacity(limit), choices.cost.unwrap_or(1).max(1));
    let least = units / u64::from(shards.get());
    (least < cost).then(|| {
        format!(
            "with {units} units, some of {shards} shards have only {least}, and a request costs \
             {cost}"
        )
    })
}

/// Reports plans and overrides whose shards could not admit a single request.
pub(in crate::policy::load) fn check_shards(
    limit: &PolicyLimit,
    fields: &Fields<'_>,
    findings: &mut Findings,
) {
    let (Some(shards), Some(node)) = (limit.shards, fields.node("shards")) else { return };
    let others = limit.plans.values().chain(limit.overrides.values().map(|it| &it.allowance));
    let units = others.filter_map(|it| match it {
        Allowance::Limited { limit, .. } => Some(capacity(limit)),
        Allowance::Calendar(quota) => Some(quota.count),
        Allowance::Unlimited => None,
    });
    let (of, cost) = (u64::from(shards.get()), limit.cost);
    // A limit with fewer units than shards is not sharded.
    if let Some(units) = units.filter(|units| *units >= of).find(|units| units / of < cost) {
        let least = units / of;
        let why = format!(
            "with the {units} units of a plan or an override, some of {shards} shards have only \
             {least}, and a request costs {cost}"
        );
        findings.push(node.error(why).at(fields.at("shards")));
    }
}

/// `local: {rate: 200/s, burst: 50}`.
pub(in crate::policy::load) fn local(
    id: &str,
    choices: &Defaults,
    limit: &Fields<'_>,
    findings: &mut Findings,
) -> Option<(Limit, Scope)> {
    let node = limit.node("local")?;
    let path = limit.at("local");
    let fields = Fields::of(node, &path, &language::LOCAL, findings)?;
    let Some(numbers) = numbers::read(&fields, Some(AlgorithmName::TokenBucket), findings) else {
        if fields.first(&["rate", "requests", "per"]).is_none() {
            findings.push(node.error("expected a `rate`").at(path));
        }
        return None;
    };
    let id: Arc<str> = format!("{id}~local").into();
    let Allowance::Limited { limit: bucket, scope } = numbers.build(&id, &fields, findings)? else {
        return None;
    };
    let (units, cost) = (capacity(&bucket), choices.cost.unwrap_or(1));
    if cost > units {
        let why = format!(
            "a request costs {cost}, more than the burst of {units}: every request is denied"
        );
        findings.push(node.error(why).at(path));
        return None;
    }
    Some((bucket, scope))
}

/// Checks that local pre-limits are charged together with the limits behind them.
pub(in crate::policy::load) fn check_local(
    limits: &[PolicyLimit],
    is_quota: bool,
    trail: &Trail,
    (node, path): (&Node, &str),
    findings: &mut Findings,
) {
    let is_alone = |limit: &PolicyLimit| match trail.charging {
        Charging::Together => false,
        Charging::Each => true,
        Charging::AsWritten => limit.form() != Form::Native,
    };
    let mut with_local = limits.iter().filter(|limit| limit.local.is_some());
    let why = match with_local.clone().count() {
        0 => return,
        _ if is_quota => {
            "a quota has no `local`: an exhausted quota alone denies no request".into()
        }
        _ if with_local.any(is_alone) => {
            "`local` needs limits that are charged together, not separately".into()
        }
        count if count + limits.len() > MAX_TOGETHER => {
            format!("a descriptor has at most {MAX_TOGETHER} limits, those of `local` included")
        }
        _ => return,
    };
    findings.push(node.error(why).at(path));
}

/// Checks `charge`, which applies to the limits of all files of the domain.
pub(in crate::policy::load) fn check_charge(
    rules: &[Rule],
    charging: Charging,
    node: &Node,
    findings: &mut Findings,
) {
    let mut limits = rules.iter().flat_map(|rule| &rule.limits);
    if charging == Charging::Each
        && let Some(limit) = limits.find(|limit| limit.local.is_some())
    {
        let why = format!(
            "`{}` of another file has a `local`, which needs limits that are charged together, not \
             separately",
            limit.id()
        );
        findings.push(node.error(why).at("charge"));
    }
}

#[cfg(test)]
#[path = "hot_tests.rs"]
mod tests;
