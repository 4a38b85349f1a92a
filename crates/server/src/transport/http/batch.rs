//! `POST /v1/batch`: several requests at once.
//!
//! Each is decided as by `/v1/check`, and the answers have the same order. If one is invalid, none
//! is decided. All are sent at once, so that a remote store gets them in one round trip; if the
//! store gives no decision on one, the answer at its position says so.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use hyper::StatusCode;
use serde::Deserialize;

use super::Reply;
use super::check_request::{Action, CheckRequest, EXAMPLE};
use super::object::Object;
use super::reply::{self, Refused, json};
use super::unreadable::unreadable;
use crate::runtime::turns::in_turn;
use crate::service::RateLimitService;
use crate::transport::access::Caller;

/// The most requests of one batch.
const MAX_QUESTIONS: usize = 100;

/// The most requests that are started in one turn.
const PER_TURN: usize = 8;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Batch<'a> {
    #[serde(borrow)]
    questions: Vec<Object<CheckRequest<'a>>>,
}

/// Answers a batch.
pub(crate) async fn answer(service: &RateLimitService, caller: &Caller<'_>, body: &[u8]) -> Reply {
    let batch: Batch<'_> = match serde_json::from_slice(body) {
        Ok(Object(batch)) => batch,
        Err(error) => {
            let example = format!("{{\"questions\":[{EXAMPLE}]}}");
            return Refused::Malformed(unreadable(&error, body, &example)).reply();
        }
    };
    let questions = &batch.questions;
    if !(1..=MAX_QUESTIONS).contains(&questions.len()) {
        return Refused::Malformed(format!("a batch has 1 to {MAX_QUESTIONS} questions")).reply();
    }
    for (number, Object(check)) in questions.iter().enumerate() {
        if let Err(refused) = check.verify() {
            return refused.at_index(number).reply();
        }
    }
    if questions.iter().any(|Object(check)| check.returns_units())
        && let Err(denied) = caller.may_return_units()
    {
        return Refused::Denied(denied).reply();
    }
    let decide = |check| async move { document(service, check).await };
    let answers = together(questions.iter().map(|Object(check)| decide(check)).collect()).await;
    json(StatusCode::OK, format!("{{\"answers\":[{}]}}", answers.join(",")).into())
}

/// The answer document of one request, or its error.
async fn document(service: &RateLimitService, check: &CheckRequest<'_>) -> String {
    let document =
        check.decide(service, Action::Check).await.map(|granted| reply::document(&granted));
    document
        .unwrap_or_else(|refused| serde_json::json!({ "error": refused.to_string() }).to_string())
}

/// Runs the futures concurrently, started in order, [`PER_TURN`] in a turn; returns their outputs
/// in order.
async fn together<F: Future>(futures: Vec<F>) -> Vec<F::Output> {
    let mut under_way: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut values: Vec<Option<F::Output>> = under_way.iter().map(|_| None).collect();
    for (futures, values) in under_way.chunks_mut(PER_TURN).zip(values.chunks_mut(PER_TURN)) {
        let begin = poll_fn(|context| {
            for (future, value) in futures.iter_mut().zip(&mut *values) {
                if let Poll::Ready(ready) = future.as_mut().poll(context) {
                    *value = Some(ready);
                }
            }
            Poll::Ready(())
        });
        in_turn(begin).await;
    }
    poll_fn(|context| {
        for (future, value) in under_way.iter_mut().zip(&mut values) {
            if value.is_none()
                && let Poll::Ready(ready) = future.as_mut().poll(context)
            {
                *value = Some(ready);
            }
        }
        if values.iter().all(Option::is_some) { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    values.into_iter().flatten().collect()
}
