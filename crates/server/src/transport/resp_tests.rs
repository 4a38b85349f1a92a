use std::io::Write as _;

use tokio::net::UnixStream;
use tokio::sync::watch;

use super::*;
use crate::service::RateLimitService;
use crate::settings::Settings;

/// A thousand commands arrive at once; another task that is ready runs after a bounded number
/// of them.
#[test]
fn a_pipeline_yields_the_thread_to_other_tasks() {
    const COMMANDS: u64 = 1_000;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let command = "CL.THROTTLE key 99999 99999 60\r\n".repeat(COMMANDS as usize);
        (&theirs).write_all(command.as_bytes()).unwrap();
        let service = RateLimitService::new().unwrap();
        let (_stop, stopped) = watch::channel(false);
        let context = ConnContext {
            client: None,
            service: service.clone(),
            settings: Arc::new(Settings::default()),
            stopped,
            budget: crate::transport::http2::Budget::new(),
            pools: None,
        };
        let stream = Stream::Unix(UnixStream::from_std(ours).unwrap());
        let decided = || service.status().listener(crate::transport::Protocol::Http).allowed;
        let connection = tokio::spawn(converse(stream, context));
        // The number of decisions at each turn of the other task, from the first decision on.
        let (mut last, mut most) = (0, 0);
        while last < COMMANDS {
            tokio::task::yield_now().await;
            let now = decided();
            most = most.max(now - last);
            last = now;
        }
        assert!(most <= (MAX_FREE + MAX_TURN) as u64, "{most} commands in one turn");
        connection.abort();
    });
}
