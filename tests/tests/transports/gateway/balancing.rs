//! Several addresses of one service.

use std::net::TcpListener;
use std::num::NonZeroUsize;
use std::thread;
use std::time::Duration;

use tidegate_server::{Gateway, HealthCheck, Upstream};
use tidegate_tests::http::{ask, get};
use tidegate_tests::servers::{free_port, wait_until};

use super::service::Service;
use super::{Front, TIMEOUT};

fn front(urls: &[String], change: impl FnOnce(&mut Upstream)) -> Front {
    let mut upstream = Upstream::new("api", urls).expect("URLs");
    upstream.head_timeout = Duration::from_secs(2);
    change(&mut upstream);
    Front::with("", |gateway| *gateway = Gateway::new(upstream))
}

fn url(service: &Service) -> String {
    format!("http://{}", service.address())
}

/// The value of a metric of an address.
fn metric(front: &Front, name: &str, url: &str, more: &str) -> Option<u64> {
    let page = get(front.server.admin().expect("asked for"), "/metrics", "").body;
    let address = url.strip_prefix("http://").expect("a URL");
    let line = format!("{name}{{upstream=\"api\",address=\"{address}\"{more}}} ");
    page.lines().find_map(|it| it.strip_prefix(&line)?.parse().ok())
}

#[test]
fn requests_are_spread_over_the_addresses() {
    let services = [Service::start(), Service::start(), Service::start()];
    let urls: Vec<_> = services.iter().map(url).collect();
    let front = front(&urls, |_| {});
    for _ in 0..60 {
        assert_eq!(ask(front.address(), "POST /", "", "x").status, 200);
    }
    let counts = services.each_ref().map(|service| service.heads().len());
    assert_eq!(counts.iter().sum::<usize>(), 60);
    // Each is as likely as the others: 0 of 60 has a probability of 3e-11.
    assert!(counts.iter().all(|count| *count > 0), "{counts:?}");
    let answered: u64 = urls
        .iter()
        .filter_map(|it| {
            metric(&front, "tidegate_upstream_requests_total", it, ",outcome=\"answered\"")
        })
        .sum();
    assert_eq!(answered, 60);
}

/// A busy address gets no further request while the other has none.
#[test]
fn the_address_with_fewer_requests_in_progress_is_chosen() {
    let services = [Service::start(), Service::start()];
    let urls: Vec<_> = services.iter().map(url).collect();
    let front = front(&urls, |_| {});
    let address = front.address();
    let held = std::thread::spawn(move || get(address, "/held", ""));
    wait_until("the request is in progress", TIMEOUT, || {
        services.iter().any(|service| service.heads().len() == 1)
    });
    let busy = services.iter().position(|it| it.heads().len() == 1).expect("one of them");
    for _ in 0..20 {
        assert_eq!(get(address, "/", "").status, 200);
    }
    let counts = services.each_ref().map(|service| service.heads().len());
    assert_eq!((counts[busy], counts[1 - busy]), (1, 20));
    services.iter().for_each(Service::release);
    assert_eq!(held.join().expect("no panic").status, 200);
}

/// No request is lost: a connection that fails is tried at another address.
#[test]
fn an_address_that_refuses_connections_is_ejected_and_comes_back() {
    let service = Service::start();
    let port = free_port();
    let urls = [url(&service), format!("http://127.0.0.1:{port}")];
    let eject_for = Duration::from_millis(500);
    let front = front(&urls, |upstream| upstream.eject_for = eject_for);
    let ejections = || metric(&front, "tidegate_upstream_ejections_total", &urls[1], "");
    for _ in 0..40 {
        assert_eq!(ask(front.address(), "POST /", "", "x").status, 200);
    }
    assert_eq!(service.heads().len(), 40);
    assert_eq!(ejections(), Some(1));
    // With a service behind it, its share grows until it gets requests as before.
    let other = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    let other = Service::on(other);
    wait_until("it gets requests", TIMEOUT, || {
        assert_eq!(ask(front.address(), "POST /", "", "x").status, 200);
        other.heads().len() > 5
    });
    assert_eq!(metric(&front, "tidegate_upstream_ejected", &urls[1], ""), Some(0));
}

/// A gateway with one worker, of whose two addresses the second is ejected and hangs.
fn beside_a_hanging_address(service: &Service, max_connections: usize) -> (Front, TcpListener) {
    let port = free_port();
    let urls = [url(service), format!("http://127.0.0.1:{port}")];
    let mut upstream = Upstream::new("api", &urls).expect("URLs");
    upstream.head_timeout = Duration::from_secs(2);
    upstream.eject_for = Duration::from_secs(600);
    upstream.max_connections = max_connections;
    let front = Front::set(
        "",
        |gateway| *gateway = Gateway::new(upstream),
        |settings| settings.threads = NonZeroUsize::MIN,
    );
    wait_until("it is ejected", TIMEOUT, || {
        assert_eq!(get(front.address(), "/", "").status, 200);
        metric(&front, "tidegate_upstream_ejected", &urls[1], "") == Some(1)
    });
    // The system accepts connections, and nothing answers.
    let hanging = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    (front, hanging)
}

