//! Client addresses from the PROXY protocol.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use tidegate::Rate;
use tidegate_server::{Address, AddressLimits, Gateway, Listen};
use tidegate_tests::http::{Answer, connect, connect_from, get};
use tidegate_tests::servers::{Folder, Process, by_debian, free_port, wait_until};

use super::{Front, TIMEOUT};

const REFUSED: &str =
    "tidegate_refused_connections_total{listener=\"gateway\",reason=\"proxy_header\"}";

/// One request a minute for each address.
const BY_ADDRESS: &str = "
domain: api
requests:
  rules:
    - descriptors: [{entries: [{key: client, client_ip: true}]}]
descriptors:
  - {key: client, rate: 1/min}
";

fn behind_balancer(gateway: &mut Gateway) {
    gateway.edge.proxies = vec!["127.0.0.0/8".parse().expect("a network")];
}

/// What comes back until the connection ends, however it does.
fn exchange(address: SocketAddr, bytes: &[u8]) -> String {
    let mut socket = connect(address);
    let _ = socket.write_all(bytes);
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

fn behind(header: &str) -> Vec<u8> {
    format!("{header}GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n").into_bytes()
}

#[test]
fn the_header_names_the_client_for_limits_and_for_the_service() {
    let front = Front::with(BY_ADDRESS, behind_balancer);
    let status = |client: &str| {
        let header = format!("PROXY TCP4 {client} 127.0.0.1 1000 443\r\n");
        Answer::read(&exchange(front.address(), &behind(&header))).status
    };
    assert_eq!((status("192.0.2.1"), status("192.0.2.1"), status("192.0.2.2")), (200, 429, 200));
    let head = &front.service.heads()[0];
    assert!(head.contains("\r\nx-forwarded-for: 192.0.2.1\r\n"), "{head}");
    assert!(head.contains("\r\nforwarded: for=192.0.2.1;"), "{head}");
}

#[test]
fn a_load_balancer_without_a_sound_header_is_refused() {
    let front = Front::with("", behind_balancer);
    for header in ["", "PROXY TCP4 a b c d\r\n", "PROXY TCP4 192.0.2.1 127.0.0.1 1000 443\n"] {
        assert_eq!(exchange(front.address(), &behind(header)), "", "{header:?}");
    }
    // The connection ends before a whole header.
    drop(connect(front.address()));
    wait_until("all are counted", TIMEOUT, || front.metric(REFUSED) == 4);
    assert!(front.service.heads().is_empty());
    // Health checks of the load balancer itself.
    let unknown = exchange(front.address(), &behind("PROXY UNKNOWN\r\n"));
    assert_eq!(Answer::read(&unknown).status, 200);
    assert!(front.service.heads()[0].contains("\r\nx-forwarded-for: 127.0.0.1\r\n"));
}

#[test]
fn the_header_of_other_peers_is_not_believed() {
    let front = Front::with("", |gateway: &mut Gateway| {
        gateway.edge.proxies = vec!["192.0.2.1".parse().expect("an address")];
    });
    let text = exchange(front.address(), &behind("PROXY TCP4 10.0.0.1 127.0.0.1 1000 443\r\n"));
    assert_eq!(Answer::read(&text).status, 400);
    let binary = [&b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0"[..], &behind("")].concat();
    assert_eq!(Answer::read(&exchange(front.address(), &binary)).status, 400);
    assert!(front.service.heads().is_empty());
    assert_eq!(get(front.address(), "/", "").status, 200);
}

/// A header that does not come holds a connection for five seconds.
#[test]
fn a_header_has_a_time() {
    let front = Front::with("", behind_balancer);
    let mut socket = connect(front.address());
    socket.write_all(b"PROXY TCP4 192.0").expect("sent");
    socket.set_read_timeout(Some(Duration::from_secs(30))).expect("a socket");
    let ended = socket.read(&mut [0]);
    let is_timeout = ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
    assert!(!is_timeout && front.metric(REFUSED) == 1);
}

/// Peers on a Unix socket have no address, so all of them send a header.
#[test]
fn headers_come_over_unix_sockets() {
    let folder = Folder::create();
    let path = folder.path().join("gateway.sock");
    let listen = Listen { address: Address::Unix(path.clone()), tls: None };
    let front = Front::at(listen, BY_ADDRESS, behind_balancer);
    let status = |client: &str| {
        let mut socket = std::os::unix::net::UnixStream::connect(&path).expect("a listener");
        let header = format!("PROXY TCP4 {client} 127.0.0.1 1000 443\r\n");
        socket.write_all(&behind(&header)).expect("sent");
        let mut text = String::new();
        socket.read_to_string(&mut text).expect("an answer");
        Answer::read(&text).status
    };
    assert_eq!((status("192.0.2.1"), status("192.0.2.1")), (200, 429));
    assert_eq!(front.service.heads().len(), 1);
}

/// HAProxy as a TCP load balancer in front of the gateway, with either version of the header. It tells the
/// address that its own client has.
#[test]
fn haproxy_tells_the_client_in_both_versions() {
    for option in ["send-proxy", "send-proxy-v2"] {
        let front = Front::with(BY_ADDRESS, |gateway| {
            behind_balancer(gateway);
            let limits = AddressLimits::default().rate(Rate::per_minute(2), Some(2));
            gateway.edge.per_address = limits.expect("a limit");
        });
        let folder = Folder::create();
        let address: SocketAddr = ([127, 0, 0, 1], free_port()).into();
        let gateway = front.address();
        let config = format!(
            "defaults\n  mode tcp\n  timeout connect 5s\n  timeout client 30s\n  timeout server 30s\n\
             listen edge\n  bind {address}\n  server gateway {gateway} {option}\n"
        );
        folder.write("haproxy.cfg", &config);
        let arguments = ["-db", "-f", "haproxy.cfg"].map(ToOwned::to_owned);
        let _haproxy = Process::start(&by_debian("haproxy"), &arguments, &[], &folder);
        wait_until("HAProxy listens", TIMEOUT, || TcpStream::connect(address).is_ok());
        // That HAProxy listens was seen by a client on 127.0.0.1, with the rest of its quota.
        let from = |client: [u8; 4]| -> String {
            let mut socket = connect_from(client, address);
            let _ = socket.write_all(&behind(""));
            let mut answer = Vec::new();
            let _ = socket.read_to_end(&mut answer);
            String::from_utf8_lossy(&answer).into_owned()
        };
        let statuses = [(); 2].map(|()| Answer::read(&from([127, 0, 0, 7])).status);
        assert_eq!(statuses, [200, 429], "{option}");
        assert_eq!(from([127, 0, 0, 7]), "", "{option}: the third connection of the address");
        assert_eq!(Answer::read(&from([127, 0, 0, 8])).status, 200, "{option}");
        let heads = front.service.heads();
        assert!(heads[0].contains("\r\nx-forwarded-for: 127.0.0.7\r\n"), "{option}: {heads:?}");
    }
}
