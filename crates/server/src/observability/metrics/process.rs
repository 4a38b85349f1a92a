//! The process as the system sees it, under the names that Prometheus' client libraries use.

use std::{fmt, fs};

use rustix::param::{clock_ticks_per_second, page_size};
use rustix::process::{Resource, getrlimit};

use super::page::Page;

/// Fields of `/proc/self/stat`.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Stat {
    cpu_seconds: f64,
    threads: u64,
    /// Seconds between the start of the system and that of the process.
    started_after: f64,
    virtual_bytes: u64,
    resident_bytes: u64,
}

/// Reads `/proc`. Where there is none, the metrics are left out.
pub(super) fn encode(page: &mut Page<'_, '_>) -> fmt::Result {
    let stat = fs::read_to_string("/proc/self/stat").ok();
    if let Some(stat) = stat.and_then(|text| Stat::of(&text)) {
        page.value("process_cpu_seconds_total", stat.cpu_seconds)?;
        page.value("process_threads", stat.threads)?;
        page.value("process_virtual_memory_bytes", stat.virtual_bytes)?;
        page.value("process_resident_memory_bytes", stat.resident_bytes)?;
        if let Some(booted) = fs::read_to_string("/proc/stat").ok().and_then(|it| booted_at(&it)) {
            page.value("process_start_time_seconds", booted + stat.started_after)?;
        }
    }
    if let Ok(open) = fs::read_dir("/proc/self/fd") {
        page.value("process_open_fds", open.count())?;
    }
    let max = getrlimit(Resource::Nofile).current;
    max.map_or(Ok(()), |max| page.value("process_max_fds", max))
}

impl Stat {
    fn of(text: &str) -> Option<Self> {
        // The name of the program comes first, in parentheses, and may hold any character.
        let (_, rest) = text.rsplit_once(')')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // Numbered as in proc(5), where the first one after the name is 3.
        let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
        let seconds = |ticks: u64| ticks as f64 / clock_ticks_per_second() as f64;
        Some(Self {
            cpu_seconds: seconds(field(14)? + field(15)?),
            threads: field(20)?,
            started_after: seconds(field(22)?),
            virtual_bytes: field(23)?,
            resident_bytes: field(24)?.saturating_mul(page_size() as u64),
        })
    }
}

/// When the system started, in seconds since 1970, by `/proc/stat`.
fn booted_at(text: &str) -> Option<f64> {
    text.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_system_is_read_as_proc_5_describes_it() {
        let text = "42 (a) b) S 1 42 42 0 -1 0 9 0 0 0 250 50 0 0 20 0 7 0 1000 4096000 3 9";
        let stat = Stat::of(text).unwrap();
        let ticks = clock_ticks_per_second() as f64;
        assert_eq!((stat.cpu_seconds, stat.started_after), (300.0 / ticks, 1_000.0 / ticks));
        let resident = 3 * page_size() as u64;
        let sizes = (stat.threads, stat.virtual_bytes, stat.resident_bytes);
        assert_eq!(sizes, (7, 4_096_000, resident));
        assert_eq!(Stat::of("42 (a) S 1"), None);
        assert_eq!(booted_at("cpu 1 2\nbtime 1700000000\n"), Some(1_700_000_000.0));
    }
}
