//! The daemon, and its statistics in `/proc`.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// The daemon. It ends with this program.
pub(crate) struct Daemon {
    child: Child,
    pub(crate) resp: SocketAddr,
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    pub(crate) admin: SocketAddr,
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // This fails if the daemon has ended, which is reported elsewhere.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Daemon {
    pub(crate) fn start(program: &Path, policy: &Path) -> io::Result<Self> {
        let any = "127.0.0.1:0";
        let mut child = Command::new(program)
            .args(["serve", "--resp", any, "--http", any, "--grpc", any, "--admin", any])
            .arg("--config")
            .arg(policy)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let out = BufReader::new(child.stdout.take().ok_or(io::ErrorKind::Other)?);
        let nowhere = SocketAddr::from(([0, 0, 0, 0], 0));
        let mut found = Self { child, resp: nowhere, http: nowhere, grpc: nowhere, admin: nowhere };
        for line in out.lines() {
            let line = line?;
            let listener = line.strip_prefix("listening for ");
            let Some((transport, address)) = listener.and_then(|rest| rest.split_once(" on "))
            else {
                continue;
            };
            let address = address.parse().map_err(io::Error::other)?;
            match transport {
                "RESP" => found.resp = address,
                "HTTP" => found.http = address,
                "gRPC" => found.grpc = address,
                "admin" => found.admin = address,
                _ => {}
            }
            if ![found.resp, found.http, found.grpc, found.admin].contains(&nowhere) {
                return Ok(found);
            }
        }
        Err(io::Error::other("the daemon did not say where it listens"))
    }

    pub(crate) fn resident_kib(&self) -> io::Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let number = line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok());
        number.ok_or_else(|| io::Error::other("the daemon has ended"))
    }

    /// Number of open files and sockets.
    pub(crate) fn files(&self) -> usize {
        let folder = fs::read_dir(format!("/proc/{}/fd", self.child.id()));
        folder.map_or(0, Iterator::count)
    }
}
