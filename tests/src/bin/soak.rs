//! A daemon under load for a long time: a million keys that come and go, clients that connect and
//! vanish, a policy that changes every ten seconds. Its memory has to stay flat, and no answer may be
//! wrong.
//!
//! `cargo xtask soak --minutes 30`

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use fastrand::Rng;

/// Keys that are asked for at any time; the window moves, so that all are new after a while.
const KEYS: u64 = 1_000_000;
/// How often the policy changes, and figures are taken.
const TICK: Duration = Duration::from_secs(10);
/// Requests in one write.
const BATCH: u64 = 50;
/// Only so that what hangs is told.
const PATIENCE: Duration = Duration::from_secs(30);
/// What may come on top of the memory after the first third: pages that are touched late.
const SLACK_KIB: u64 = 4 << 10;

fn main() -> ExitCode {
    let (daemon, minutes, rate) = match arguments() {
        Ok(arguments) => arguments,
        Err(problem) => {
            eprintln!("{problem}\nusage: soak DAEMON [--minutes N] [--rate DECISIONS_PER_SECOND]");
            return ExitCode::from(2);
        }
    };
    let folder = std::env::temp_dir().join(format!("tidegate-soak-{}", std::process::id()));
    fs::create_dir(&folder).expect("the folder for temporary files can be written");
    let outcome = soak(&daemon, &folder, Duration::from_secs(60 * minutes), rate);
    // A leftover is a nuisance, not a failure.
    let _ = fs::remove_dir_all(&folder);
    match outcome {
        Ok(told) => {
            println!("{told}");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("soak failed: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn arguments() -> Result<(PathBuf, u64, u64), String> {
    let mut arguments = std::env::args().skip(1);
    let daemon = arguments.next().ok_or("name the daemon's program")?;
    let (mut minutes, mut rate) = (30, 20_000);
    while let Some(option) = arguments.next() {
        let value = arguments.next().and_then(|text| text.parse().ok());
        let value = value.filter(|number| *number > 0);
        let value = value.ok_or(format!("{option} takes a number above 0"))?;
        match option.as_str() {
            "--minutes" => minutes = value,
            "--rate" => rate = value,
            _ => return Err(format!("unknown option {option}")),
        }
    }
    Ok((daemon.into(), minutes, rate))
}

/// The daemon, ended with this program.
struct Daemon {
    child: Child,
    resp: String,
    http: String,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // Fails if it has ended, which is told elsewhere.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Daemon {
    fn start(program: &Path, policy: &Path) -> io::Result<Self> {
        let any = "127.0.0.1:0";
        let mut child = Command::new(program)
            .args(["serve", "--resp", any, "--http", any, "--grpc", any, "--admin", any])
            .arg("--config")
            .arg(policy)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let out = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::Other)?);
        let mut found = Self { child, resp: String::new(), http: String::new() };
        for line in out.lines() {
            let line = line?;
            let listener = line.strip_prefix("listening for ");
            match listener.and_then(|rest| rest.split_once(" on ")) {
                Some(("RESP", address)) => address.clone_into(&mut found.resp),
                Some(("HTTP", address)) => address.clone_into(&mut found.http),
                _ => {}
            }
            if !found.resp.is_empty() && !found.http.is_empty() {
                return Ok(found);
            }
        }
        Err(io::Error::other("the daemon did not say where it listens"))
    }

    fn resident_kib(&self) -> io::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        number.ok_or_else(|| io::Error::other("no VmRSS"))
    }

    fn descriptors(&self) -> usize {
        let folder = fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        folder.map_or(0, Iterator::count)
    }
}

/// What the clients share.
struct Load {
    decisions: AtomicU64,
    is_over: AtomicBool,
    /// The first thing that went wrong.
    wrong: Mutex<Option<String>>,
    /// Decisions per second of one client.
    rate: u64,
}

impl Load {
    /// True until the time is over or something went wrong.
    fn goes_on(&self) -> bool {
        !self.is_over.load(Ordering::Relaxed)
    }

