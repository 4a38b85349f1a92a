//! Shares of the CPU: a bounded one for the hostile client, and priorities for the processes that are measured.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The folder of control groups, in version 1.
const GROUPS: &str = "/sys/fs/cgroup/cpu";

/// Microseconds of CPU time in each period: a fifth of a core. The period is short, so that the
/// hostile client never pauses for long.
const QUOTA: &str = "1000";
const PERIOD: &str = "5000";

/// The smallest weight. A hostile client stands for another machine, so it takes CPU time from the
/// daemon only by its requests.
const WEIGHT: &str = "2";

/// The way in which a process is limited to its CPU share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    /// Not bounded yet.
    None,
    /// A fifth of a core, by a control group.
    Group,
    /// The lowest priority, if no group can be created.
    Priority,
}

/// Ends the bound when dropped.
#[derive(Debug)]
pub(super) struct Share(Option<PathBuf>);

impl Share {
    pub(super) const fn bound(&self) -> Bound {
        if self.0.is_some() { Bound::Group } else { Bound::Priority }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if let Some(group) = &self.0 {
            // Empty once the process has ended.
            let _ = fs::remove_dir(group);
        }
    }
}

/// Limits a process to its share.
pub(super) fn limit(process: &Child) -> Share {
    let pid = process.id().to_string();
    let group = Path::new(GROUPS).join(format!("tidegate-hostile-{pid}"));
    let grouped = fs::create_dir(&group)
        .and_then(|()| fs::write(group.join("cpu.cfs_period_us"), PERIOD))
        .and_then(|()| fs::write(group.join("cpu.cfs_quota_us"), QUOTA))
        .and_then(|()| fs::write(group.join("cpu.shares"), WEIGHT))
        .and_then(|()| fs::write(group.join("cgroup.procs"), &pid));
    if grouped.is_ok() {
        return Share(Some(group));
    }
    let _ = fs::remove_dir(&group);
    let _ = Command::new("renice").args(["-n", "19", "-p", &pid]).stdout(Stdio::null()).status();
    Share(None)
}

/// The daemon runs before the hostile client, and the normal clients before both. They stand for
/// programs on other machines, which would not wait for this CPU.
pub(super) const DAEMON: &str = "1";
pub(super) const NORMAL: &str = "2";

/// Whether processes may run at real-time priority here.
pub fn has_priorities() -> bool {
    let tried = Command::new("chrt").args(["--rr", NORMAL, "true"]).stderr(Stdio::null()).status();
    tried.is_ok_and(|status| status.success())
}

/// Runs all threads of the daemon at their real-time priority, if the system allows it.
pub(super) fn prefer_daemon(pid: u32) {
    if has_priorities() {
        let words = ["--all-tasks", "--rr", "--pid", DAEMON, &pid.to_string()];
        let done = Command::new("chrt").args(words).status().expect("chrt can be started again");
        assert!(done.success(), "the daemon's priority");
    }
}
