//! The Redis protocol.
//!
//! ```text
//!   bytes ──frame.rs──▶ words ──command.rs──▶ throttle.rs, policy.rs ──reply.rs──▶ bytes
//! ```
//!
//! # Memory
//! Connections of a thread share one read buffer, in which requests are parsed in place; the
//! answers of all requests that were read together leave in one write. A connection owns memory
//! only for a partial request, or while its peer does not read.
//!
//! # Bounds
//! `frame.rs` bounds a request. A connection with more than [`MAX_TURN`] of work executes that
//! much, then waits until the other connections of its thread have had a turn. While answers wait
//! for the peer, nothing is read; they are at most [`MAX_ANSWERS`] bytes and those of one more
//! request. At most [`MAX_PENDING`] requests of a connection wait for a remote store; a transaction
//! counts as one of them.

mod command;
mod connection;
mod decision;
mod frame;
#[cfg(feature = "fuzzing")]
mod fuzzing;
mod lease;
mod policy;
mod reply;
mod settle;
mod throttle;
mod transaction;

use std::cell::RefCell;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::stream::{FuturesOrdered, StreamExt};
use tidegate::Timestamp;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, ReadBuf};
use tokio::time::{Interval, MissedTickBehavior, interval, timeout};

use self::command::{After, Session, Step};
use self::decision::{RemoteCommand, StoreCommand};
use self::frame::{Frame, WordRanges, Words};
use super::Stream;
use crate::runtime::turns::Turn;
use crate::runtime::worker::ConnContext;

#[cfg(feature = "fuzzing")]
pub(crate) use self::fuzzing::try_bytes;

/// The most bytes read at once.
const MAX_READ: usize = 16 << 10;

/// The work that a connection does in one turn: each request counts one, and one more for every
/// [`BYTES_PER_WORK`] of it and of its answer. Tens of microseconds; a pipeline of usual depth fits
/// into one turn.
const MAX_TURN: usize = 128;
const BYTES_PER_WORK: usize = 128;

/// The work that a connection does without waiting for a turn.
const MAX_FREE: usize = 32;

/// Execution pauses while more bytes of answers than this have not been sent.
const MAX_ANSWERS: usize = 256 << 10;

/// The most requests of one connection that wait for the store. They are sent together.
const MAX_PENDING: usize = 128;

/// How long a peer has to close its side after this side is closed. Closing while it still sends
/// could discard answers in transit.
const CLOSE_TIME: Duration = Duration::from_millis(250);

/// Buffers that the connections of a thread share; none is held across a wait.
struct SharedBuffers {
    read: Box<[u8]>,
    answers: Vec<u8>,
    places: WordRanges,
}

thread_local! {
    static BUFFERS: RefCell<SharedBuffers> = RefCell::new(SharedBuffers {
        read: vec![0; MAX_READ].into(),
        answers: Vec::with_capacity(MAX_READ),
        places: WordRanges::default(),
    });
}

/// The state of one connection.
struct RespConnection {
    socket: Stream,
    session: Session,
    /// Pending answers of the store, and answers that must follow them.
    pending_answers: FuturesOrdered<BoxFuture<'static, Vec<u8>>>,
    /// Bytes that are not yet executed: part of a request, or requests that wait for the peer.
    pending: Vec<u8>,
    /// Answers that the peer has not taken yet.
    unsent: Vec<u8>,
    /// Whether a request was completed since the last tick.
    was_active: bool,
    /// Number of ticks without one.
    quiet: u32,
    /// The most such ticks.
    most_quiet: u32,
    /// Number of ticks in which a request or its answer made no progress.
    stuck: u32,
    ticks: Interval,
    after: After,
    /// Whether `pending` has a complete request that waits for the peer, the store or the next
    /// turn.
    is_held_back: bool,
    /// Work done in this turn.
    work: usize,
    /// The turn, if there was too much work for one; or the wait for the next.
    turn: Option<Turn>,
    next_turn: Option<BoxFuture<'static, Turn>>,
    /// Whether to end as soon as no more bytes arrive.
    is_stopping: bool,
}

