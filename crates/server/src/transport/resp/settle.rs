//! `TG.SETTLE`: limits of a request that are settled after its response.

use std::str;

use tidegate::policy::{InvalidReservations, RequestOutcome, Reservations, Settled};
use tidegate::store::MAX_TOGETHER;

use super::command::{natural, wrong_count};
use super::frame::Words;
use super::reply::Replies;
use super::throttle::count;
use crate::service::RateLimitService;

/// `TG.SETTLE reservation [STATUS code] [ACTUAL units] [FOR limit units …]`, or `TG.SETTLE reservation CANCEL`:
/// with the reservation that `TG.CHECK` or `TG.ACQUIRE` returned. `ACTUAL` is the cost under all limits with
/// `actual`, `FOR` that under the limit of this name. Returns the number of limits settled, of those that were
/// not open, and of those still open; then the units returned, dropped, booked and unbooked.
pub(crate) async fn ask(service: &RateLimitService, words: &Words<'_>, replies: &mut Replies<'_>) {
    if words.len() < 3 {
        return wrong_count("tg.settle", replies);
    }
    match settle(service, words).await {
        Ok(settled) => write_reply(&settled, replies),
        Err(text) => replies.error(text),
    }
}

async fn settle(service: &RateLimitService, words: &Words<'_>) -> Result<Settled, String> {
    let read = str::from_utf8(words.at(1)).map_err(|_| InvalidReservations).and_then(str::parse);
    let reservations: Reservations = read.map_err(|error| format!("ERR {error}"))?;
    let (mut status, mut actual, mut costs) = (None, None, Vec::new());
    let mut at = 2;
    let is_cancelled = words.len() == 3 && words.at(2).eq_ignore_ascii_case(b"CANCEL");
    while at < words.len() && !is_cancelled {
        let option = words.at(at).to_ascii_uppercase();
        match (&*option, words.len() - at) {
            (b"STATUS", 2..) => {
                let code = natural(words.at(at + 1)).and_then(|code| u16::try_from(code).ok());
                let code = code.filter(|code| matches!(code, 0..=16 | 100..=599));
                status = Some(code.ok_or(STATUS)?);
                at += 2;
            }
            (b"ACTUAL", 2..) => {
                actual = Some(natural(words.at(at + 1)).ok_or(UNITS)?);
                at += 2;
            }
            (b"FOR", 3..) if costs.len() < MAX_TOGETHER => {
                let name =
                    str::from_utf8(words.at(at + 1)).map_err(|_| "ERR words must be UTF-8")?;
                costs.push((name, natural(words.at(at + 2)).ok_or(UNITS)?));
                at += 3;
            }
            _ => return Err(SYNTAX.into()),
        }
    }
    let outcome = match (is_cancelled, status) {
        (true, _) => RequestOutcome::cancelled(),
        (false, Some(status)) => RequestOutcome::status(status),
        (false, None) => RequestOutcome::default(),
    };
    let outcome = actual.map_or(outcome, |units| outcome.cost(units)).costs(&costs);
    service.settle(&reservations, &outcome).await.map_err(|error| format!("ERR {error}"))
}

const UNITS: &str = "ERR units must be a whole number, 0 or more";
const STATUS: &str = "ERR status must be from 100 to 599, or the code of a gRPC call, from 0 to 16";
const SYNTAX: &str =
    "ERR syntax error: expected CANCEL, or STATUS code, ACTUAL units, FOR limit units";

fn write_reply(settled: &Settled, replies: &mut Replies<'_>) {
    let Settled { settled, not_open, open, returned, dropped, booked, unbooked, .. } = *settled;
    replies.array(7);
    for number in [settled, not_open, open, returned, dropped, booked, unbooked] {
        replies.integer(count(number));
    }
}
