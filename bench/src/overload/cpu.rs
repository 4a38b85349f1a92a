//! Shares of the processor. The clients represent other machines: they have a separate core, and
//! run before everything else on it.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;
use std::thread::available_parallelism;

use tidegate_tests::hostile::has_priorities;

use crate::server::member::Recipe;

/// How the kernel schedules a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Priority {
    /// Runs before everything else on the machine; for servers that sleep.
    RealTime,
    /// As usual: a request that burns processor time shares it with others.
    Normal,
}

/// A core, and the real-time priority of the processes on it.
#[derive(Clone, Copy, Debug)]
pub struct Core {
    number: usize,
    priority: &'static str,
}

/// The core of the protected server.
pub const BACKEND: Core = Core { number: 0, priority: "1" };
/// The core of the clients.
pub const CLIENTS: Core = Core { number: 1, priority: "2" };

/// The core of a proxy in front of a backend: that of the backend if the backend sleeps, otherwise
/// that of the clients.
pub const fn edge(backend: Priority) -> Core {
    match backend {
        Priority::RealTime => BACKEND,
        Priority::Normal => Core { number: 1, priority: "1" },
    }
}

/// Whether this machine allows real-time priorities.
pub static HAS_PRIORITIES: LazyLock<bool> = LazyLock::new(has_priorities);

fn has_cores() -> bool {
    available_parallelism().is_ok_and(|count| count.get() > 1)
}

impl Core {
    fn words(self, priority: Priority) -> Vec<String> {
        let mut words = Vec::new();
        if has_cores() {
            words.extend(["taskset".to_owned(), "-c".to_owned(), self.number.to_string()]);
        }
        if priority == Priority::RealTime && *HAS_PRIORITIES {
            words.extend(["chrt", "--rr", self.priority].map(str::to_owned));
        }
        words
    }

    /// A server with this many ports, to be started on this core.
    pub fn recipe(self, program: &Path, ports: usize, priority: Priority) -> Recipe<'static> {
        let mut words = self.words(priority);
        words.push(program.display().to_string());
        let mut recipe = Recipe::new(Path::new("env"), ports);
        recipe.arguments.extend(words);
        recipe
    }

    /// A command on this core.
    pub fn command(self, program: &Path) -> Command {
        let mut command = Command::new("env");
        command.args(self.words(Priority::RealTime)).arg(program);
        command
    }
}
