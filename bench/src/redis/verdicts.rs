//! The targets of the Redis store, each a ratio within one run.

use super::contender::{MANY, Mode, Name};
use super::row::{Row, Run};
use crate::targets::{Bound, Target};

pub fn evaluate(run: &Run) -> Vec<Target> {
    use Bound::{AtLeast, AtMost};
    let ours = |mode| run.find(Name::Tidegate, mode, MANY);
    let over = |mode, field: fn(&Row) -> f64| {
        Some(field(ours(mode)?) / field(run.find(Name::GcraScript, Mode::Single, MANY)?))
    };
    let redis = |mode| over(mode, |row| row.redis_cpu_s_per_m);
    let client = |mode| over(mode, |row| row.client_cpu_s_per_m);
    let commands = |mode| ours(mode).map(|row| row.commands_per_decision);
    let bytes = |mode| Some(ours(mode)?.bytes_per_key? / run.cell_bytes()?);
    let target = Target::new;
    vec![
        target("Redis CPU, single / script", AtMost(1.1), redis(Mode::Single)),
        target("Redis CPU, single, fractional interval / script", AtMost(1.25), {
            redis(Mode::FractionalSingle)
        }),
        target("Redis CPU, batched / script called singly", AtMost(0.5), redis(Mode::Batched)),
        target("hot key, decisions per command", AtLeast(5.0), {
            commands(Mode::Hot).map(|commands| 1.0 / commands)
        }),
        target("three limits of one tenant, commands per decision", AtMost(1.0), {
            commands(Mode::ThreeLimits)
        }),
        target("client CPU, batched / bare EVALSHA loop", AtMost(1.25), client(Mode::Batched)),
        target("client CPU, single / bare EVALSHA loop", AtMost(1.25), client(Mode::Single)),
        target("bytes per key, bucket / redis-cell", AtMost(1.0), bytes(Mode::Batched)),
        target("bytes per key, bucket with a fractional interval / redis-cell", AtMost(1.0), {
            bytes(Mode::FractionalBatched)
        }),
    ]
}
