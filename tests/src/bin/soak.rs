//! Runs a daemon under load for a long time: a million keys that change over time, clients of three
//! protocols that connect and disconnect, and a policy that changes every ten seconds. Memory has
//! to stay flat, every change has to take effect, and no answer may be wrong. `cargo xtask soak
//! --minutes 30`; with `--faults`, in front of a Redis that fails once a minute.

#[path = "soak/clients.rs"]
mod clients;
#[path = "soak/daemon.rs"]
mod daemon;
#[path = "soak/faults.rs"]
mod faults;
#[path = "soak/load.rs"]
mod load;
#[path = "soak/reload.rs"]
mod reload;
#[path = "soak/verdict.rs"]
mod verdict;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use daemon::Daemon;
use load::{Load, now};
use reload::Reloads;
use verdict::{Sample, heading};

/// Interval of policy changes and measurements.
const TICK: Duration = Duration::from_secs(10);

/// Number of intervals between two printed lines.
const TOLD_EVERY: u32 = 6;

/// How long files may stay open after their clients have gone.
const CLOSING_TIME: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let wish = match Wish::read() {
        Ok(wish) => wish,
        Err(problem) => {
            eprintln!(
                "{problem}\nusage: soak DAEMON [--minutes N] [--rate DECISIONS_PER_SECOND] \
                 [--faults]"
            );
            return ExitCode::from(2);
        }
    };
    let folder = std::env::temp_dir().join(format!("tidegate-soak-{}", std::process::id()));
    fs::create_dir(&folder).expect("the folder for temporary files can be written");
    let outcome = match wish.has_faults {
        true => faults::soak(&wish.daemon, wish.length, wish.rate),
        false => soak(&wish, &folder),
    };
    // A leftover folder is not a failure.
    let _ = fs::remove_dir_all(&folder);
    match outcome {
        Ok(answer) => {
            println!("{answer}\nsoak passed");
            ExitCode::SUCCESS
        }
        Err(problem) => {
            eprintln!("{problem}\nsoak failed");
            ExitCode::FAILURE
        }
    }
}

/// The options of the run.
struct Wish {
    daemon: PathBuf,
    length: Duration,
    /// Decisions per second.
    rate: u64,
    has_faults: bool,
}

impl Wish {
    fn read() -> Result<Self, String> {
        let mut arguments = std::env::args().skip(1);
        let daemon = arguments.next().ok_or("name the daemon's program")?;
        let (mut minutes, mut rate, mut has_faults) = (30, None, false);
        while let Some(option) = arguments.next() {
            if option == "--faults" {
                has_faults = true;
                continue;
            }
            let value = arguments.next().and_then(|text| text.parse().ok());
            let value = value.filter(|number| *number > 0);
            let value = value.ok_or(format!("{option} takes a number above 0"))?;
            match option.as_str() {
                "--minutes" => minutes = value,
                "--rate" => rate = Some(value),
                _ => return Err(format!("unknown option {option}")),
            }
        }
        // Each decision calls Redis, which shares the machine.
        let rate = rate.unwrap_or(if has_faults { 4_000 } else { 20_000 });
        let length = Duration::from_secs(60 * minutes);
        Ok(Self { daemon: daemon.into(), length, rate, has_faults })
    }
}

fn soak(wish: &Wish, folder: &Path) -> Result<String, String> {
    let policy = folder.join("policy.yaml");
    let mut reloads = Reloads::new(policy.clone()).map_err(|error| error.to_string())?;
    let daemon = Daemon::start(&wish.daemon, &policy).map_err(|error| error.to_string())?;
    // After the first change, the daemon has opened all files that it needs itself.
    reloads.change(&daemon)?;
    let idle_files = daemon.files();
    let load = Load::new(wish.rate);
    let mut samples = Vec::new();
    println!("{}", heading());
    thread::scope(|scope| {
        clients::start(scope, &load, &daemon);
        let start = now();
        let mut tick = 0;
        while load.goes_on() && start.elapsed() < wish.length {
            tick += 1;
            let taken = reloads.change(&daemon).and_then(|()| {
                let seconds = start.elapsed().as_secs();
                Sample::take(&load, &daemon, (&reloads, seconds)).map_err(|it| it.to_string())
            });
            match taken {
                Ok(sample) => samples.push(sample),
                Err(problem) => load.tell(&problem),
            }
            if let Some(sample) = samples.last().filter(|_| tick % TOLD_EVERY == 1) {
                println!("{sample}");
            }
            while load.goes_on() && start.elapsed() < (TICK * tick).min(wish.length) {
                thread::park_timeout(Duration::from_millis(100));
            }
        }
        load.end();
    });
    // All clients are gone, so all their connections must be closed.
    let end = now();
    while daemon.files() > idle_files && end.elapsed() < CLOSING_TIME {
        thread::park_timeout(Duration::from_millis(100));
    }
    let files = (idle_files, daemon.files());
    verdict::judge(&samples, files, &load.wrong())
}
