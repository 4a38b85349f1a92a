//! CPU cgroups, v1 or v2, that limit or favour the processes of a test.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, setpriority_process};

use super::waiting::comes_true;

/// The period that a CPU limit refers to; the kernel's default.
pub const CPU_PERIOD: Duration = Duration::from_millis(100);
const MOUNT: &str = "/sys/fs/cgroup";
/// The name of a group begins with this and the pid of its creator.
const PREFIX: &str = "tidegate-test-";
/// The largest weights that the kernel accepts; a group has 1024 and 100 unless configured.
const MAX_SHARES: &str = "262144";
const MAX_WEIGHT: &str = "10000";
/// The smallest ones.
const MIN_SHARES: &str = "2";
const MIN_WEIGHT: &str = "1";
/// The highest priority by `nice`.
const HIGHEST_NICE: i32 = -20;
/// The kernel removes a process from its group shortly after its end.
const REMOVAL_LIMIT: Duration = Duration::from_secs(2);

/// A CPU cgroup. Dropping it moves its processes to the parent group and removes it.
#[derive(Debug)]
pub struct CpuGroup(PathBuf);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

/// A file of a group, and its content.
type Setting = (&'static str, String);

/// The limit of a group to `quota` of every `period`. In version 1 the period has a file of its own.
fn limit(version: Version, quota: Duration, period: Duration) -> Setting {
    match version {
        Version::V1 => ("cpu.cfs_quota_us", quota.as_micros().to_string()),
        Version::V2 => ("cpu.max", format!("{} {}", quota.as_micros(), period.as_micros())),
    }
}

impl CpuGroup {
    /// Creates a group whose processes together run for at most `quota` of every [`CPU_PERIOD`].
    ///
    /// # Errors
    /// If no group can be created: that needs root, and a cgroup file system that can be written.
    pub fn limited(quota: Duration) -> io::Result<Self> {
        Self::create(|version| vec![limit(version, quota, CPU_PERIOD)])
    }

    /// Creates a group whose processes together run for at most `quota` of every `period`, and only
    /// when no process of another group wants the CPU.
    ///
    /// # Errors
    /// As [`CpuGroup::limited`].
    pub fn confined(quota: Duration, period: Duration) -> io::Result<Self> {
        Self::create(|version| match version {
            Version::V1 => vec![
                ("cpu.cfs_period_us", period.as_micros().to_string()),
                limit(version, quota, period),
                ("cpu.shares", MIN_SHARES.into()),
            ],
            Version::V2 => {
                vec![limit(version, quota, period), ("cpu.weight", MIN_WEIGHT.into())]
            }
        })
    }

    /// Creates a group whose processes run before those of other groups.
    ///
    /// # Errors
    /// As [`CpuGroup::limited`].
    pub fn favoured() -> io::Result<Self> {
        Self::create(|version| match version {
            Version::V1 => vec![("cpu.shares", MAX_SHARES.into())],
            Version::V2 => vec![("cpu.weight", MAX_WEIGHT.into())],
        })
    }

    /// Moves a process with all its threads into the group.
    ///
    /// # Errors
    /// If the process has ended or may not be moved.
    pub fn add(&self, pid: u32) -> io::Result<()> {
        fs::write(self.0.join("cgroup.procs"), pid.to_string())
    }

    /// Moves one thread into the group. Groups of v2 take whole processes only.
    fn add_thread(&self, thread: u32) -> io::Result<()> {
        let file = self.0.join("tasks");
        fs::OpenOptions::new().write(true).open(file)?.write_all(thread.to_string().as_bytes())
    }

    /// Creates a group below the group of this process, or below the nearest ancestor that allows it.
    fn create(settings: impl Fn(Version) -> Vec<Setting>) -> io::Result<Self> {
        let (version, parents) = parents(&fs::read_to_string("/proc/self/cgroup")?);
        let settings = settings(version);
        let mut failure = io::Error::other("no CPU cgroup is mounted");
        for parent in parents {
            match Self::create_in(&parent, version, &settings) {
                Ok(group) => return Ok(group),
                Err(error) => failure = io::Error::other(format!("{}: {error}", parent.display())),
            }
        }
        Err(failure)
    }

    fn create_in(parent: &Path, version: Version, settings: &[Setting]) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        remove_leftovers(parent);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let group = Self(parent.join(format!("{PREFIX}{}-{number}", process::id())));
        fs::create_dir(&group.0)?;
        for (file, value) in settings {
            if version == Version::V2 && !group.0.join(file).is_file() {
                fs::write(parent.join("cgroup.subtree_control"), "+cpu")?;
            }
            fs::write(group.0.join(file), value)?;
        }
        Ok(group)
    }
}

