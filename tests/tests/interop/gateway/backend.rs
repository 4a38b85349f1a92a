//! A service in Node.js that notes every request.

use std::collections::HashMap;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use tidegate_tests::http::get;
use tidegate_tests::servers::{Folder, Process, by_debian, free_port, wait_until};

use super::TIMEOUT;

/// A running service.
pub(super) struct Backend {
    process: Process,
    folder: Folder,
    pub(super) address: SocketAddr,
}

impl Backend {
    pub(super) fn start() -> Self {
        let folder = Folder::create();
        let address: SocketAddr = ([127, 0, 0, 1], free_port()).into();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/gateway/backend.js");
        let log = folder.path().join("requests");
        let arguments =
            [script.display().to_string(), address.port().to_string(), log.display().to_string()];
        let process = Process::start(&by_debian("node"), &arguments, &[], &folder);
        wait_until("Node.js listens", TIMEOUT, || TcpStream::connect(address).is_ok());
        Self { process, folder, address }
    }

    pub(super) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.process.pid()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a pid"), signal).expect("the pid is ours until it is waited for");
    }

    /// Lets it take so long for every further answer.
    pub(super) fn delay(&self, millis: u32) {
        assert_eq!(get(self.address, &format!("/delay?ms={millis}"), "").status, 200);
    }

    /// How often each request has arrived, by method and id.
    pub(super) fn requests(&self) -> HashMap<String, usize> {
        let mut counts = HashMap::new();
        let text = fs::read_to_string(self.folder.path().join("requests")).unwrap_or_default();
        for line in text.lines() {
            *counts.entry(line.to_owned()).or_default() += 1;
        }
        counts
    }
}
