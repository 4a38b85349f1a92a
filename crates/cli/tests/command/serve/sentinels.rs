//! Sentinels that ask for a password, as envoyproxy/ratelimit's environment gives it.

use rustix::process::Signal;
use tidegate_tests::servers::Sentinels;

use super::{Daemon, Folder, decide_as_theirs};

const POLICY: &str = "domain: mongo_cps\ndescriptors:\n  - key: database\n    value: users\n    \
                      rate_limit: {unit: second, requests_per_unit: 500}\n";

/// With a password, and with a user and a password, the daemon decides in the primary.
#[test]
fn the_password_of_sentinels_is_honoured() {
    let sentinels = Sentinels::start();
    let mut url = String::from("mymaster");
    for sentinel in sentinels.sentinels() {
        // What `requirepass s3cret` sets, for connections from now on.
        sentinel.command(&["ACL", "SETUSER", "default", "resetpass", ">s3cret"]);
        url += &format!(",{}", sentinel.address());
    }
    let folder = Folder::new("sentinels");
    folder.file("config/config.yaml", POLICY);
    let root = folder.0.display().to_string();
    let start = |auth: &str| {
        let places = ["HOST", "GRPC_HOST", "DEBUG_HOST"].map(|name| (name, "127.0.0.1"));
        let ports = ["PORT", "GRPC_PORT", "DEBUG_PORT"].map(|name| (name, "0"));
        let servers = [
            ("RUNTIME_ROOT", root.as_str()),
            ("REDIS_TYPE", "SENTINEL"),
            ("REDIS_SOCKET_TYPE", "tcp"),
            ("REDIS_URL", url.as_str()),
            ("REDIS_SENTINEL_AUTH", auth),
        ];
        let variables = [&places[..], &ports, &servers].concat();
        Daemon::serving(&["--resp", "off"], &variables, 3)
    };
    for auth in ["s3cret", "default:s3cret"] {
        let mut daemon = start(auth);
        decide_as_theirs(&daemon);
        daemon.signal(Signal::TERM);
        let (code, log) = daemon.end();
        assert_eq!(code, Some(0), "{log}");
        assert!(!log.contains("s3cret"), "{log}");
    }
}
