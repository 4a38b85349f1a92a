//! A Redis server for the examples, stopped after them.

use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

use crate::step::Failure;

/// Maximum number of attempts to reach the server; each takes at most its timeout.
const ATTEMPTS: u32 = 200;

/// A server on a free port of this machine, without persistence.
pub(crate) struct Throwaway {
    server: Child,
    port: u16,
}

impl Throwaway {
    pub(crate) fn start() -> Result<Self, Failure> {
        let failed = |why: &dyn std::fmt::Display| Failure::new(format!("redis-server: {why}"));
        let free = TcpListener::bind("127.0.0.1:0").and_then(|free| free.local_addr());
        let port = free.map_err(|error| failed(&error))?.port();
        let server = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1"])
            .args(["--save", "", "--appendonly", "no", "--loglevel", "warning"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map_err(|error| failed(&error))?;
        let throwaway = Self { server, port };
        for _ in 0..ATTEMPTS {
            if TcpStream::connect(("127.0.0.1", port)).is_ok() {
                return Ok(throwaway);
            }
            std::thread::park_timeout(std::time::Duration::from_millis(25));
        }
        Err(failed(&"does not answer"))
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }
}

impl Drop for Throwaway {
    fn drop(&mut self) {
        // A server that has ended already is no error.
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}