/// Serves a connection until either side ends it.
pub(crate) async fn converse(socket: Stream, context: ConnContext) {
    static NEXT: AtomicI64 = AtomicI64::new(1);
    let ConnContext { service, settings, mut stopped, .. } = context;
    // The resolution that `stuck_after` needs.
    let tick = settings.stuck_after.min(settings.idle_after).max(Duration::from_millis(1));
    let mut ticks = interval(tick);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut connection = RespConnection {
        socket,
        session: Session::new(
            service.untimed(),
            Arc::clone(&settings),
            NEXT.fetch_add(1, Ordering::Relaxed),
        ),
        pending_answers: FuturesOrdered::new(),
        pending: Vec::new(),
        unsent: Vec::new(),
        // The first tick fires at once.
        was_active: true,
        quiet: 0,
        stuck: 0,
        most_quiet: u32::try_from(settings.idle_after.as_millis() / tick.as_millis())
            .unwrap_or(u32::MAX),
        ticks,
        after: After::Stay,
        is_held_back: false,
        work: 0,
        turn: None,
        next_turn: None,
        is_stopping: false,
    };
    let ended = tokio::select! {
        biased;
        ended = connection.run() => Some(ended),
        _ = stopped.wait_for(|stopped| *stopped) => None,
    };
    connection.is_stopping = ended.is_none();
    let ended = match ended {
        Some(ended) => ended,
        // Requests that have arrived are answered before the connection ends.
        None => connection.run().await,
    };
    if ended.is_ok() {
        connection.close().await;
    }
}

/// Ends a turn, if there was one, and waits for the next.
async fn next_turn(turn: Option<Turn>) -> Turn {
    if let Some(turn) = turn {
        turn.end().await;
    }
    Turn::next().await
}

