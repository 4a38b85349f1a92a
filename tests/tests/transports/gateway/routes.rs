//! Several services by host and path.

use tidegate_server::{Route, Upstream};
use tidegate_tests::http::{Answer, send};

use super::Front;
use super::service::Service;

fn ask(front: &Front, host: &str, path: &str) -> Answer {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    send(front.address(), request)
}

/// A gateway with a service for each of these lists of routes.
fn front(routes: &[&[&str]]) -> (Front, Vec<Service>) {
    let services: Vec<Service> = routes.iter().map(|_| Service::start()).collect();
    let front = Front::with("", |gateway| {
        let urls = services.iter().map(|service| format!("http://{}", service.address()));
        let upstreams = urls.enumerate().map(|(number, url)| {
            Upstream::new(&format!("service-{number}"), &[url]).expect("a URL")
        });
        let parsed = routes.iter().enumerate().flat_map(|(number, texts)| {
            texts.iter().map(move |text| Route::parse(text, number).expect("a route"))
        });
        (gateway.upstreams, gateway.routes) = (upstreams.collect(), parsed.collect());
    });
    (front, services)
}

#[test]
fn requests_go_to_the_service_of_the_closest_host_and_longest_path() {
    let (front, services) = front(&[&["/"], &["/v1", "api.example/v2"], &["*.example"]]);
    for (host, path, expected) in [
        ("a", "/", 0),
        ("a", "/v10", 0),
        ("a", "/v1", 1),
        ("a", "/v1/x?y", 1),
        // Compared as rules compare it, and forwarded as it came.
        ("a", "/x/../%761/z", 1),
        ("a", "//v1//z", 1),
        ("API.example:8000", "/v2", 1),
        ("api.example", "/v1", 2),
        ("b.example", "/v2", 2),
        ("example", "/", 0),
    ] {
        let before: Vec<_> = services.iter().map(|service| service.heads().len()).collect();
        assert_eq!(ask(&front, host, path).status, 200, "{host}{path}");
        for (number, service) in services.iter().enumerate() {
            let heads = service.heads();
            let new = heads.len() - before[number];
            assert_eq!(new, usize::from(number == expected), "{host}{path} at {number}");
            if new == 1 {
                assert!(heads[before[number]].starts_with(&format!("GET {path} HTTP")), "{path}");
            }
        }
    }
}

#[test]
fn a_request_without_a_route_is_404_and_an_ambiguous_path_400() {
    let (front, services) = front(&[&["api.example"], &["/v1"]]);
    let unknown = ask(&front, "a", "/");
    assert_eq!(unknown.status, 404);
    assert_eq!(unknown.header("content-type"), Some("application/problem+json"));
    for path in ["/v1%2f..", "/v1;x", "/a/../../v1"] {
        assert_eq!(ask(&front, "a", path).status, 400, "{path}");
    }
    assert!(services.iter().all(|service| service.heads().is_empty()));
}
