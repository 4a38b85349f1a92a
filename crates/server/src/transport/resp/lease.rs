//! `TG.RELEASE` and `TG.RENEW`: the places of a request in in-flight limits.

use std::str;

use tidegate::policy::{InvalidLeases, Leases};

use super::command::wrong_count;
use super::frame::Words;
use super::reply::Replies;
use crate::service::RateLimitService;

/// The action on the places of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseAction {
    /// Free them.
    Release,
    /// Keep them for another time to live.
    Renew,
}

/// `TG.RELEASE lease`, `TG.RENEW lease`: with the lease that `TG.ACQUIRE` returned. Replies with 1; a
/// renewal with 0 if the lease has expired.
pub(crate) async fn ask(
    service: &RateLimitService,
    action: LeaseAction,
    words: &Words<'_>,
    replies: &mut Replies<'_>,
) {
    if words.len() != 2 {
        let name = if action == LeaseAction::Release { "tg.release" } else { "tg.renew" };
        return wrong_count(name, replies);
    }
    let read =
        str::from_utf8(words.at(1)).map_err(|_| InvalidLeases).and_then(str::parse::<Leases>);
    let leases = match read {
        Ok(leases) => leases,
        Err(error) => return replies.error(format!("ERR {error}")),
    };
    let done = match action {
        LeaseAction::Release => service.release(&leases).await.map(|()| true),
        LeaseAction::Renew => service.renew(&leases).await,
    };
    match done {
        Ok(done) => replies.integer(i64::from(done)),
        Err(error) => replies.error(format!("ERR {error}")),
    }
}
