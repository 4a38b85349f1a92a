//! Commands that bring their limit, compatible with redis-cell and throttlecrab.
//!
//! Their bugs are not repeated: a negative quantity returns at most the units that were taken,
//! waits are rounded up to the next second, and no number panics.

use tidegate::policy::InlineLimit;
use tidegate::store::{MAX_TOGETHER, StoreError};
use tidegate::verdict::whole_seconds;
use tidegate::{AlgorithmName, Decision, Limit, Op, Rate, Span, Verdict};

use super::command::{natural, wrong_count};
use super::decision::CommandContext;
use super::frame::{Words, integer};
use super::reply::Replies;

/// The numbers of a bucket in a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Numbers {
    capacity: u64,
    count: u64,
    /// In seconds.
    period: u64,
}

impl Numbers {
    fn limit(self) -> Result<Limit, String> {
        let period = self.period.checked_mul(1_000_000).map(Span::from_micros);
        let period = period.ok_or("ERR period must be between 1us and 10 years")?;
        let bucket = Limit::token_bucket(Rate::new(self.count, period)).burst(self.capacity);
        bucket.build().map_err(|wrong| format!("ERR {wrong}"))
    }
}

/// The last limit of a connection, cached because most clients send the same numbers each time.
#[derive(Debug, Default)]
pub(crate) struct Recent(Option<(Numbers, Limit)>);

impl Recent {
    /// The limit of these numbers, or their error.
    fn limit(&mut self, numbers: Numbers) -> Result<Limit, String> {
        if let Some((recent, limit)) = &self.0
            && *recent == numbers
        {
            return Ok(*limit);
        }
        let limit = numbers.limit()?;
        self.0 = Some((numbers, limit));
        Ok(limit)
    }
}

/// The error for a failed store, in Redis' form.
fn failed(error: &StoreError) -> String {
    format!("ERR {error}")
}

/// `CL.THROTTLE key max_burst count period [quantity]`, as in redis-cell: returns whether limited,
/// the limit, the remaining units, seconds until a retry can succeed (-1 if allowed, or if it never
/// will) and until the full reset.
pub(crate) async fn cell(
    context: &mut CommandContext<'_>,
    words: &Words<'_>,
    replies: &mut Replies<'_>,
) {
    match ask_cell(context, words).await {
        Ok(verdict) => tell_cell(verdict.decision(), replies),
        Err(text) => replies.error(text),
    }
}

fn tell_cell(decision: &Decision, replies: &mut Replies<'_>) {
    replies.array(5);
    replies.integer(i64::from(!decision.is_allowed()));
    replies.integer(count(decision.limit));
    replies.integer(count(decision.remaining));
    replies.integer(decision.retry_after().map_or(-1, seconds));
    replies.integer(seconds(decision.reset_after));
}

async fn ask_cell(context: &mut CommandContext<'_>, words: &Words<'_>) -> Result<Verdict, String> {
    if !(5..=6).contains(&words.len()) {
        let usage = "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
        return Err(cell_error(usage));
    }
    let quantity = if words.len() == 6 { Some(words.at(5)) } else { None };
    let (numbers, op) = read_cell([words.at(2), words.at(3), words.at(4)], quantity)?;
    let limit = context.recent.limit(numbers)?;
    let given = inline(words.at(1), &limit, op);
    context.service.check_inline(context.now, &given).await.map_err(|error| failed(&error))
}

/// redis-cell's own errors have no code in front.
fn cell_error(text: &str) -> String {
    format!("Cell error: Store error: {text}")
}

/// Parses burst, rate and period, and the operation.
fn read_cell(numbers: [&[u8]; 3], quantity: Option<&[u8]>) -> Result<(Numbers, Op), String> {
    let number = |word: &[u8]| {
        integer(word).ok_or_else(|| {
            let shown = String::from_utf8_lossy(&word[..word.len().min(64)]);
            cell_error(&format!("Couldn't parse as integer: {shown}"))
        })
    };
    let [burst, rate, period] = numbers;
    let (burst, rate, period) = (number(burst)?, number(rate)?, number(period)?);
    let quantity = quantity.map_or(Ok(1), number)?;
    if rate == 0 || period == 0 {
        return Err(cell_error("Zero rates are not supported"));
    }
    let positive = |name: &str, number: i64| {
        u64::try_from(number).map_err(|_| format!("ERR {name} must not be negative"))
    };
    let capacity = positive("max_burst", burst)?.saturating_add(1);
    let (rate, period) = (positive("count", rate)?, positive("period", period)?);
    let units = quantity.unsigned_abs();
    let op = if quantity < 0 { Op::Return(units) } else { Op::Take(units) };
    Ok((Numbers { capacity, count: rate, period }, op))
}