    fn tell(&self, problem: &impl ToString) {
        let mut wrong = self.wrong.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        wrong.get_or_insert_with(|| problem.to_string());
        self.is_over.store(true, Ordering::Relaxed);
    }

    /// Waits until as many decisions are due as were made.
    fn pace(&self, start: Instant, made: u64) {
        let due = Duration::from_micros(made.saturating_mul(1_000_000) / self.rate);
        // Nobody unparks it; should somebody, it only asks earlier.
        thread::park_timeout(due.saturating_sub(start.elapsed()));
    }
}

#[expect(clippy::disallowed_methods, reason = "the daemon keeps its own time")]
fn now() -> Instant {
    Instant::now()
}

fn soak(program: &Path, folder: &Path, length: Duration, rate: u64) -> Result<String, String> {
    let policy = folder.join("policy.yaml");
    write_policy(&policy, 0).map_err(|error| error.to_string())?;
    let daemon = Daemon::start(program, &policy).map_err(|error| error.to_string())?;
    let load = Load {
        decisions: AtomicU64::new(0),
        is_over: AtomicBool::new(false),
        wrong: Mutex::new(None),
        rate: rate.div_ceil(3),
    };
    let mut resident = Vec::new();
    thread::scope(|scope| {
        for seed in 0..2 {
            scope.spawn({
                let (load, daemon) = (&load, &daemon);
                move || ask_redis(load, &daemon.resp, seed)
            });
        }
        scope.spawn(|| ask_http(&load, &daemon.http));
        scope.spawn(|| vanish(&load, [&daemon.resp, &daemon.http]));
        let start = now();
        let mut changes = 0;
        while load.goes_on() && start.elapsed() < length {
            changes += 1;
            let taken = write_policy(&policy, changes).and_then(|()| daemon.resident_kib());
            match taken {
                Ok(kib) => resident.push(kib),
                Err(error) => load.tell(&error),
            }
            let (seconds, kib) = (start.elapsed().as_secs(), resident.last().unwrap_or(&0));
            let (files, made) = (daemon.descriptors(), load.decisions.load(Ordering::Relaxed));
            println!("{seconds:>5} s  {kib:>7} KiB  {files:>4} files  {made:>11} decisions");
            while load.goes_on() && start.elapsed() < (TICK * changes).min(length) {
                thread::park_timeout(Duration::from_millis(100));
            }
        }
        load.is_over.store(true, Ordering::Relaxed);
    });
    if let Some(problem) =
        load.wrong.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take()
    {
        return Err(problem);
    }
    judge(&resident, load.decisions.load(Ordering::Relaxed))
}

/// Flat from the first third on: by then every key of the window has been asked for.
fn judge(resident: &[u64], decisions: u64) -> Result<String, String> {
    let late = &resident[resident.len() / 3..];
    let (Some(first), Some(last)) = (late.first(), late.last()) else {
        return Err("too short to say anything".into());
    };
    let most = late.iter().max().copied().unwrap_or_default();
    let told = format!(
        "{decisions} decisions; {first} KiB after a third, {last} KiB in the end, {most} KiB at most"
    );
    if most > first + first / 50 + SLACK_KIB {
        Err(format!("memory grows: {told}"))
    } else {
        Ok(told)
    }
}

/// Another rate each time; now and then a file that cannot be used, which must change nothing.
fn write_policy(path: &Path, change: u32) -> io::Result<()> {
    let rate = 1_000 + change % 7;
    let text = match change % 5 {
        4 => "domain: [".to_owned(),
        _ => format!(
            "domain: soak\ndescriptors:\n  - key: user\n    limits:\n      \
             - {{name: fast, rate: {rate}/s}}\n      \
             - {{name: day, rate: 100000/day, algorithm: sliding_window}}\n"
        ),
    };
    let new = path.with_extension("new");
    fs::write(&new, text)?;
    fs::rename(new, path)
}

