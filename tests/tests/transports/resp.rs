//! The Redis transport, asked by real clients and by sockets that misbehave.

mod access;
mod bytes;
mod commands;
mod conformance;
mod encryption;
mod life;
mod shared;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::num::NonZeroUsize;
use std::process::Command;
use std::time::Duration;

use tidegate::policy::{Merging, Policy};
use tidegate::{Clock, ManualClock};
use tidegate_server::{RateLimitService, Server, Settings, serve};

/// Far longer than anything here takes; only so that what hangs fails.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A server in this process whose time stands still.
struct Transport {
    server: Server,
    service: RateLimitService,
    clock: ManualClock,
}

fn settings() -> Settings {
    let threads = NonZeroUsize::new(2).expect("not zero");
    let resp = Some(([127, 0, 0, 1], 0).into());
    Settings { resp, threads, drain: TIMEOUT, ..Settings::default() }
}

impl Transport {
    fn open() -> Self {
        Self::with(&settings())
    }

    fn with(settings: &Settings) -> Self {
        let clock = ManualClock::new();
        let service = RateLimitService::with_clock(Clock::from(clock.clone())).expect("memory");
        let server = serve(settings, &service).unwrap_or_else(|error| panic!("{error}"));
        Self { server, service, clock }
    }

    fn address(&self) -> SocketAddr {
        self.server.resp().expect("asked for")
    }

    fn load(&self, policy: &str) {
        let loaded = Policy::load(&[("policy.yaml", policy)], Merging::Refuse);
        self.service.replace(loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings)));
    }

    fn connect(&self) -> TcpStream {
        let socket = TcpStream::connect(self.address()).expect("it listens");
        socket.set_read_timeout(Some(TIMEOUT)).expect("not zero");
        socket.set_write_timeout(Some(TIMEOUT)).expect("not zero");
        socket
    }

    fn client(&self) -> redis::Connection {
        self.client_of("")
    }

    fn client_of(&self, options: &str) -> redis::Connection {
        let client = redis::Client::open(format!("redis://{}/{options}", self.address()));
        let client = client.expect("a sound address");
        client.get_connection().unwrap_or_else(|error| panic!("{error}"))
    }

    /// What redis-cli prints for a command.
    fn cli(&self, arguments: &[&str]) -> String {
        let port = self.address().port().to_string();
        let output = Command::new("redis-cli").args(["-p", &port]).args(arguments).output();
        String::from_utf8_lossy(&output.expect("redis-cli is installed").stdout)
            .trim_end()
            .replace('\n', " ")
    }

    /// Everything that is answered to these bytes before the server closes.
    fn tell(&self, bytes: &[u8]) -> String {
        let mut socket = self.connect();
        socket.write_all(bytes).expect("it reads");
        socket.shutdown(std::net::Shutdown::Write).expect("it is open");
        let mut answer = Vec::new();
        socket.read_to_end(&mut answer).expect("it answers");
        String::from_utf8(answer).expect("text")
    }
}

fn words(text: &str) -> redis::Cmd {
    let mut words = text.split(' ');
    let mut command = redis::cmd(words.next().unwrap_or_default());
    words.for_each(|word| {
        command.arg(word);
    });
    command
}

/// What a client makes of the answer: its numbers, or the text of the error.
fn numbers(client: &mut redis::Connection, text: &str) -> Result<Vec<i64>, String> {
    words(text).query(client).map_err(|error| error.to_string())
}
