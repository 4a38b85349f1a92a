//! F1, F13: the store crashes under load and is restarted.

use std::time::Duration;

use super::course::{Course, Plan};
use super::figure::Figure;
use super::pace::Pace;
use crate::servers::RedisServer;

/// F1: killed, like a crash.
pub(crate) fn killed(pace: &Pace) -> Vec<Figure> {
    let server = RedisServer::start();
    let course = Course::run(Plan::of(pace), &server, RedisServer::kill, RedisServer::restart);
    let trip =
        Figure::time("time until requests stop waiting", course.trip(), Duration::from_millis(50));
    let mut figures = vec![trip];
    figures.extend(course.answers());
    figures.extend(course.recovery());
    figures
}

/// F13: all clients return at once.
pub(crate) fn herd(pace: &Pace) -> Vec<Figure> {
    let server = RedisServer::start();
    let plan = Plan { rate: pace.herd, ..Plan::of(pace) };
    Course::run(plan, &server, RedisServer::kill, RedisServer::restart).recovery()
}
