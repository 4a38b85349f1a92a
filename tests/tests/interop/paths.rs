//! The reading of paths beside a real nginx: equal to its `$uri`, or refused.

use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use tidegate::policy::RequestTarget;
use tidegate_tests::http::{Answer, Connection};
use tidegate_tests::servers::{Folder, Process, by_debian, free_port, wait_until};

use crate::proxies::{NGINX, TIMEOUT};

const PATHS: usize = 10_000;

/// What is put together to paths: every case of the table in the documentation, and plain text.
const PIECES: &[&str] = &[
    "/",
    "/",
    "/",
    "//",
    "/./",
    "/../",
    ".",
    "..",
    "...",
    "a",
    "b",
    "Login",
    "login.html",
    "~",
    "_",
    "-",
    "%2e",
    "%2E",
    "%2e%2e",
    "%6c",
    "%4C",
    "%7e",
    "%20",
    "%21",
    "%22",
    "%26",
    "%2b",
    "+",
    "%3d",
    "%3F",
    "%23",
    "%25",
    "%252e",
    "%25zz",
    "%2f",
    "%2F",
    "%5c",
    "\\",
    ";",
    "%3B",
    ";x=1",
    "?",
    "?a=/../b",
    "&",
    "#",
    "%00",
    "%0a",
    "%7f",
    "%",
    "%4",
    "%zz",
    "\u{e9}",
    "%c3%a9",
    "%C3%A9",
    "%c0%ae",
    "%ff",
    "%e2%82%ac",
    ":",
    "@",
    "*",
    "'",
    "\"",
    "<",
    "{",
    "|",
    "^",
    "`",
    "\t",
    " ",
    "\u{1}",
    "\u{7f}",
];

/// An nginx that answers with the path as it reads it.
struct Nginx {
    _process: Process,
    folder: Folder,
    address: SocketAddr,
}

impl Nginx {
    fn start() -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let folder = Folder::create();
        let config = format!(
            "worker_processes 1; pid nginx.pid; error_log stderr crit; events {{}}
             http {{
                 access_log off; keepalive_requests 100000; default_type text/plain;
                 server {{ listen {address}; location / {{ return 200 $uri; }} }}
             }}"
        );
        folder.write("nginx.conf", &config);
        let arguments = NGINX.map(String::from);
        let process = Process::start(&by_debian("nginx"), &arguments, &[], &folder);
        wait_until("nginx listens", TIMEOUT, || TcpStream::connect(address).is_ok());
        Self { _process: process, folder, address }
    }

    fn connect(&self) -> Connection {
        Connection::open(self.address).expect("nginx listens")
    }

    /// The answer, on a connection that is opened again where nginx has closed it.
    fn ask(&self, connection: &mut Connection, target: &str) -> Answer {
        let answer = connection.ask(&format!("GET {target}"), "").unwrap_or_else(|error| {
            panic!("{target:?}: {error}\n{}", self.folder.log_tail());
        });
        if answer.header("connection") == Some("close") {
            *connection = self.connect();
        }
        answer
    }
}

fn target(rng: &mut fastrand::Rng) -> String {
    // Most have few odd pieces, so that enough are not refused.
    let (odd, count) = (rng.usize(1..4), rng.usize(1..12));
    let mut text = String::from(if rng.u8(..) < 8 { "http://localhost/" } else { "/" });
    for _ in 0..count {
        let all = if rng.usize(..8) < odd { PIECES } else { &PIECES[..16] };
        text += rng.choice(all).copied().unwrap_or_default();
    }
    text
}

#[test]
fn ten_thousand_paths_are_read_as_nginx_reads_them_or_refused() {
    let nginx = Nginx::start();
    let mut connection = nginx.connect();
    let mut rng = fastrand::Rng::with_seed(15);
    let (mut changed, mut refused) = (0, 0);
    for _ in 0..PATHS {
        let target = target(&mut rng);
        let Ok(ours) = RequestTarget::parse(&target) else {
            refused += 1;
            continue;
        };
        let answer = nginx.ask(&mut connection, &target);
        assert_eq!((answer.status, &*answer.body), (200, ours.path()), "{target:?}");
        changed += usize::from(!target.starts_with(ours.path()));
    }
    // Otherwise the test would be of paths that nothing can be wrong with.
    assert!(changed > PATHS / 10 && refused > PATHS / 10, "{changed} changed, {refused} refused");
    assert!(refused < PATHS / 2, "{refused} refused");
}
