//! A process of a server, which never outlives the test process.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::folder::Folder;

/// Waits for one line, then becomes the server, so the watcher knows its pid before it runs.
/// Without a line, because the test process has died, it ends.
const LAUNCHER: &str = r#"read -r go && exec "$@" </dev/null"#;

/// Waits for the end of its input, which comes when the test process ends in any way. It ignores
/// signals from a terminal to the whole group, because a paused server does not react to them.
const WATCHER: &str = r#"trap "" HUP INT TERM; read -r never; kill -9 "$1"; rm -rf "$2"
    rm -f "/dev/shm/faketime_shm_$1" "/dev/shm/sem.faketime_sem_$1""#;

/// A running server and the watcher that kills it if the test process cannot.
#[derive(Debug)]
pub struct Process {
    server: Child,
    /// Owns the writing end of the watcher's input.
    watcher: Child,
}

impl Process {
    /// Starts `program`, with its output in the log of `folder`.
    pub fn start(
        program: &Path,
        arguments: &[String],
        variables: &[(String, String)],
        folder: &Folder,
    ) -> Self {
        let log = folder.log_for_appending();
        let mut server = Command::new("sh")
            .args(["-c", LAUNCHER, "launcher"])
            .arg(program)
            .args(arguments)
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .current_dir(folder.path())
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("an open file can be opened twice"))
            .stderr(log)
            .spawn()
            .expect("every system has sh");
        let watcher = Command::new("sh")
            .args(["-c", WATCHER, "watcher", &server.id().to_string()])
            .arg(folder.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("every system has sh");
        let mut gate = server.stdin.take().expect("its input is a pipe");
        gate.write_all(b"go\n").expect("the launcher waits for this line");
        Self { server, watcher }
    }

    /// Its pid.
    pub fn pid(&self) -> u32 {
        self.server.id()
    }

    /// False once the server has ended.
    pub fn is_running(&mut self) -> bool {
        matches!(self.server.try_wait(), Ok(None))
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.server), signal)
            .expect("the pid is ours until it is waited for");
    }

    /// Whether the process is stopped.
    pub(crate) fn is_stopped(&self) -> bool {
        self.fields()[0] == "T"
    }

    /// User and system time so far.
    pub fn cpu_seconds(&self) -> f64 {
        let fields = self.fields();
        let ticks = |field: usize| -> f64 { fields[field].parse().expect("a count of ticks") };
        // Fields 14 and 15 of proc(5), which counts from one.
        (ticks(14 - 3) + ticks(15 - 3)) / rustix::param::clock_ticks_per_second() as f64
    }

    /// Fields of `/proc/PID/stat`, from the third one on: the second, a name in parentheses, may
    /// contain spaces.
    fn fields(&self) -> Vec<String> {
        let path = format!("/proc/{}/stat", self.pid());
        let stat = fs::read_to_string(path).expect("it has its numbers until it is waited for");
        let (_, fields) = stat.rsplit_once(')').expect("the second field is a name");
        fields.split_whitespace().map(Into::into).collect()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // The watcher first: once the server has been waited for, its pid may belong to another
        // process.
        for child in [&mut self.watcher, &mut self.server] {
            // This fails only if the process has ended.
            let _ = child.kill();
            let _ = child.wait();
        }
        // Shared memory of libfaketime, which it removes only at an orderly end.
        for left in ["faketime_shm_", "sem.faketime_sem_"] {
            let _ = fs::remove_file(format!("/dev/shm/{left}{}", self.pid()));
        }
    }
}
