//! The transport behind TLS and behind a socket in the file system, asked by redis-cli.

use std::fs;
use std::path::Path;

use tidegate_server::{Address, Listen};
use tidegate_tests::servers::{Certificates, Identity, wait_until};

use super::*;

fn settings_of(certificates: &Certificates) -> Settings {
    Settings { resp: Some(certificates.transport()), ..settings() }
}

fn with_clients(certificates: &Certificates, names: &[&str]) -> Settings {
    Settings {
        resp: Some(certificates.transport_for(&certificates.authority, names)),
        ..settings()
    }
}

/// What redis-cli prints if it trusts `authority` and shows `identity`.
fn ping(transport: &Transport, authority: &Path, identity: Option<&Identity>) -> String {
    let port = transport.address().port().to_string();
    let mut cli = Command::new("redis-cli");
    cli.args(["-h", "127.0.0.1", "-p", &port, "--tls", "--cacert"]).arg(authority);
    if let Some(identity) = identity {
        cli.arg("--cert").arg(&identity.certificate).arg("--key").arg(&identity.key);
    }
    let output = cli.arg("PING").output().expect("redis-cli is installed");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

#[test]
fn clients_speak_tls_and_others_do_not_get_in() {
    let certificates = Certificates::fresh();
    let transport = Transport::with(&settings_of(&certificates));
    assert_eq!(ping(&transport, &certificates.authority, None), "PONG");
    assert_eq!(ping(&transport, &Certificates::fresh().authority, None), "");
    assert!(!transport.cli(&["PING"]).contains("PONG"));
}

#[test]
fn a_client_has_to_show_who_it_is_where_that_is_asked_for() {
    let (certificates, strangers) = (Certificates::fresh(), Certificates::fresh());
    let authority = &certificates.authority;
    let known = Some(&certificates.client);
    let transport = Transport::with(&with_clients(&certificates, &[]));
    assert_eq!(ping(&transport, authority, known), "PONG");
    assert_ne!(ping(&transport, authority, None), "PONG");
    assert_ne!(ping(&transport, authority, Some(&strangers.client)), "PONG");
    let transport = Transport::with(&with_clients(&certificates, &["localhost"]));
    assert_eq!(ping(&transport, authority, known), "PONG");
    let transport = Transport::with(&with_clients(&certificates, &["envoy.example"]));
    assert_ne!(ping(&transport, authority, known), "PONG");
}

#[test]
fn a_certificate_that_is_renewed_is_shown_without_a_restart() {
    let (certificates, renewed) = (Certificates::fresh(), Certificates::fresh());
    let transport = Transport::with(&settings_of(&certificates));
    assert_eq!(ping(&transport, &certificates.authority, None), "PONG");
    // Half of the change: the key does not fit, so the old pair stays in force.
    fs::copy(&renewed.server.certificate, &certificates.server.certificate).unwrap();
    assert_eq!(ping(&transport, &certificates.authority, None), "PONG");
    fs::copy(&renewed.server.key, &certificates.server.key).unwrap();
    wait_until("the new certificate is shown", 4 * TIMEOUT, || {
        ping(&transport, &renewed.authority, None) == "PONG"
    });
}

#[test]
fn an_invalid_certificate_is_reported_with_its_file() {
    let certificates = Certificates::fresh();
    fs::write(&certificates.server.certificate, "nothing").unwrap();
    let service = RateLimitService::new().unwrap();
    let refused = serve(&settings_of(&certificates), &service).expect_err("no certificate");
    let answer = refused.to_string();
    assert!(answer.contains("server.pem") && answer.contains("no certificate"), "{answer}");
}

#[test]
fn a_unix_socket_is_a_listener() {
    let folder = Certificates::fresh();
    let path = folder.authority.with_file_name("tidegate.sock");
    let listen = Listen { address: Address::Unix(path.clone()), tls: None };
    let unix = Settings { resp: Some(listen), ..settings() };
    let ping = || {
        let cli = Command::new("redis-cli").arg("-s").arg(&path).arg("PING").output();
        String::from_utf8_lossy(&cli.expect("redis-cli is installed").stdout).trim_end().to_owned()
    };
    let service = RateLimitService::new().unwrap();
    let server = serve(&unix, &service).unwrap();
    assert_eq!(ping(), "PONG");
    let taken = serve(&unix, &service).expect_err("another server answers there");
    assert!(taken.to_string().contains("address already in use"), "{taken}");
    server.stop();
    assert!(!path.exists(), "nothing is left over");
    // The socket file of a killed process is replaced.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let server = serve(&unix, &service).unwrap();
    assert_eq!(ping(), "PONG");
    server.stop();
}
