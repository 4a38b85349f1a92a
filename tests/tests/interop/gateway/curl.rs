//! curl as a client of the gateway.

use std::fmt::Write;
use std::net::SocketAddr;
use std::process::Command;

use tidegate_server::Gateway;
use tidegate_tests::servers::{Folder, by_debian};

use super::backend::Backend;
use super::{address, gateway};

/// What curl prints with these arguments, followed by the status and the version of HTTP.
fn curl(gateway: SocketAddr, path: &str, arguments: &[&str]) -> String {
    let output = Command::new(by_debian("curl"))
        .args(["--silent", "--show-error", "--max-time", "60"])
        .args(["--write-out", " %{http_code} HTTP/%{http_version}"])
        .args(arguments)
        .arg(format!("http://{gateway}{path}"))
        .output()
        .expect("curl runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn curl_gets_and_uploads_over_both_protocols() {
    let backend = Backend::start();
    let server = gateway(Gateway::new(backend.url().parse().expect("a URL")));
    let folder = Folder::create();
    let mut text = String::new();
    for number in 0..100_000 {
        let _ = writeln!(text, "{number}");
    }
    let (length, file) = (text.len(), folder.write("upload", &text).display().to_string());
    for (version, flag) in [("1.1", "--http1.1"), ("2", "--http2-prior-knowledge")] {
        let ask = |path: &str, arguments: &[&str]| {
            curl(address(&server), path, &[&[flag], arguments].concat())
        };
        assert_eq!(ask("/?id=1", &[]), format!("0 200 HTTP/{version}"));
        assert_eq!(ask("/?id=2", &["--data", "text"]), format!("4 200 HTTP/{version}"));
        // curl waits for "100 Continue" before a large body.
        let uploaded = format!("{length} 200 HTTP/{version}");
        assert_eq!(ask("/?id=3", &["--upload-file", &file]), uploaded);
        let chunked = ["--upload-file", &file, "--header", "Transfer-Encoding: chunked"];
        if version == "1.1" {
            assert_eq!(ask("/?id=4", &chunked), uploaded);
        }
        assert_eq!(
            ask("/?id=5", &["--head"]).lines().last(),
            Some(&*format!(" 200 HTTP/{version}"))
        );
        assert_eq!(ask("/?id=6", &["--request", "TRACE"]).split(' ').nth_back(1), Some("405"));
    }
}