impl RespConnection {
    /// Reads and answers until the peer closes, quits, or is idle for too long.
    async fn run(&mut self) -> io::Result<()> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        BUFFERS.with_borrow_mut(|buffers| {
            if let Some(next) = &mut self.next_turn {
                self.turn = Some(ready!(next.poll_unpin(context)));
                self.next_turn = None;
            }
            self.work = 0;
            loop {
                if self.is_over() {
                    let turn = self.turn.take();
                    let mut next = next_turn(turn).boxed();
                    let Poll::Ready(turn) = next.poll_unpin(context) else {
                        self.next_turn = Some(next);
                        return Poll::Pending;
                    };
                    (self.turn, self.work) = (Some(turn), 0);
                }
                match self.step(context, buffers) {
                    Poll::Ready(Ok(true)) => {}
                    Poll::Ready(Ok(false)) => return Poll::Ready(Ok(())),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending if self.is_stopping && self.owes_nothing() => {
                        return Poll::Ready(Ok(()));
                    }
                    Poll::Pending => {
                        self.turn = None;
                        return self.poll_idle(context);
                    }
                }
            }
        })
    }

    /// Whether the rest has to wait for the next turn.
    const fn is_over(&self) -> bool {
        self.work >= if self.turn.is_some() { MAX_TURN } else { MAX_FREE }
    }

    fn owes_nothing(&self) -> bool {
        self.unsent.is_empty() && self.pending_answers.is_empty()
    }

    /// Makes progress; false if there is nothing to do.
    fn step(
        &mut self,
        context: &mut Context<'_>,
        buffers: &mut SharedBuffers,
    ) -> Poll<io::Result<bool>> {
        if !self.unsent.is_empty() {
            return self.poll_send(context).map_ok(|()| true);
        }
        if !self.pending_answers.is_empty() {
            buffers.answers.clear();
            self.collect(context, &mut buffers.answers);
            if !buffers.answers.is_empty() || self.pending_answers.is_empty() {
                return self.send(context, &buffers.answers).map_ok(|()| true);
            }
        }
        match self.after {
            After::Leave if self.pending_answers.is_empty() => Poll::Ready(Ok(false)),
            After::Leave => Poll::Pending,
            // The next answer wakes the task.
            After::Stay if self.pending_answers.len() >= MAX_PENDING => Poll::Pending,
            After::Stay => self.poll_receive(context, buffers),
        }
    }

    /// Collects the store's answers in the order of the requests.
    fn collect(&mut self, context: &mut Context<'_>, answers: &mut Vec<u8>) {
        while answers.len() < MAX_ANSWERS
            && let Poll::Ready(Some(answer)) = self.pending_answers.poll_next_unpin(context)
        {
            answers.extend_from_slice(&answer);
            self.was_active = true;
        }
    }

    /// Reads once, executes complete requests, and sends the answers. False at the end.
    fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        buffers: &mut SharedBuffers,
    ) -> Poll<io::Result<bool>> {
        let SharedBuffers { read, answers, places } = buffers;
        answers.clear();
        let mut pending = std::mem::take(&mut self.pending);
        // Requests that had to wait for the peer go first.
        if self.is_held_back {
            let done = self.carry_out(&pending, answers, places);
            pending.drain(..done);
        }
        if answers.is_empty() && self.after == After::Stay && !self.is_held_back {
            let mut buffer = ReadBuf::new(read);
            match Pin::new(&mut self.socket).poll_read(context, &mut buffer) {
                Poll::Ready(Ok(())) => {}
                other => {
                    self.pending = pending;
                    return other.map_ok(|()| true);
                }
            }
            let came = buffer.filled();
            if came.is_empty() {
                // The peer may still read its answers.
                self.after = After::Leave;
                return Poll::Ready(Ok(true));
            }
            if pending.is_empty() {
                let done = self.carry_out(came, answers, places);
                pending.extend_from_slice(&came[done..]);
            } else {
                pending.extend_from_slice(came);
                let done = self.carry_out(&pending, answers, places);
                pending.drain(..done);
            }
        }
        if pending.is_empty() {
            // Frees the memory, because most clients never send a partial request again.
            pending = Vec::new();
        }
        self.pending = pending;
        self.send(context, answers).map(|sent| sent.map(|()| true))
    }

    /// Executes complete requests, and returns their length in bytes.
    fn carry_out(&mut self, input: &[u8], answers: &mut Vec<u8>, places: &mut WordRanges) -> usize {
        let (now, decided) = (self.session.service.now(), self.session.service.decided());
        let mut done = 0;
        self.is_held_back = false;
        while self.after == After::Stay {
            if answers.len() >= MAX_ANSWERS
                || self.pending_answers.len() >= MAX_PENDING
                || self.is_over()
            {
                self.is_held_back = true;
                break;
            }
            let rest = &input[done..];
            match frame::read(rest, places) {
                Frame::Complete(length) => {
                    let request = &rest[..length];
                    let before = answers.len();
                    self.answer(now, &Words::new(request, places), request, answers);
                    self.was_active = true;
                    self.work += 1 + (length + answers.len() - before) / BYTES_PER_WORK;
                    done += length;
                }
                Frame::Part => break,
                Frame::Broken(broken) => {
                    let text = format!("ERR Protocol error: {}", broken.message());
                    let protocol = self.session.protocol;
                    self.put(answers, |bytes| reply::Replies { bytes, protocol }.error(text));
                    self.after = After::Leave;
                }
            }
        }
        self.session.service.time_together(now, decided);
        if self.after == After::Leave { input.len() } else { done }
    }

    /// Answers a request, or queues it for the store.
    fn answer(&mut self, now: Timestamp, words: &Words<'_>, request: &[u8], answers: &mut Vec<u8>) {
        let mut aside = Vec::new();
        // Pending answers of the store come first.
        let bytes = if self.pending_answers.is_empty() { answers } else { &mut aside };
        let step = self.session.execute(now, words, bytes);
        let is_silent = self.session.is_silent();
        match step {
            Step::Done(after) => self.after = after,
            Step::Ask(store_command) => {
                let answer = self.remote_command(now, store_command, request).run().boxed();
                self.await_answer(answer, is_silent);
            }
            Step::Exec(transaction) => {
                let (is_open, store_command) = (self.session.is_open, StoreCommand::Cell);
                let answer = transaction
                    .run(self.remote_command(now, store_command, request), is_open)
                    .boxed();
                self.await_answer(answer, is_silent);
            }
        }
        if !aside.is_empty() {
            self.pending_answers.push_back(std::future::ready(aside).boxed());
        }
    }

    fn remote_command(
        &self,
        now: Timestamp,
        store_command: StoreCommand,
        request: &[u8],
    ) -> RemoteCommand {
        let (service, protocol) = (self.session.service.timing_each(), self.session.protocol);
        RemoteCommand { service, now, store_command, protocol, frame: request.into() }
    }

    /// Queues an answer of the store, unless the client disabled replies.
    fn await_answer(&mut self, answer: BoxFuture<'static, Vec<u8>>, is_silent: bool) {
        self.pending_answers.push_back(match is_silent {
            true => answer.map(|_| Vec::new()).boxed(),
            false => answer,
        });
    }

    /// Writes an answer after the pending answers of the store.
    fn put(&mut self, answers: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
        if self.pending_answers.is_empty() {
            return write(answers);
        }
        let mut aside = Vec::new();
        write(&mut aside);
        self.pending_answers.push_back(std::future::ready(aside).boxed());
    }

    /// Sends as much as the peer takes at once; buffers the rest.
    fn send(&mut self, context: &mut Context<'_>, answers: &[u8]) -> Poll<io::Result<()>> {
        if answers.is_empty() {
            return Poll::Ready(Ok(()));
        }
        let sent = match Pin::new(&mut self.socket).poll_write(context, answers) {
            Poll::Ready(sent) => sent?,
            Poll::Pending => 0,
        };
        self.unsent.extend_from_slice(&answers[sent..]);
        Poll::Ready(Ok(()))
    }

    fn poll_send(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut sent = 0;
        while sent < self.unsent.len() {
            match Pin::new(&mut self.socket).poll_write(context, &self.unsent[sent..]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(more)) => sent += more,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.unsent.drain(..sent);
                    return Poll::Pending;
                }
            }
        }
        self.unsent = Vec::new();
        self.was_active = true;
        Poll::Ready(Ok(()))
    }

    /// Times out a peer that has completed nothing for too long: neither sending nor reading a byte
    /// now and then keeps a connection open.
    fn poll_idle(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.ticks.poll_tick(context).is_ready() {
            let was_active = std::mem::take(&mut self.was_active);
            let is_stuck = !self.pending.is_empty() || !self.unsent.is_empty();
            self.quiet = if was_active { 0 } else { self.quiet.saturating_add(1) };
            self.stuck = if was_active || !is_stuck { 0 } else { self.stuck + 1 };
            // A request that is stuck at one tick may have begun just before it.
            if self.stuck > 1 || self.quiet >= self.most_quiet {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        Poll::Pending
    }

    /// Sends the rest, closes this side, and gives the peer a moment to close its own.
    async fn close(mut self) {
        let unsent = std::mem::take(&mut self.unsent);
        let (mut socket, idle_after) = (self.socket, self.ticks.period());
        let close = async {
            socket.write_all(&unsent).await?;
            socket.shutdown().await
        };
        if !matches!(timeout(idle_after, close).await, Ok(Ok(()))) {
            return;
        }
        let mut ignored = [0; 512];
        let read_on = async { while matches!(socket.read(&mut ignored).await, Ok(1..)) {} };
        let _ = timeout(CLOSE_TIME, read_on).await;
    }
}

#[cfg(test)]
#[path = "resp_tests.rs"]
mod tests;
