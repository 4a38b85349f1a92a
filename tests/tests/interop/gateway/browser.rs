//! A browser in front of the gateway, over HTTP/1.1 and over HTTP/2.

use std::path::Path;

use tidegate::policy::{Merging, Policy};
use tidegate_server::{Gateway, Listen, RateLimitService, Settings, serve};
use tidegate_tests::http::get;
use tidegate_tests::servers::{Certificates, Folder, Process, chromium_program, wait_until};

use super::backend::Backend;
use super::{TIMEOUT, address};

/// Nothing of its own goes to the network.
const OPTIONS: [&str; 10] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--ignore-certificate-errors",
    "--remote-debugging-port=0",
];

/// What a page finds: fetches, an upload that is denied, events and a WebSocket.
fn found(chromium: &Path, listen: Listen, scheme: &str) -> String {
    let backend = Backend::start();
    let settings = Settings {
        proxy: Some(listen),
        gateway: Some(Gateway::new(backend.url().parse().expect("a URL"))),
        drain: TIMEOUT,
        ..Settings::default()
    };
    let service = RateLimitService::new().expect("memory");
    service.replace(policy());
    let server = serve(&settings, &service).unwrap_or_else(|error| panic!("{error}"));
    let folder = Folder::create();
    let mut arguments = OPTIONS.map(ToOwned::to_owned).to_vec();
    arguments.push(format!("--user-data-dir={}", folder.path().display()));
    arguments.push(format!("{scheme}://{}/page", address(&server)));
    let browser = Process::start(chromium, &arguments, &[], &folder);
    let mut text = String::new();
    wait_until("the page is done", TIMEOUT, || {
        text = get(backend.address, "/result", "").body;
        !text.is_empty()
    });
    drop(browser);
    text
}

/// One request to `/denied`.
fn policy() -> Policy {
    let text = "
domain: api
requests:
  rules: [{path: /denied, descriptors: [{entries: [{key: path, value: denied}]}]}]
descriptors: [{key: path, rate: 1/h}]
";
    let loaded = Policy::load(&[("policy.yaml", text)], Merging::Refuse);
    loaded.policy.unwrap_or_else(|| panic!("{}", loaded.findings))
}

#[test]
fn a_browser_fetches_uploads_and_opens_websockets() {
    let Some(chromium) = chromium_program() else {
        return eprintln!(
            "\n!!! LEFT OUT: no Chromium; install it, it is too large for every run\n"
        );
    };
    let certificates = Certificates::fresh();
    let listen = Listen::from(([127, 0, 0, 1], 0));
    for (listen, scheme, protocol) in
        [(listen, "http", "http/1.1"), (certificates.transport(), "https", "h2")]
    {
        let expected = format!(
            "20 fetches, upload 200 1048576, denied 429, {protocol}, event first, echo ping"
        );
        assert_eq!(found(&chromium, listen, scheme), expected);
    }
}
