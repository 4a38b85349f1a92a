//! One server, and the operations of tests on it.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use redis::{Client, Commands, Connection, ConnectionLike, RedisResult, Value};
use rustix::process::Signal;

use super::builder::{Builder, SOCKET};
use super::certificates::Certificates;
use super::clock::FakeClock;
use super::folder::Folder;
use super::process::Process;
use super::waiting::comes_true;

/// Time for a server to start, also on a busy machine.
const START_LIMIT: Duration = Duration::from_secs(20);
/// Time for a control command.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Number of attempts for a command whose connection is cut.
const MOST_ASKED: u32 = 3;
/// Maximum number of starts, because a free port may be taken before it is used.
const MOST_STARTS: u32 = 5;

/// A Redis server in a separate process, stopped and removed on drop. Every method takes `&self`,
/// because tests break a server while clients hold its address.
#[derive(Debug)]
pub struct RedisServer {
    // Dropped first: a folder whose server still writes cannot be removed.
    state: Mutex<State>,
    setup: Setup,
}

/// The parts that stay the same through restarts.
#[derive(Debug)]
pub(crate) struct Setup {
    pub(crate) program: PathBuf,
    pub(crate) arguments: Vec<String>,
    pub(crate) folder: Folder,
    pub(crate) listener: Listener,
    pub(crate) clock: Option<FakeClock>,
}

/// The listener for clients under test.
#[derive(Debug)]
pub(crate) enum Listener {
    Tcp(u16),
    Tls(u16, Certificates),
    UnixSocket,
}

#[derive(Debug)]
struct State {
    /// `None` after a kill.
    process: Option<Process>,
    is_paused: bool,
}

/// Why a server did not start.
enum StartFailure {
    AddressInUse,
    Other,
}

impl RedisServer {
    /// Starts a plain server that keeps nothing on disk.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// A builder for a server that is not plain.
    pub fn builder() -> Builder {
        Builder::new()
    }

    pub(crate) fn start_from(mut setup: impl FnMut() -> Setup) -> Self {
        for _ in 0..MOST_STARTS {
            let setup = setup();
            match setup.launch() {
                Ok(process) => {
                    let state = State { process: Some(process), is_paused: false };
                    return Self { state: Mutex::new(state), setup };
                }
                Err(StartFailure::AddressInUse) => {}
                Err(StartFailure::Other) => setup.panic("it did not start"),
            }
        }
        panic!("{MOST_STARTS} free ports were taken before a server could listen")
    }

    /// The port clients connect to.
    pub fn port(&self) -> u16 {
        match self.setup.listener {
            Listener::Tcp(port) | Listener::Tls(port, _) => port,
            Listener::UnixSocket => panic!("it was asked to listen on a socket, not on a port"),
        }
    }

    /// `127.0.0.1:port`, for seed lists and commands between servers.
    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// The URL for clients under test.
    pub fn url(&self) -> String {
        match self.setup.listener {
            Listener::Tcp(port) => format!("redis://127.0.0.1:{port}"),
            Listener::Tls(port, _) => format!("rediss://127.0.0.1:{port}"),
            Listener::UnixSocket => self.setup.socket_url(),
        }
    }

    /// The certificates of a server that speaks TLS.
    pub fn certificates(&self) -> &Certificates {
        match &self.setup.listener {
            Listener::Tls(_, certificates) => certificates,
            Listener::Tcp(_) | Listener::UnixSocket => panic!("it was not asked to speak TLS"),
        }
    }

    /// The pid of the server, until it is killed or restarted.
    pub fn pid(&self) -> u32 {
        self.with_process(Process::pid)
    }

    /// Kills the server like a crash, and returns when it is gone.
    pub fn kill(&self) {
        let mut state = self.state();
        state.process = None;
        state.is_paused = false;
    }

    /// Stops the process: connections stay open, and no command is answered.
    pub fn pause(&self) {
        // The signal is delivered later: an answer may still be in transit.
        let stops = self.with_process(|process| {
            process.signal(Signal::STOP);
            comes_true(ANSWER_LIMIT, || process.is_stopped())
        });
        if !stops {
            self.panic("it did not stop");
        }
        self.state().is_paused = true;
    }

    /// Resumes the process after [`pause`](Self::pause).
    pub fn resume(&self) {
        self.with_process(|process| process.signal(Signal::CONT));
        self.state().is_paused = false;
    }

    /// Kills the server if it runs, then starts it again on the same port and in the same folder.
    pub fn restart(&self) {
        self.kill();
        let mut started = None;
        let starts = comes_true(START_LIMIT, || match self.setup.launch() {
            Ok(process) => {
                started = Some(process);
                true
            }
            Err(StartFailure::AddressInUse) => false,
            Err(StartFailure::Other) => self.panic("it did not start again"),
        });
        if !starts {
            self.panic("its port stayed taken, so it did not start again");
        }
        self.state().process = started;
    }

