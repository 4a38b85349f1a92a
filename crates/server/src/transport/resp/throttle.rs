//! Limits that come with the command: as redis-cell has them, and as throttlecrab has them.
//!
//! What either does by mistake is not repeated: a negative quantity gives back at most what was taken,
//! waits are rounded up to the next second, however little is missing, and no number panics.

use tidegate::{Decision, Op, Span, Timestamp};

use super::command::{Numbers, Session, natural, wrong_count};
use super::frame::{Words, integer};
use super::reply::Replies;
use crate::gate::Gate;

/// `CL.THROTTLE key max_burst count period [quantity]`, as in redis-cell: whether limited, the limit,
/// what remains, seconds until a retry helps (-1 if it need not, or never will) and until all is back.
pub(crate) fn cell(
    session: &mut Session,
    now: Timestamp,
    words: &Words<'_>,
    replies: &mut Replies<'_>,
) {
    match ask_cell(session, now, words) {
        Ok(decision) => {
            replies.array(5);
            replies.integer(i64::from(!decision.is_allowed()));
            replies.integer(count(decision.limit));
            replies.integer(count(decision.remaining));
            replies.integer(decision.retry_after().map_or(-1, seconds));
            replies.integer(seconds(decision.reset_after));
        }
        Err(text) => replies.error(text),
    }
}

fn ask_cell(session: &mut Session, now: Timestamp, words: &Words<'_>) -> Result<Decision, String> {
    let cell = |text: &str| format!("Cell error: Store error: {text}");
    if !(5..=6).contains(&words.len()) {
        let usage = "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
        return Err(cell(usage));
    }
    let number = |at: usize| {
        let word = words.at(at);
        integer(word).ok_or_else(|| {
            let shown = &word[..word.len().min(64)];
            cell(&format!("Couldn't parse as integer: {}", String::from_utf8_lossy(shown)))
        })
    };
    let (burst, rate, period) = (number(2)?, number(3)?, number(4)?);
    let quantity = if words.len() == 6 { number(5)? } else { 1 };
    if rate == 0 || period == 0 {
        return Err(cell("Zero rates are not supported"));
    }
    let positive = |name: &str, number: i64| {
        u64::try_from(number).map_err(|_| format!("ERR {name} must not be negative"))
    };
    let capacity = positive("max_burst", burst)?.saturating_add(1);
    let (rate, period) = (positive("count", rate)?, positive("period", period)?);
    let limit = session.limit(Numbers { capacity, count: rate, period });
    let limit = limit.map_err(|wrong| format!("ERR {wrong}"))?;
    let units = quantity.unsigned_abs();
    let op = if quantity < 0 { Op::Return(units) } else { Op::Take(units) };
    Ok(session.gate.charge(now, words.at(1), &limit, op))
}

/// `THROTTLE key max_burst count period [quantity]`, as in throttlecrab: whether allowed, the limit,
/// what remains, seconds until all is back, and until a retry helps (0 if it need not, -1 if it never
/// will). Here the burst is the limit itself, not one less.
pub(crate) fn crab(
    session: &mut Session,
    now: Timestamp,
    words: &Words<'_>,
    replies: &mut Replies<'_>,
) {
    if !(5..=6).contains(&words.len()) {
        return wrong_count("throttle", replies);
    }
    match ask_crab(session, now, words) {
        Ok(decision) => {
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

fn ask_crab(session: &mut Session, now: Timestamp, words: &Words<'_>) -> Result<Decision, String> {
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
    let limit = session.limit(Numbers { capacity, count: rate, period });
    let limit = limit.map_err(|wrong| format!("ERR {wrong}"))?;
    Ok(session.gate.charge(now, words.at(1), &limit, Op::Take(units)))
}

/// `DEL key …`: lets keys of limits that come with the command start afresh, and tells how many of
/// them owed something.
pub(crate) fn forget(gate: &Gate, now: Timestamp, words: &Words<'_>, replies: &mut Replies<'_>) {
    if words.len() < 2 {
        return wrong_count("del", replies);
    }
    let owed = words.from(1).filter(|key| gate.forget(now, key)).count();
    replies.integer(owed as i64);
}

/// What a client may read as a number with a sign.
pub(crate) fn count(units: u64) -> i64 {
    i64::try_from(units).unwrap_or(i64::MAX)
}

/// Rounded up: whoever waits so long has waited long enough.
fn seconds(span: Span) -> i64 {
    count(span.as_micros().div_ceil(1_000_000))
}

/// As [`seconds`].
pub(crate) fn milliseconds(span: Span) -> i64 {
    count(span.as_micros().div_ceil(1_000))
}

/// The word as what a request costs.
pub(crate) fn cost(word: &[u8]) -> Result<u64, &'static str> {
    natural(word).ok_or("ERR COST must be a number that is not negative")
}
