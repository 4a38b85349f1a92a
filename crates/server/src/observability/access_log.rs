//! The access log: one line on standard output for each request to the gateway.
//!
//! The thread that emits an event of `log.rs` also writes it, and waits while standard error is
//! blocked. Lines of this log go into a buffer that a separate thread writes.
//!
//! # Bounds
//! The buffer has at most [`MAX_BUFFER`] bytes; lines that do not fit are dropped and counted.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

/// Maximum number of bytes that wait to be written.
const MAX_BUFFER: usize = 4 << 20;

/// How long a line waits before it is written, unless the buffer fills faster.
const INTERVAL: Duration = Duration::from_millis(100);

/// How long the end of the process waits for the last lines.
const LAST: Duration = Duration::from_secs(1);

/// The buffer of an access log. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct AccessLog(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// Notified when many bytes wait, when no more lines come, and when all lines are written.
    changed: Condvar,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct Waiting {
    bytes: Vec<u8>,
    lines: u64,
    /// The process ends, and no more lines come.
    is_over: bool,
    /// The last lines are written.
    is_done: bool,
}

impl AccessLog {
    /// Starts the thread that writes to standard output.
    pub(crate) fn start() -> io::Result<Self> {
        Self::to(io::stdout())
    }

    fn to(out: impl Write + Send + 'static) -> io::Result<Self> {
        let log = Self(Arc::default());
        let own = log.clone();
        thread::Builder::new().name("tidegate-access".into()).spawn(move || own.0.write_to(out))?;
        Ok(log)
    }

    /// Adds a line, including its line end. Never waits.
    pub(crate) fn push(&self, line: &[u8]) {
        let mut waiting = self.0.lock();
        if waiting.bytes.len() + line.len() > MAX_BUFFER || waiting.is_over {
            self.0.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let before = waiting.bytes.len();
        waiting.bytes.extend_from_slice(line);
        waiting.lines += 1;
        if before < MAX_BUFFER / 2 && waiting.bytes.len() >= MAX_BUFFER / 2 {
            self.0.changed.notify_all();
        }
    }

    /// Number of lines that were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.0.dropped.load(Ordering::Relaxed)
    }

    /// Writes the last lines, or gives up after a second.
    pub(crate) fn finish(&self) {
        let mut waiting = self.0.lock();
        waiting.is_over = true;
        self.0.changed.notify_all();
        drop(self.0.changed.wait_timeout_while(waiting, LAST, |waiting| !waiting.is_done));
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_to(&self, mut out: impl Write) {
        let mut bytes = Vec::new();
        loop {
            let waiting = self.lock();
            let is_quiet =
                |waiting: &mut Waiting| waiting.bytes.len() < MAX_BUFFER / 2 && !waiting.is_over;
            let waited = self.changed.wait_timeout_while(waiting, INTERVAL, is_quiet);
            let (mut waiting, _) = waited.unwrap_or_else(PoisonError::into_inner);
            std::mem::swap(&mut waiting.bytes, &mut bytes);
            let (lines, is_over) = (std::mem::take(&mut waiting.lines), waiting.is_over);
            drop(waiting);
            if !bytes.is_empty() && out.write_all(&bytes).and_then(|()| out.flush()).is_err() {
                // The reader has closed standard output: lines are lost, and requests continue.
                self.dropped.fetch_add(lines, Ordering::Relaxed);
            }
            bytes.clear();
            if is_over {
                self.lock().is_done = true;
                self.changed.notify_all();
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// A reader that accepts one piece at a time.
    struct Slow(mpsc::SyncSender<Vec<u8>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.send(bytes.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe)?;
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// While the reader does not read, lines are dropped and counted, and no call waits.
    #[test]
    fn a_reader_that_stops_costs_lines_and_holds_nothing_up() {
        let (writer, reader) = mpsc::sync_channel(0);
        let log = AccessLog::to(Slow(writer)).unwrap();
        let line = [b'a'; 1_024];
        for _ in 0..20_000 {
            log.push(&line);
        }
        assert!(log.dropped() >= 20_000 - 2 * (MAX_BUFFER / 1_024) as u64, "{}", log.dropped());
        let mut read = reader.recv().unwrap().len();
        let finishing = log.clone();
        let finished = thread::spawn(move || finishing.finish());
        while let Ok(piece) = reader.recv() {
            read += piece.len();
        }
        finished.join().unwrap();
        assert_eq!(read / 1_024 + usize::try_from(log.dropped()).unwrap(), 20_000);
    }

    #[test]
    fn lines_that_cannot_be_written_are_counted() {
        let (writer, reader) = mpsc::sync_channel(0);
        drop(reader);
        let log = AccessLog::to(Slow(writer)).unwrap();
        log.push(b"line\n");
        log.finish();
        assert_eq!(log.dropped(), 1);
    }
}