    /// A control connection by the server's socket, which works independently of the port's
    /// configuration.
    pub fn connection(&self) -> Connection {
        let connection = self.setup.connect(ANSWER_LIMIT);
        connection.unwrap_or_else(|error| self.panic(&format!("no control connection: {error}")))
    }

    /// Sets `key` to 1, and returns once this many replicas have it and all earlier writes. WAIT
    /// alone is not enough, because it covers only writes of its own connection.
    pub fn set_on_replicas(&self, key: &str, replicas: usize) {
        let mut connection = self.connection();
        let _: () = connection.set(key, 1).expect("a primary can be written");
        let wait = redis::cmd("WAIT").arg(replicas).arg(5_000).query(&mut connection);
        assert_eq!(wait, Ok(replicas));
    }

    /// The answer to a command that cannot fail.
    pub fn command(&self, words: &[&str]) -> Value {
        let answer = self.try_command(words);
        answer.unwrap_or_else(|error| self.panic(&format!("{words:?} failed: {error}")))
    }

    /// The answer to a command, or its error.
    pub fn try_command(&self, words: &[&str]) -> RedisResult<Value> {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        command.query(&mut self.setup.connect(ANSWER_LIMIT)?)
    }

    /// The answer as text, for commands that change nothing. The command is repeated if the
    /// connection is cut, because sentinels cut the connections of a server whose role they change.
    pub(crate) fn text(&self, words: &[&str]) -> String {
        let mut answer = self.try_command(words);
        for _ in 1..MOST_ASKED {
            if !answer.as_ref().is_err_and(redis::RedisError::is_connection_dropped) {
                break;
            }
            answer = self.try_command(words);
        }
        answer
            .and_then(|answer| Ok(redis::from_redis_value(answer)?))
            .unwrap_or_else(|error| self.panic(&format!("{words:?} answered no text: {error}")))
    }

    /// A field of `INFO everything`, as text.
    pub fn info(&self, field: &str) -> String {
        let info = self.text(&["INFO", "everything"]);
        let value = info
            .lines()
            .find_map(|line| line.strip_prefix(field).and_then(|rest| rest.strip_prefix(':')));
        value.unwrap_or_else(|| self.panic(&format!("INFO has no field {field}"))).to_owned()
    }

    /// User and system time since the start.
    pub fn cpu_seconds(&self) -> f64 {
        self.with_process(Process::cpu_seconds)
    }

    /// False if the server was killed, has ended or is paused.
    pub fn is_answering(&self) -> bool {
        let mut state = self.state();
        let is_paused = state.is_paused;
        state.process.as_mut().is_some_and(|process| process.is_running() && !is_paused)
    }

    /// The server's output of all its starts.
    pub fn log(&self) -> String {
        self.setup.folder.log()
    }

    /// Panics with the end of the log.
    pub(crate) fn panic(&self, problem: &str) -> ! {
        self.setup.panic(problem)
    }

    pub(crate) fn clock(&self) -> Option<&FakeClock> {
        self.setup.clock.as_ref()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A test that panicked while it held the lock must still be able to stop the server.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn with_process<T>(&self, act: impl FnOnce(&Process) -> T) -> T {
        act(self.state().process.as_ref().expect("it was killed and not started again"))
    }
}

impl Setup {
    fn launch(&self) -> Result<Process, StartFailure> {
        let printed = self.folder.log().len();
        let variables = self.clock.as_ref().map(FakeClock::variables).unwrap_or_default();
        let mut process = Process::start(&self.program, &self.arguments, &variables, &self.folder);
        let mut has_ended = false;
        let answers = comes_true(START_LIMIT, || {
            has_ended = !process.is_running();
            has_ended || self.connect(ANSWER_LIMIT).is_ok_and(|mut it| it.check_connection())
        });
        if answers && !has_ended {
            return Ok(process);
        }
        let log = self.folder.log();
        let is_taken = has_ended && log[printed..].contains("Address already in use");
        Err(if is_taken { StartFailure::AddressInUse } else { StartFailure::Other })
    }

    fn connect(&self, limit: Duration) -> RedisResult<Connection> {
        let connection = Client::open(self.socket_url())?.get_connection_with_timeout(limit)?;
        connection.set_read_timeout(Some(limit))?;
        connection.set_write_timeout(Some(limit))?;
        Ok(connection)
    }

    fn socket_url(&self) -> String {
        format!("unix://{}", self.folder.file(SOCKET).display())
    }

    fn panic(&self, problem: &str) -> ! {
        let program = self.program.display();
        panic!("{program}: {problem}; the end of its log:\n{}", self.folder.log_tail())
    }
}
