//! One server of a run.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use tidegate_tests::servers::{Folder, Process, comes_true, free_port};

/// A server starts in a second; one in a virtual machine under load needs longer.
const START_LIMIT: Duration = Duration::from_secs(30);

/// A server in a separate process.
pub struct Member {
    // Dropped first: a folder whose server still writes cannot be removed.
    process: Process,
    _folder: Folder,
    ports: Vec<u16>,
}

/// The program, arguments and ports of a server.
pub struct Recipe<'a> {
    pub program: &'a Path,
    pub arguments: Vec<String>,
    pub variables: Vec<(String, String)>,
    pub folder: Folder,
    pub ports: Vec<u16>,
}

impl<'a> Recipe<'a> {
    /// A server with this many ports.
    pub fn new(program: &'a Path, ports: usize) -> Self {
        Self {
            program,
            arguments: Vec::new(),
            variables: Vec::new(),
            folder: Folder::create(),
            ports: (0..ports).map(|_| free_port()).collect(),
        }
    }

    /// Adds arguments; none of them contains a space.
    pub fn with(mut self, arguments: &str) -> Self {
        self.arguments.extend(arguments.split(' ').map(Into::into));
        self
    }

    /// Writes a file into its folder and returns the path.
    pub fn file(&self, name: &str, text: &str) -> String {
        let path = self.folder.path().join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).expect("a new folder can be written");
        }
        fs::write(&path, text).expect("a new folder can be written");
        path.display().to_string()
    }

    /// Starts it, and returns once it listens on all its ports.
    pub fn start(self) -> Result<Member, String> {
        let Self { program, arguments, variables, folder, ports } = self;
        let mut process = Process::start(program, &arguments, &variables, &folder);
        let listens = |port: &u16| TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_ok();
        comes_true(START_LIMIT, || !process.is_running() || ports.iter().all(listens));
        if !process.is_running() || !ports.iter().all(listens) {
            return Err(format!("{} did not start: {}", program.display(), folder.log_tail()));
        }
        Ok(Member { process, _folder: folder, ports })
    }
}

impl Member {
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// The address of its port with this number.
    pub fn address(&self, number: usize) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.ports[number]).into()
    }

    pub fn port(&self, number: usize) -> u16 {
        self.ports[number]
    }
}

/// Processor seconds of a process so far, user and system.
pub fn cpu(pid: u32) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // From the third field on: the second, a name in parentheses, may contain spaces.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = |field: usize| fields.split_whitespace().nth(field - 3)?.parse::<f64>().ok();
    let sum = ticks(14).zip(ticks(15)).map(|(user, system)| user + system);
    sum.map_or(f64::NAN, |ticks| ticks / rustix::param::clock_ticks_per_second() as f64)
}

/// Resident memory of a process.
pub fn rss_mib(pid: u32) -> f64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|rest| rest.trim().split(' ').next()?.parse::<f64>().ok());
    kib.map_or(f64::NAN, |kib| kib / 1_024.0)
}