impl Drop for CpuGroup {
    fn drop(&mut self) {
        let Some(parent) = self.0.parent() else { return };
        // Fails only for a process that ends meanwhile, and for a group that was not created.
        let removed = comes_true(REMOVAL_LIMIT, || {
            for pid in fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default().lines() {
                let _ = fs::write(parent.join("cgroup.procs"), pid);
            }
            fs::remove_dir(&self.0).is_ok() || !self.0.is_dir()
        });
        if !removed {
            eprintln!("cannot remove the cgroup {}; remove it with rmdir", self.0.display());
        }
    }
}

/// The priority of a process or a thread over all others of the machine, until it is dropped.
#[derive(Debug)]
pub struct Priority {
    _group: Option<CpuGroup>,
}

impl Priority {
    /// Raises the priority of a process: by a group of its own, or else by its nice value.
    ///
    /// # Errors
    /// If this process may neither create a group nor change the nice value.
    pub fn raise(pid: u32) -> io::Result<Self> {
        Self::raise_by(pid, CpuGroup::add)
    }

    /// Raises the priority of one thread of this process.
    ///
    /// # Errors
    /// As [`Priority::raise`].
    pub fn raise_thread(thread: u32) -> io::Result<Self> {
        Self::raise_by(thread, CpuGroup::add_thread)
    }

    fn raise_by(pid: u32, add: impl Fn(&CpuGroup, u32) -> io::Result<()>) -> io::Result<Self> {
        let group = CpuGroup::favoured().and_then(|group| add(&group, pid).map(|()| group));
        let error = match group {
            Ok(group) => return Ok(Self { _group: Some(group) }),
            Err(error) => error,
        };
        let raw = i32::try_from(pid).ok().and_then(Pid::from_raw);
        match setpriority_process(raw, HIGHEST_NICE) {
            Ok(()) => Ok(Self { _group: None }),
            Err(nice) => Err(io::Error::other(format!("{error}; nice {HIGHEST_NICE}: {nice}"))),
        }
    }
}

/// The groups in which a group can be created, nearest first, from the text of `/proc/self/cgroup`.
fn parents(own: &str) -> (Version, Vec<PathBuf>) {
    let fields = |line: &str| -> Option<(String, String)> {
        let mut fields = line.splitn(3, ':').skip(1);
        Some((fields.next()?.to_owned(), fields.next()?.to_owned()))
    };
    let groups: Vec<(String, String)> = own.lines().filter_map(fields).collect();
    let has_cpu = |controllers: &str| controllers.split(',').any(|name| name == "cpu");
    let v1 = groups.iter().find(|(controllers, _)| has_cpu(controllers));
    let v2 = groups.iter().find(|(controllers, _)| controllers.is_empty());
    let (version, mount, path) = match (v1, v2) {
        (Some((_, path)), _) => (Version::V1, Path::new(MOUNT).join("cpu"), path),
        (None, Some((_, path))) => (Version::V2, PathBuf::from(MOUNT), path),
        (None, None) => return (Version::V2, Vec::new()),
    };
    let inner = Path::new(path.trim_start_matches('/')).ancestors();
    // In a container, the path may be that of the host, which is not mounted here.
    let found = inner.map(|path| mount.join(path)).filter(|path| path.is_dir());
    (version, found.collect())
}

/// Removes groups whose creator was killed before it could do so.
fn remove_leftovers(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let pid = pid.and_then(|rest| rest.split('-').next());
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            // Fails while a process of it still runs; a later test removes it.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parents_are_those_of_the_cpu_controller() {
        let root = PathBuf::from;
        let (version, found) = parents("9:name=systemd:/\n4:cpu,cpuacct:/\n0::/\n");
        assert_eq!(version, Version::V1);
        assert!(found.iter().all(|path| *path == root("/sys/fs/cgroup/cpu")), "{found:?}");
        let (version, found) = parents("0::/no.slice/such.scope\n");
        assert_eq!((version, found), (Version::V2, vec![root(MOUNT)]));
        assert_eq!(parents("").1, Vec::<PathBuf>::new());
    }
}
