//! One measured line, as the JSON has it.

use serde::Serialize;

use super::cell::Transport;
use crate::row::median;

#[derive(Clone, Debug, Serialize)]
pub struct Row {
    #[serde(rename = "impl")]
    pub name: &'static str,
    pub transport: Transport,
    pub pipeline: Option<usize>,
    pub conns: Option<usize>,
    /// Processor seconds of the server per million decisions.
    pub cpu_s_per_m: f64,
    /// The same for the Redis behind it.
    pub redis_cpu_s_per_m: Option<f64>,
    pub rps: f64,
    pub p50_us: f64,
    pub p99_us: f64,
    /// Resident memory; for the transport `memory`, the growth by a million keys.
    pub rss_mib: f64,
}

impl Row {
    pub fn empty(name: &'static str, transport: Transport) -> Self {
        let nothing = f64::NAN;
        Self {
            name,
            transport,
            pipeline: None,
            conns: None,
            cpu_s_per_m: nothing,
            redis_cpu_s_per_m: None,
            rps: nothing,
            p50_us: nothing,
            p99_us: nothing,
            rss_mib: nothing,
        }
    }

    /// The processor time including the Redis behind it, if any.
    pub fn whole_cpu(&self) -> f64 {
        self.cpu_s_per_m + self.redis_cpu_s_per_m.unwrap_or(0.0)
    }
}

/// The rounds of one cell: the median of each figure, and how far the rounds lie apart.
#[derive(Debug)]
pub struct Rounds {
    pub row: Row,
    pub cpu: (f64, f64),
}

impl Rounds {
    pub fn of(samples: &[Row]) -> Self {
        let middle = |field: fn(&Row) -> f64| median(samples.iter().map(field).collect());
        let cpu = || samples.iter().map(|row| row.cpu_s_per_m);
        let redis: Vec<f64> = samples.iter().filter_map(|row| row.redis_cpu_s_per_m).collect();
        Self {
            row: Row {
                cpu_s_per_m: middle(|row| row.cpu_s_per_m),
                redis_cpu_s_per_m: (!redis.is_empty()).then(|| median(redis)),
                rps: middle(|row| row.rps),
                p50_us: middle(|row| row.p50_us),
                p99_us: middle(|row| row.p99_us),
                rss_mib: middle(|row| row.rss_mib),
                ..samples[0].clone()
            },
            cpu: (cpu().fold(f64::MAX, f64::min), cpu().fold(f64::MIN, f64::max)),
        }
    }
}
