//! RESP beyond loopback: a password, or commands that return nothing.

use tidegate_server::{Listen, ServeError, TlsFiles};

use super::*;

const EVERYWHERE: ([u8; 4], u16) = ([0, 0, 0, 0], 0);

/// Commands that return units or reset keys.
const RETURNING: [&str; 9] = [
    "TG.RESET api user bob",
    "TG.REFUND api user bob",
    "TG.ACQUIRE api user bob",
    "TG.RELEASE 0100059b08c1fa40001234567890abcdef000000000000001400000000039387000000000008757365725f626f6200000003626f62",
    "TG.RENEW 0100059b08c1fa40001234567890abcdef000000000000001400000000039387000000000008757365725f626f6200000003626f62",
    "TG.SETTLE 0100000000000000010000000000000002000000000000000100000000000000000300000000000000050000000035a4e900000101019101910000000000000000056c6f67696e00000003626f6200000003626f62 CANCEL",
    "DEL bob",
    "UNLINK bob",
    "CL.THROTTLE bob 9 1 3600 -1",
];

const POLICY: &str = "{domain: api, descriptors: [{key: user, rate: 5/h}]}";

fn everywhere(password: Option<&str>, allow_unauthenticated: bool) -> Settings {
    let (resp, password) = (Some(EVERYWHERE.into()), password.map(Into::into));
    Settings { resp, password, allow_unauthenticated, ..settings() }
}

/// A transport on every address, asked on loopback.
fn open(settings: &Settings) -> (Transport, redis::Connection) {
    let transport = Transport::with(settings);
    transport.load(POLICY);
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", transport.address().port()));
    let client = client.expect("a sound address").get_connection().expect("it listens");
    (transport, client)
}

fn error(client: &mut redis::Connection, command: &str) -> String {
    let answer: redis::RedisResult<redis::Value> = words(command).query(client);
    answer.err().map(|error| error.to_string()).unwrap_or_default()
}

#[test]
fn no_listener_opens_beyond_loopback_without_a_password() {
    let service = RateLimitService::new().expect("memory");
    let refused = serve(&everywhere(None, false), &service).expect_err("no password");
    assert!(matches!(refused, ServeError::Unauthenticated(_)), "{refused}");
    let reply = refused.to_string();
    for fix in ["0.0.0.0:0", "listen.resp.password_file", "127.0.0.1", "allow_unauthenticated"] {
        assert!(reply.contains(fix), "{reply}");
    }
    // Certificates of clients are credentials, too; those of the server are not.
    let files = |client_authority: Option<std::path::PathBuf>| {
        let tls = TlsFiles {
            certificate: "c.pem".into(),
            key: "k.pem".into(),
            client_authority,
            client_names: Vec::new(),
        };
        let resp = Some(Listen { tls: Some(tls), ..EVERYWHERE.into() });
        Settings { resp, ..settings() }.check().is_ok()
    };
    assert_eq!((files(None), files(Some("ca.pem".into()))), (false, true));
}

#[test]
fn with_a_password_every_command_needs_it() {
    let (_transport, mut client) = open(&everywhere(Some("s3cret"), false));
    for command in RETURNING.into_iter().chain(["CL.THROTTLE bob 9 1 3600"]) {
        assert!(error(&mut client, command).contains("NOAUTH"), "{command}");
    }
    for wrong in ["AUTH s3cre", "AUTH s3cretx", "AUTH other s3cret"] {
        assert!(error(&mut client, wrong).contains("WRONGPASS"), "{wrong}");
    }
    assert_eq!(error(&mut client, "AUTH s3cret"), "");
    for command in RETURNING {
        assert_eq!(error(&mut client, command), "", "{command}");
    }
}

#[test]
fn without_one_units_are_taken_and_not_returned() {
    let (transport, mut client) = open(&everywhere(None, true));
    assert_eq!(numbers(&mut client, "CL.THROTTLE bob 9 1 3600"), Ok(vec![0, 10, 9, -1, 3_600]));
    assert_eq!(error(&mut client, "TG.CHECK api user bob"), "");
    for command in RETURNING {
        let reply = error(&mut client, command);
        assert!(reply.contains("NoPerm") && reply.contains("password_file"), "{command}: {reply}");
    }
    assert_eq!(numbers(&mut client, "CL.THROTTLE bob 9 1 3600 0"), Ok(vec![0, 10, 9, -1, 3_600]));
    drop(transport);
    let (_transport, mut client) = open(&settings());
    for command in RETURNING {
        assert_eq!(error(&mut client, command), "", "loopback needs none: {command}");
    }
}
