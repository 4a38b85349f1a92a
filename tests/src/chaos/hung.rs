//! F2: the store accepts connections and does not answer.

use std::time::Duration;

use super::course::{Course, Plan};
use super::figure::Figure;
use super::pace::Pace;
use crate::servers::RedisServer;

/// F2: the process is stopped.
pub(crate) fn stopped(pace: &Pace) -> Vec<Figure> {
    let server = RedisServer::start();
    let plan = Plan { outage: pace.hang, ..Plan::of(pace) };
    let course = Course::run(plan, &server, RedisServer::pause, RedisServer::resume);
    let mut figures = vec![course.waits(plan), course.growth()];
    figures.extend(course.answers());
    figures.extend(course.recovery());
    figures
}

/// F2: `CLIENT PAUSE`, which holds back every command.
pub(crate) fn client_pause(pace: &Pace) -> Vec<Figure> {
    let server = RedisServer::start();
    // The pause ends after this time even if the test does not end it.
    let longest = (pace.outage + Duration::from_secs(60)).as_millis().to_string();
    let plan = Plan::of(pace);
    let course = Course::run(
        plan,
        &server,
        |server| {
            server.command(&["CLIENT", "PAUSE", &longest, "ALL"]);
        },
        |server| {
            // A pause may delay the command that ends it; a restart is not delayed.
            if server.try_command(&["CLIENT", "UNPAUSE"]).is_err() {
                server.restart();
            }
        },
    );
    let mut figures = vec![course.waits(plan)];
    figures.extend(course.answers());
    figures.extend(course.recovery());
    figures
}