#[test]
fn a_request_whose_connection_was_closed_does_not_go_to_an_ejected_address() {
    let service = Service::start();
    let (front, _hanging) = beside_a_hanging_address(&service, 8);
    for _ in 0..10 {
        assert_eq!(get(front.address(), "/", "").status, 200);
        assert_eq!(get(front.address(), "/stale", "").status, 200);
    }
    let stale = service.heads().iter().filter(|head| head.starts_with("GET /stale ")).count();
    assert_eq!(stale, 20);
}

#[test]
fn a_request_waits_for_a_full_address_beside_an_ejected_one() {
    let service = Service::start();
    let (front, _hanging) = beside_a_hanging_address(&service, 1);
    let (address, before) = (front.address(), service.heads().len());
    let held = thread::spawn(move || get(address, "/held", ""));
    wait_until("the request is in progress", TIMEOUT, || service.heads().len() > before);
    let waiting = thread::spawn(move || get(address, "/", ""));
    let in_progress = "tidegate_upstream_requests_in_progress";
    wait_until("the second request waits", TIMEOUT, || {
        metric(&front, in_progress, &url(&service), "") == Some(2)
    });
    service.release();
    assert_eq!(waiting.join().expect("no panic").status, 200);
    assert_eq!(held.join().expect("no panic").status, 200);
}

#[test]
fn all_addresses_are_used_if_all_are_ejected() {
    let urls = [format!("http://127.0.0.1:{}", free_port()), {
        let port = free_port();
        format!("http://127.0.0.1:{port}")
    }];
    let front = front(&urls, |_| {});
    let ejected = |url: &String| metric(&front, "tidegate_upstream_ejected", url, "") == Some(1);
    wait_until("both are ejected", TIMEOUT, || {
        assert_eq!(get(front.address(), "/", "").status, 502);
        urls.iter().all(ejected)
    });
    let port = urls[0].rsplit_once(':').expect("a port").1.parse::<u16>().expect("a number");
    let service = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    let _service = Service::on(service);
    assert_eq!(get(front.address(), "/", "").status, 200);
}

#[test]
fn an_address_whose_health_check_fails_is_not_used() {
    let services = [Service::start(), Service::start()];
    let urls: Vec<_> = services.iter().map(url).collect();
    let every = Duration::from_millis(20);
    let front = front(&urls, |upstream| {
        upstream.health = Some(HealthCheck {
            path: "/health".into(),
            interval: every,
            timeout: TIMEOUT,
            unhealthy_after: 2,
            healthy_after: 2,
        });
    });
    let is_healthy = |url: &String| metric(&front, "tidegate_upstream_healthy", url, "");
    services[1].set_healthy(false);
    wait_until("it is unhealthy", TIMEOUT, || is_healthy(&urls[1]) == Some(0));
    assert_eq!(is_healthy(&urls[0]), Some(1));
    let posts =
        |service: &Service| service.heads().iter().filter(|head| head.starts_with("POST ")).count();
    for _ in 0..20 {
        assert_eq!(ask(front.address(), "POST /", "", "x").status, 200);
    }
    assert_eq!((posts(&services[0]), posts(&services[1])), (20, 0));
    let status = get(front.server.admin().expect("asked for"), "/v1/status", "").body;
    assert!(status.contains("\"healthy\":false"), "{status}");
    services[1].set_healthy(true);
    wait_until("it is healthy", TIMEOUT, || is_healthy(&urls[1]) == Some(1));
}

/// Node.js, for one, ends the connection with the response if it is asked to.
#[test]
fn a_health_check_whose_connection_ends_with_the_response_succeeds() {
    let services = [Service::start(), Service::start()];
    let urls: Vec<_> = services.iter().map(url).collect();
    let front = front(&urls, |upstream| {
        upstream.health = Some(HealthCheck {
            path: "/closing".into(),
            interval: Duration::from_millis(5),
            timeout: TIMEOUT,
            unhealthy_after: 1,
            // Never again.
            healthy_after: u32::MAX,
        });
    });
    wait_until("it was asked often", TIMEOUT, || {
        services.iter().all(|service| service.heads().len() > 40)
    });
    for url in &urls {
        assert_eq!(metric(&front, "tidegate_upstream_healthy", url, ""), Some(1));
    }
}
