//! Checks the program's tokio runtime.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::sleep;

use crate::store::{Misconfigured, StoreError};

/// Fails outside a tokio runtime, and in a runtime without a timer: without deadlines, a request
/// would wait for a silent server for ever.
pub(super) fn check() -> Result<(), StoreError> {
    let lacks = |what| Err(StoreError::misconfigured(Misconfigured::Runtime, what));
    if Handle::try_current().is_err() {
        return lacks("the program connects outside a tokio runtime");
    }
    // tokio does not report whether there is a timer; it panics when one is used.
    match catch_unwind(AssertUnwindSafe(|| drop(sleep(Duration::ZERO)))) {
        Ok(()) => Ok(()),
        Err(_) => lacks("the tokio runtime of the program has no timer"),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use tokio::runtime::Builder;

    use crate::store::redis::{RedisConfig, RedisStore};

    fn config() -> RedisConfig {
        RedisConfig::new("redis://127.0.0.1:1").unwrap()
    }

    #[test]
    fn a_runtime_without_a_timer_is_refused() {
        for mut builder in [Builder::new_current_thread(), Builder::new_multi_thread()] {
            let runtime = builder.enable_io().build().unwrap();
            let (tell, told) = mpsc::channel();
            thread::spawn(move || {
                let connected = runtime.block_on(RedisStore::connect(config())).map(drop);
                tell.send(connected).expect("the test waits");
            });
            // Without a timer nothing else would end the wait.
            let connected = told.recv_timeout(Duration::from_secs(60)).expect("an answer");
            let error = connected.unwrap_err();
            assert!(error.to_string().contains("has no timer; build it with"), "{error}");
            assert!(!error.is_outage());
        }
    }

    #[test]
    fn a_program_without_a_runtime_is_refused() {
        let mut connecting = std::pin::pin!(RedisStore::connect(config()));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        let std::task::Poll::Ready(Err(error)) = connecting.as_mut().poll(&mut context) else {
            panic!("it waits for a server");
        };
        assert!(error.to_string().contains("outside a tokio runtime"), "{error}");
    }
}