fn connect(address: &str) -> io::Result<TcpStream> {
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.set_nodelay(true)?;
    Ok(socket)
}

/// A key of the window that moves on by itself.
fn key(rng: &mut Rng, made: u64) -> u64 {
    made / 2 + rng.u64(..KEYS)
}

fn ask_redis(load: &Load, address: &str, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let (start, mut made) = (now(), 0);
    while load.goes_on() {
        let connection = connect(address).and_then(|socket| {
            for _ in 0..rng.u32(1..200) {
                made += ask_batch(&socket, &mut rng, made)?;
                load.decisions.fetch_add(BATCH, Ordering::Relaxed);
                load.pace(start, made);
            }
            Ok(())
        });
        if let Err(error) = connection {
            load.tell(&format!("RESP: {error}"));
        }
    }
}

fn ask_batch(mut socket: &TcpStream, rng: &mut Rng, made: u64) -> io::Result<u64> {
    let mut batch = String::new();
    for number in 0..BATCH {
        let key = key(rng, made);
        batch += &match number % 2 {
            0 => format!("CL.THROTTLE k{key} 15 30 60\r\n"),
            _ => format!("TG.CHECK soak user u{key}\r\n"),
        };
    }
    socket.write_all(batch.as_bytes())?;
    let mut lines = BufReader::new(socket).lines();
    for number in 0..BATCH {
        let head = lines.next().ok_or(io::ErrorKind::UnexpectedEof)??;
        // The name of a limit is a line for its length and one for itself.
        let expected = if number % 2 == 0 { ("*5", 5) } else { ("*6", 7) };
        if head != expected.0 {
            return Err(io::Error::other(format!("answered {head:?}")));
        }
        for _ in 0..expected.1 {
            lines.next().ok_or(io::ErrorKind::UnexpectedEof)??;
        }
    }
    Ok(BATCH)
}

fn ask_http(load: &Load, address: &str) {
    let mut rng = Rng::with_seed(7);
    let (start, mut made) = (now(), 0);
    while load.goes_on() {
        let connection = connect(address).and_then(|socket| {
            for _ in 0..rng.u32(1..1_000) {
                let key = key(&mut rng, made);
                let body = format!("{{\"key\":\"h{key}\",\"rate\":\"100/60s\"}}");
                ask_once(&socket, &body)?;
                made += 1;
                load.decisions.fetch_add(1, Ordering::Relaxed);
                load.pace(start, made);
            }
            Ok(())
        });
        if let Err(error) = connection {
            load.tell(&format!("HTTP: {error}"));
        }
    }
}

fn ask_once(mut socket: &TcpStream, body: &str) -> io::Result<()> {
    let length = body.len();
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    socket.write_all(request.as_bytes())?;
    let mut reader = BufReader::new(socket);
    let mut line = String::new();
    reader.read_line(&mut line)?;
    if !line.starts_with("HTTP/1.1 200") && !line.starts_with("HTTP/1.1 429") {
        return Err(io::Error::other(format!("answered {line:?}")));
    }
    let mut length = 0;
    loop {
        line.clear();
        reader.read_line(&mut line)?;
        if line == "\r\n" || line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)
}

/// Clients that begin something and go.
fn vanish(load: &Load, addresses: [&str; 2]) {
    let mut rng = Rng::with_seed(9);
    let beginnings: [&[u8]; 4] =
        [b"", b"*5\r\n$11\r\nCL.TH", b"CL.THROTTLE v 1 1 1\r\n", b"POST /v1/check HTTP/1.1\r\ncon"];
    while load.goes_on() {
        let address = addresses[rng.usize(..addresses.len())];
        match connect(address) {
            // That nobody reads on is their own wish.
            Ok(mut socket) => drop(socket.write_all(beginnings[rng.usize(..beginnings.len())])),
            Err(error) => load.tell(&format!("a new client: {error}")),
        }
        thread::park_timeout(Duration::from_millis(20));
    }
}
