//! The program, started for a test and stopped with it. Every wait has a timeout.

use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tidegate_tests::http::{self, Answer};

/// Timeout of every wait, far longer than any step takes.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// A daemon that stops with the test.
pub(crate) struct Daemon {
    child: Child,
    listeners: HashMap<String, String>,
    /// Lines of its log.
    notes: Receiver<String>,
}

/// The lines of a pipe, until it closes.
fn lines(pipe: impl Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let lines = BufReader::new(pipe).lines().map_while(Result::ok);
        // The test has stopped reading.
        lines.map(|line| sender.send(line)).take_while(Result::is_ok).for_each(drop);
    });
    receiver
}

impl Daemon {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::start_in(arguments, &[])
    }

    /// The same, with variables in its environment.
    pub(crate) fn start_in(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        let any = "127.0.0.1:0";
        let listeners = ["--resp", any, "--http", any, "--admin", any, "--grpc", "off"];
        Self::serving(&[&listeners, arguments].concat(), variables, 3)
    }

    /// Starts a daemon with these arguments and variables, and waits for this many listeners.
    pub(crate) fn serving(arguments: &[&str], variables: &[(&str, &str)], count: usize) -> Self {
        let (mut daemon, out) = Self::spawn(Path::new("."), arguments, variables);
        while daemon.listeners.len() < count {
            let line = out.recv_timeout(TIMEOUT).unwrap_or_else(|_| panic!("{}", daemon.rest()));
            let listener = line.strip_prefix("listening for ").expect(&line);
            let (protocol, address) = listener.split_once(" on ").expect(&line);
            daemon.listeners.insert(protocol.to_owned(), address.to_owned());
        }
        daemon
    }

    /// A daemon that runs in a folder, and the lines of its standard output. It may not listen yet.
    pub(crate) fn spawn(
        folder: &Path,
        arguments: &[&str],
        variables: &[(&str, &str)],
    ) -> (Self, Receiver<String>) {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .current_dir(folder)
            .arg("serve")
            .args(arguments)
            // The environment of the tests must not configure this daemon.
            .env_clear()
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program is built");
        let out = lines(child.stdout.take().expect("piped"));
        let notes = lines(child.stderr.take().expect("piped"));
        (Self { child, listeners: HashMap::new(), notes }, out)
    }

    /// Takes the addresses of the listeners from a list such as `RESP 127.0.0.1:6380, HTTP …`.
    pub(crate) fn listens_on(&mut self, listeners: &str) {
        let pairs = listeners.split(", ").filter_map(|listener| listener.split_once(' '));
        self.listeners = pairs.map(|(protocol, at)| (protocol.to_owned(), at.to_owned())).collect();
    }

    /// The next line of its log.
    pub(crate) fn next_line(&self) -> String {
        self.notes.recv_timeout(TIMEOUT).expect("one more line")
    }

    /// The address of the listener with this name.
    pub(crate) fn address(&self, protocol: &str) -> &str {
        &self.listeners[protocol]
    }

    /// Reads its log until a line contains this text.
    pub(crate) fn until_it_says(&self, words: &str) -> String {
        loop {
            let line = self.notes.recv_timeout(TIMEOUT);
            let line = line.unwrap_or_else(|error| panic!("never said {words}: {error}"));
            if line.contains(words) {
                return line;
            }
        }
    }

    /// Waits for its end, and returns the exit status and the rest of its log.
    pub(crate) fn end(&mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        loop {
            match self.notes.recv_timeout(TIMEOUT) {
                Ok(line) => rest += &(line + "\n"),
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
                Err(mpsc::RecvTimeoutError::Timeout) => panic!("it does not end: {rest}"),
            }
        }
        (self.child.wait().expect("ours").code(), rest)
    }

    fn rest(&self) -> String {
        self.notes.try_iter().collect::<Vec<_>>().join("\n")
    }

    /// The response of the admin port.
    pub(crate) fn admin(&self, call: &str) -> Answer {
        http::ask(self.address("admin"), call, "", "")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// The response of the RESP listener to a command, in one line.
    pub(crate) fn ask(&self, command: &str) -> String {
        let mut socket = http::connect(self.address("RESP"));
        write!(socket, "{command}\r\nQUIT\r\n").expect("it reads");
        let answer = io::read_to_string(socket).expect("an answer");
        answer.strip_suffix("+OK\r\n").expect("the farewell").replace("\r\n", " ")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails if the daemon has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
