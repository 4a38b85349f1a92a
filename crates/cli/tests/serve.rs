//! The real program, started and stopped as a service is.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

/// A daemon that ends with the test.
struct Daemon {
    child: Child,
    address: String,
    http: String,
    notes: BufReader<ChildStderr>,
}

impl Daemon {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tidegate"))
            .args(["serve", "--resp", "127.0.0.1:0", "--http", "127.0.0.1:0"])
            .args(arguments)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program is built");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        let mut lines = out.lines().map(|line| line.expect("text"));
        let mut listener = |name: &str| {
            let line = lines.next().expect("one line for each listener");
            let start = format!("listening for {name} on ");
            line.strip_prefix(&start).expect(&line).to_owned()
        };
        let (address, http) = (listener("RESP"), listener("HTTP"));
        let notes = BufReader::new(child.stderr.take().expect("piped"));
        Self { child, address, http, notes }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    fn health(&self) -> String {
        let mut socket = TcpStream::connect(&self.http).expect("it listens");
        let request = b"GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
        socket.write_all(request).expect("it reads");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer");
        answer
    }

    fn ask(&self, command: &str) -> String {
        let mut socket = TcpStream::connect(&self.address).expect("it listens");
        socket.set_read_timeout(Some(Duration::from_secs(30))).expect("not zero");
        write!(socket, "{command}\r\nQUIT\r\n").expect("it reads");
        let mut answer = String::new();
        socket.read_to_string(&mut answer).expect("an answer");
        answer.strip_suffix("+OK\r\n").expect("the farewell").replace("\r\n", " ")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails if it has ended, which is what is wanted.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn answers_and_ends_well_when_told_to() {
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = Daemon::start(&["--threads", "1"]);
        assert_eq!(daemon.ask("CL.THROTTLE user:1 15 30 60"), "*5 :0 :16 :15 :-1 :2 ");
        assert!(daemon.health().starts_with("HTTP/1.1 200 OK"));
        daemon.signal(signal);
        assert_eq!(daemon.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn a_port_that_is_taken_is_told() {
    let daemon = Daemon::start(&[]);
    let second = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["serve", "--resp", &daemon.address, "--http", "off"])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    let told = String::from_utf8(second.stderr).unwrap();
    let address = &daemon.address;
    let expected =
        format!("error: cannot listen on {address} for RESP: another program does already\n");
    assert_eq!(told, expected);
}

#[test]
fn the_policy_is_read_again_when_asked_for() {
    let folder = std::env::temp_dir().join(format!("tidegate-serve-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let file = folder.join("policy.yaml");
    let policy = |burst: u32| {
        format!("domain: api\ndescriptors:\n  - key: user\n    rate: 1/min\n    burst: {burst}\n")
    };
    fs::write(&file, policy(5)).unwrap();
    let mut daemon = Daemon::start(&["--config", file.to_str().unwrap()]);
    assert!(daemon.ask("TG.CHECK api user bob").starts_with("*6 :0 :5 :4 "));
    let fresh = folder.join("fresh");
    fs::write(&fresh, policy(9)).unwrap();
    fs::rename(&fresh, &file).unwrap();
    daemon.signal(Signal::HUP);
    let mut note = String::new();
    daemon.notes.read_line(&mut note).unwrap();
    assert_eq!(note, "policy reloaded\n");
    assert!(daemon.ask("TG.CHECK api user ann").starts_with("*6 :0 :9 :8 "));
    fs::write(&file, "domain: api\ndescriptors: 7\n").unwrap();
    daemon.signal(Signal::HUP);
    note.clear();
    while !note.starts_with("policy not reloaded") {
        note.clear();
        assert_ne!(daemon.notes.read_line(&mut note).unwrap(), 0);
    }
    assert!(daemon.ask("TG.CHECK api user ann").starts_with("*6 :0 :9 :7 "));
    fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn a_policy_that_cannot_be_used_does_not_start() {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .args(["serve", "--config", "no/such/policy.yaml"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8(output.stderr).unwrap().contains("no/such/policy.yaml"));
}

/// `tidegate check --url` asks the daemon, and charges there.
#[test]
fn a_check_can_ask_the_daemon() {
    let folder = std::env::temp_dir().join(format!("tidegate-url-{}", std::process::id()));
    fs::create_dir_all(&folder).expect("a folder");
    let file = folder.join("p.yaml");
    fs::write(&file, "{domain: api, descriptors: [{key: user, rate: 1/h}]}").expect("a file");
    let daemon = Daemon::start(&["--config", &file.display().to_string()]);
    let url = format!("http://{}", daemon.http);
    let check = |descriptor: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        command.args(["check", "--url", &url, "--domain", "api", "--descriptor", descriptor]);
        let output = command.output().expect("the program is built");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).expect("text"))
    };
    assert_eq!(check("user=bob"), (Some(0), "allowed: 0 of 1 left\n".to_owned()));
    let (status, text) = check("user=bob");
    assert!(
        status == Some(1) && text.starts_with("denied: 0 of 1 left; try again after"),
        "{text}"
    );
    let (status, text) = check("nonsense");
    assert!(status == Some(2) && text.contains("expected a descriptor"), "{text}");
    drop(daemon);
    let (status, text) = check("user=bob");
    assert!(status == Some(2) && text.contains("cannot ask"), "{text}");
    fs::remove_dir_all(&folder).expect("the folder is ours");
}
