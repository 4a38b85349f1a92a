//! Client programs in separate processes, started for one test and ended with it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tidegate::{AlgorithmName, Limit, Rate, Span};
use tidegate_core::Builder;

/// A client connects in milliseconds and works for seconds; a busy machine needs longer.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A client in a separate process. It ends with its input, so it never outlives the test.
#[derive(Debug)]
pub struct Client {
    process: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Client {
    /// Starts a client program and returns once it is connected.
    pub fn start(program: &str, arguments: &[&str]) -> Self {
        let mut process = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the client program was built with the test");
        let output = process.stdout.take().expect("its output is a pipe");
        let (heard, lines) = channel();
        thread::spawn(move || {
            let (mut output, mut line) = (BufReader::new(output), String::new());
            // A killed client may leave a line without its end, which does not count.
            while output.read_line(&mut line).is_ok_and(|_| line.ends_with('\n')) {
                if heard.send(line.trim_end().to_owned()).is_err() {
                    return;
                }
                line.clear();
            }
        });
        let input = process.stdin.take();
        let client = Self { process, input, lines };
        assert_eq!(client.line(), "ready");
        client
    }

    /// The client's next line.
    pub fn line(&self) -> String {
        self.lines.recv_timeout(TIMEOUT).expect("the client was to say something")
    }

    /// A number that the client prints after a word.
    pub fn number(&self, word: &str) -> u64 {
        let line = self.line();
        let number = line.strip_prefix(word).and_then(|rest| rest.trim().parse().ok());
        number.unwrap_or_else(|| panic!("expected {word} and a number, heard {line:?}"))
    }

    /// Sends a line to the client.
    pub fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("it is still listening");
        writeln!(input, "{line}").expect("it is still listening");
    }

    /// Kills the client like a crash; returns the lines printed before.
    pub fn kill(mut self) -> Vec<String> {
        self.end();
        self.rest()
    }

    /// Ends the client's input, and waits for its end; returns its last lines.
    pub fn finish(mut self) -> Vec<String> {
        self.input = None;
        let rest = self.rest();
        self.end();
        rest
    }

    /// Stops the process.
    pub fn pause(&self) {
        self.signal(Signal::STOP);
    }

    /// Resumes the process.
    pub fn resume(&self) {
        self.signal(Signal::CONT);
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_child(&self.process);
        kill_process(pid, signal).expect("the pid is ours until it is waited for");
    }

    fn rest(&self) -> Vec<String> {
        let mut rest = Vec::new();
        loop {
            match self.lines.recv_timeout(TIMEOUT) {
                Ok(line) => rest.push(line),
                Err(RecvTimeoutError::Disconnected) => return rest,
                Err(RecvTimeoutError::Timeout) => panic!("the client does not end"),
            }
        }
    }

    fn end(&mut self) {
        // This fails only if the process has ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.end();
    }
}

/// Parses a limit in a client's arguments: `algorithm:count:microseconds`, then a burst if it has
/// one; or `in_flight:places:microseconds`.
pub fn limit(text: &str) -> Limit {
    let fields: Vec<&str> = text.split(':').collect();
    let number = |field: usize| fields[field].parse().expect("a number");
    let (count, per) = (number(1), Span::from_micros(number(2)));
    if fields[0] == "in_flight" {
        return Limit::in_flight(count, per).expect("valid numbers");
    }
    let algorithm: AlgorithmName = fields[0].parse().expect("the name of an algorithm");
    let builder = Builder::new(algorithm, Rate::new(count, per));
    let builder = if fields.len() > 3 { builder.burst(number(3)) } else { builder };
    builder.build().expect("valid numbers")
}
