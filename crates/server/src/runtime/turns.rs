//! Turns for work that takes longer than a request usually does.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::yield_now;

thread_local! {
    /// The turn of this thread, granted in the order of requests.
    static TURN: Arc<Semaphore> = Arc::new(Semaphore::new(1));
}

/// Permission to do one piece of long work on this thread.
#[derive(Debug)]
pub(crate) struct Turn(#[expect(dead_code, reason = "held")] Option<OwnedSemaphorePermit>);

impl Turn {
    /// Waits for the next turn.
    pub(crate) async fn next() -> Self {
        // The semaphore is never closed.
        Self(TURN.with(Arc::clone).acquire_owned().await.ok())
    }

    /// Ends the turn, after all ready tasks have run and new input was read.
    pub(crate) async fn end(self) {
        yield_now().await;
    }
}

/// Polls a future for the first time in a turn. Later polls need no turn.
pub(crate) async fn in_turn<F: Future>(future: F) -> F::Output {
    let mut future = pin!(future);
    let turn = Turn::next().await;
    let first = poll_fn(|context| Poll::Ready(future.as_mut().poll(context))).await;
    turn.end().await;
    match first {
        Poll::Ready(value) => value,
        Poll::Pending => future.await,
    }
}

/// Requests up to this length count as short.
pub(crate) const SHORT: usize = 4 << 10;

/// Answers a request of this length, in a turn if the request is long.
pub(crate) async fn at_length<F: Future>(length: usize, answer: F) -> F::Output {
    if length <= SHORT { answer.await } else { in_turn(answer).await }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// Ten tasks request long work, and one is ready for short work, which runs before the second
    /// long piece.
    #[test]
    fn short_work_waits_for_one_piece_of_long_work() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let order = Rc::new(RefCell::new(Vec::new()));
        let tasks = tokio::task::LocalSet::new();
        for number in 0..10 {
            let order = Rc::clone(&order);
            tasks.spawn_local(in_turn(async move { order.borrow_mut().push(number) }));
        }
        let short = Rc::clone(&order);
        tasks.spawn_local(async move { short.borrow_mut().push(99) });
        runtime.block_on(tasks);
        let order = order.borrow();
        assert_eq!(order[..2], [0, 99], "{order:?}");
        assert_eq!(order[2..], [1, 2, 3, 4, 5, 6, 7, 8, 9]);
    }
}