/// `TG.THROTTLE key max_burst count period quantity [key max_burst count period quantity …]`:
/// several limits, charged together or not at all. Returns whether limited, and then the reply of
/// `CL.THROTTLE` for each.
pub(crate) async fn several(
    context: &mut CommandContext<'_>,
    words: &Words<'_>,
    replies: &mut Replies<'_>,
) {
    if words.len() < 6 || !(words.len() - 1).is_multiple_of(5) {
        return wrong_count("tg.throttle", replies);
    }
    match ask_several(context, words).await {
        Ok(verdict) => {
            replies.array(verdict.parts().len() + 1);
            replies.integer(i64::from(verdict.is_denied()));
            for decision in verdict.parts().filter_map(|part| part.decision) {
                tell_cell(decision, replies);
            }
        }
        Err(text) => replies.error(text),
    }
}

async fn ask_several(
    context: &mut CommandContext<'_>,
    words: &Words<'_>,
) -> Result<Verdict, String> {
    if words.len() > 5 * MAX_TOGETHER {
        return Err(format!("ERR at most {MAX_TOGETHER} limits are decided together"));
    }
    let mut limits = Vec::with_capacity(MAX_TOGETHER);
    for at in (1..words.len()).step_by(5) {
        let numbers = [words.at(at + 1), words.at(at + 2), words.at(at + 3)];
        let (numbers, op) = read_cell(numbers, Some(words.at(at + 4)))?;
        if !matches!(op, Op::Take(_)) {
            return Err("ERR limits that are charged together cannot be refunded".into());
        }
        limits.push((words.at(at), numbers.limit()?, op));
    }
    let given: Vec<InlineLimit<'_>> =
        limits.iter().map(|(key, limit, op)| inline(key, limit, *op)).collect();
    context.service.report_inline(context.now, &given).await.map_err(|error| failed(&error))
}

/// `THROTTLE key max_burst count period [quantity]`, as in throttlecrab: returns whether allowed,
/// the limit, the remaining units, seconds until the full reset, and until a retry can succeed (0
/// if allowed, -1 if it never will). Here the burst is the limit itself, not one less.
pub(crate) async fn crab(
    context: &mut CommandContext<'_>,
    words: &Words<'_>,
    replies: &mut Replies<'_>,
) {
    if !(5..=6).contains(&words.len()) {
        return wrong_count("throttle", replies);
    }
    match ask_crab(context, words).await {
        Ok(verdict) => {
            let decision = verdict.decision();
            replies.array(5);
            replies.integer(i64::from(decision.is_allowed()));
            replies.integer(count(decision.limit));
            replies.integer(count(decision.remaining));
            replies.integer(seconds(decision.reset_after));
            let wait = if decision.is_never() { -1 } else { 0 };
            replies.integer(decision.retry_after().map_or(wait, seconds));
        }
        Err(text) => replies.error(text),
    }
}

async fn ask_crab(context: &mut CommandContext<'_>, words: &Words<'_>) -> Result<Verdict, String> {
    let number =
        |at: usize, name: &str| integer(words.at(at)).ok_or_else(|| format!("ERR invalid {name}"));
    let burst = number(2, "max_burst")?;
    let (rate, period) = (number(3, "count_per_period")?, number(4, "period")?);
    let quantity = if words.len() == 6 { number(5, "quantity")? } else { 1 };
    let Ok(units) = u64::try_from(quantity) else {
        return Err(format!("ERR negative quantity: {quantity}"));
    };
    let positive = |number: i64| u64::try_from(number).ok().filter(|number| *number > 0);
    let numbers = positive(burst).zip(positive(rate)).zip(positive(period));
    let Some(((capacity, rate), period)) = numbers else {
        return Err("ERR invalid rate limit parameters".into());
    };
    let limit = context.recent.limit(Numbers { capacity, count: rate, period })?;
    let given = inline(words.at(1), &limit, Op::Take(units));
    context.service.check_inline(context.now, &given).await.map_err(|error| failed(&error))
}

/// `DEL key …`: resets keys of limits that come with the command, and returns how many of them had
/// a debt.
pub(crate) async fn forget(
    context: &mut CommandContext<'_>,
    words: &Words<'_>,
    replies: &mut Replies<'_>,
) {
    if words.len() < 2 {
        return wrong_count("del", replies);
    }
    let mut owed = 0;
    for key in words.from(1) {
        match context.service.forget(context.now, key).await {
            Ok(was_owed) => owed += i64::from(was_owed),
            Err(error) => return replies.error(failed(&error)),
        }
    }
    replies.integer(owed);
}

/// Converts to the signed number of a reply.
pub(crate) fn count(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}

/// Rounds up, so that a retry after the wait is not too early.
fn seconds(span: Span) -> i64 {
    count(whole_seconds(span))
}

/// Like [`seconds`].
const fn inline<'a>(key: &'a [u8], limit: &'a Limit, op: Op) -> InlineLimit<'a> {
    InlineLimit { key, algorithm: AlgorithmName::TokenBucket, limit, op }
}

/// Parses the cost of a request.
pub(crate) fn cost(word: &[u8]) -> Result<u64, &'static str> {
    natural(word).ok_or("ERR COST must be a non-negative number")
}
