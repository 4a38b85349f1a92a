//! A wall clock that a test can step while the server runs, by libfaketime.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;

use super::folder::Folder;
use super::server::{ANSWER_LIMIT, RedisServer};
use super::waiting::{comes_true, now};

/// The path of the library in Debian; the loader expands `$LIB`. The program `faketime` fails now
/// and then: it refuses to run where a killed process with its number has left shared memory.
const LIBRARY: &str = "/usr/$LIB/faketime/libfaketimeMT.so.1";

/// The file with the offset of the server's wall clock.
#[derive(Debug)]
pub(crate) struct FakeClock {
    file: PathBuf,
    offset: Mutex<i64>,
}

impl FakeClock {
    pub(crate) fn create(folder: &Folder) -> Self {
        let clock = Self { file: folder.file("clock"), offset: Mutex::new(0) };
        clock.step(0);
        clock
    }

    /// The variables that make a process use this clock.
    pub(crate) fn variables(&self) -> Vec<(String, String)> {
        let file = self.file.display().to_string();
        let variables = [
            // jemalloc reads the time before libfaketime is ready, and both wait forever. The
            // allocator of libc, loaded first, is used instead; this library only forwards to it.
            ("LD_PRELOAD", format!("libc_malloc_debug.so.0 {LIBRARY}")),
            ("FAKETIME_TIMESTAMP_FILE", file),
            // Read at every use, so that a step takes effect at once.
            ("FAKETIME_NO_CACHE", "1".into()),
            // A step of the wall clock is not a step of the monotonic clock of timers.
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
            ("DONT_FAKE_MONOTONIC", "1".into()),
        ];
        variables.map(|(name, value)| (name.to_owned(), value)).into()
    }

    pub(crate) fn step(&self, seconds: i64) {
        let mut offset = self.offset.lock().expect("no thread panics while stepping");
        *offset += seconds;
        // Renamed into place, because the server may read at any moment.
        let draft = self.file.with_extension("draft");
        fs::write(&draft, format!("{offset:+}")).expect("the folder can be written");
        fs::rename(&draft, &self.file).expect("the folder can be written");
    }
}

impl RedisServer {
    /// Steps the wall clock of a server built with [`faketime`](super::Builder::faketime), and
    /// returns when the server has seen the step. Steps add up.
    pub fn step_clock(&self, seconds: i64) {
        let Some(clock) = self.clock() else { panic!("it was started without faketime") };
        if seconds == 0 {
            return;
        }
        let expected = |at: f64| at + seconds as f64;
        let (start, before) = (now(), self.wall_clock());
        clock.step(seconds);
        let seen = comes_true(ANSWER_LIMIT, || {
            let unmoved = self.wall_clock() - start.elapsed().as_secs_f64();
            (unmoved - expected(before)).abs() < seconds.abs() as f64 / 2.0
        });
        if !seen {
            self.panic(&format!("its clock did not move by {seconds} s"));
        }
    }

    /// The server's `TIME`, in seconds.
    fn wall_clock(&self) -> f64 {
        let (seconds, micros): (f64, f64) =
            redis::from_redis_value(self.command(&["TIME"])).expect("TIME answers two numbers");
        seconds + micros / 1e6
    }
}
