//! A service in Node.js that notes every request.

use std::collections::HashMap;
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use tidegate_tests::http::get;
use tidegate_tests::servers::{Certificates, Folder, Process, by_debian, free_port, wait_until};

use super::TIMEOUT;

/// A running service.
pub(super) struct Backend {
    process: Process,
    folder: Folder,
    speech: Speech,
    pub(super) address: SocketAddr,
}

/// What a service speaks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Speech {
    Http,
    /// HTTP/1.1 over TLS.
    Https,
    H2c,
}

impl Speech {
    const fn scheme(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::H2c => "h2c",
        }
    }
}

impl Backend {
    pub(super) fn start() -> Self {
        Self::speaking(Speech::Http, None)
    }

    /// A service that speaks this, with these certificates if it needs any.
    pub(super) fn speaking(speech: Speech, certificates: Option<&Certificates>) -> Self {
        let folder = Folder::create();
        let address: SocketAddr = ([127, 0, 0, 1], free_port()).into();
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop/gateway/backend.js");
        let log = folder.path().join("requests");
        let mut arguments = vec![
            script.display().to_string(),
            address.port().to_string(),
            log.display().to_string(),
        ];
        arguments.push(speech.scheme().into());
        if let Some(Certificates { server, .. }) = certificates {
            let files = [&server.certificate, &server.key];
            arguments.extend(files.map(|file| file.display().to_string()));
        }
        let process = Process::start(&by_debian("node"), &arguments, &[], &folder);
        wait_until("Node.js listens", TIMEOUT, || TcpStream::connect(address).is_ok());
        Self { process, folder, speech, address }
    }

    pub(super) fn url(&self) -> String {
        format!("{}://{}", self.speech.scheme(), self.address)
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
