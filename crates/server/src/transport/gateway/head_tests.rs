use hyper::Request;

use super::*;

fn head(line: &str, fields: &[(&str, &str)]) -> Parts {
    let (method, target) = line.split_once(' ').expect("a method and a target");
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in fields {
        request = request.header(*name, *value);
    }
    request.body(()).expect("a request").into_parts().0
}

#[test]
fn requests_that_servers_read_differently_are_refused() {
    let host = ("host", "a.example");
    let status = |line: &str, fields: &[(&str, &str)]| {
        check(&head(line, fields), &HeaderNames::NONE).err().map(|refused| refused.status.as_u16())
    };
    assert_eq!(status("GET /", &[host]), None);
    assert_eq!(status("GET http://A.example/", &[host]), None);
    assert_eq!(status("GET /", &[host, ("connection", "keep-alive, x-own")]), None);
    for (line, fields, expected) in [
        ("CONNECT a.example:443", &[host][..], 405),
        ("TRACE /", &[host], 405),
        ("OPTIONS *", &[host], 400),
        ("GET /", &[], 400),
        ("GET /", &[host, host], 400),
        ("GET /", &[("host", "")], 400),
        ("GET /", &[("host", "a/b")], 400),
        ("GET /", &[("host", "u@a")], 400),
        ("GET http://b.example/", &[host], 400),
        ("GET http://u@a.example/", &[host], 400),
        ("GET /", &[host, ("connection", "close, x-forwarded-for")], 400),
        ("GET /", &[host, ("connection", "Forwarded")], 400),
        ("GET /", &[host, ("connection", "x-request-id")], 400),
        ("GET /", &[host, ("connection", "host")], 400),
        ("GET /", &[host, ("connection", "a b")], 400),
    ] {
        assert_eq!(status(line, fields), Some(expected), "{line} {fields:?}");
    }
    let long = format!("GET /{}", "a".repeat(MAX_TARGET));
    assert_eq!(status(&long, &[host]), Some(414));
}

#[test]
fn fields_of_the_connection_are_not_forwarded() {
    let mut head = head(
        "GET /",
        &[
            ("host", "a"),
            ("connection", "close, X-Own"),
            ("x-own", "1"),
            ("keep-alive", "1"),
            ("te", "gzip, trailers"),
            ("upgrade", "h2c"),
            ("proxy-authorization", "x"),
            ("http2-settings", "x"),
            ("accept", "*/*"),
        ],
    );
    drop_hop_by_hop(&mut head.headers);
    let mut names: Vec<_> = head.headers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["accept", "host", "te"]);
    assert_eq!(head.headers["te"], "trailers");
}

#[test]
fn claims_of_clients_are_dropped_and_proxies_are_appended() {
    let claims = [("host", "a"), ("x-forwarded-for", "1.1.1.1"), ("x-request-id", "own")];
    let others = [("x-forwarded-ssl", "on"), ("x-original-url", "/"), ("x-rewrite-url", "/")];
    let mut client = head("GET /", &[&claims[..], &others].concat());
    drop_claims(&mut client.headers, &HeaderNames::NONE);
    assert_eq!(client.headers.len(), 1, "{client:?}");
    Description::new(Some([192, 0, 2, 1].into()), "http").add_to(&mut client.headers);
    assert_eq!(client.headers["x-forwarded-for"], "192.0.2.1");
    assert_eq!(client.headers["x-forwarded-host"], "a");
    assert_eq!(client.headers["x-forwarded-proto"], "http");
    assert_eq!(client.headers["forwarded"], "for=192.0.2.1;host=\"a\";proto=http");
    assert_eq!(client.headers["x-request-id"].len(), 32);

    let mut proxied =
        head("GET /", &[claims[0], claims[1], ("x-forwarded-for", "2.2.2.2"), claims[2]]);
    let peer = Some("2001:db8::1".parse().expect("an address"));
    let description = Description::new(peer, "https");
    description.add_to(&mut proxied.headers);
    assert_eq!(proxied.headers["x-forwarded-for"], "1.1.1.1, 2.2.2.2, 2001:db8::1");
    assert_eq!(proxied.headers["forwarded"], "for=\"[2001:db8::1]\";host=\"a\";proto=https");
    assert_eq!(proxied.headers["x-request-id"], "own");
    // Every request has the `Forwarded` of its own host, not of the one before.
    for host in ["b", "b", "a"] {
        let mut next = head("GET /", &[("host", host)]);
        description.add_to(&mut next.headers);
        let expected = format!("for=\"[2001:db8::1]\";host=\"{host}\";proto=https");
        assert_eq!(next.headers["forwarded"], expected);
    }
}

/// Services believe them: a client that sends them could pass for another address, or another user.
#[test]
fn identities_that_clients_claim_are_dropped() {
    let own = HeaderNames::new(&["X-Member"]).expect("a name");
    for name in [
        "true-client-ip",
        "cf-connecting-ip",
        "cf-connecting-ipv6",
        "x-client-ip",
        "x-cluster-client-ip",
        "fastly-client-ip",
        "fly-client-ip",
        "client-ip",
        "x-azure-clientip",
        "x-envoy-external-address",
        "x-forwarded-user",
        "x-forwarded-client-cert",
        "x-auth-request-email",
        "remote-user",
        "remote-groups",
        "x-remote-user",
        "x-webauth-user",
        "x-authentik-username",
        "x-goog-authenticated-user-email",
        "x-amzn-oidc-identity",
        "tailscale-user-login",
        "cf-access-authenticated-user-email",
        "ssl-client-verify",
        "x-ssl-client-s-dn",
        "x-ssl-cert",
        "x-client-dn",
        "x-client-verify",
        "client-cert",
        "x-member",
    ] {
        let mut client = head("GET /", &[("host", "a"), (name, "eve")]);
        drop_claims(&mut client.headers, &own);
        assert!(!client.headers.contains_key(name), "{name}");
        let hidden = head("GET /", &[("host", "a"), ("connection", name)]);
        assert!(check(&hidden, &own).is_err(), "{name}");
    }
    // Clients of services send them for themselves.
    let kept = ["x-user", "authorization", "cookie", "x-api-key", "x-csrf-token", "cf-ray", "from"];
    let mut client = head("GET /", &kept.map(|name| (name, "1")));
    drop_claims(&mut client.headers, &own);
    assert_eq!(client.headers.len(), kept.len());
}

#[test]
fn only_websockets_are_upgraded() {
    let asks = |method: &str, connection: &str, protocol: &str| {
        let fields = [("host", "a"), ("connection", connection), ("upgrade", protocol)];
        upgrade(&head(&format!("{method} /"), &fields)).is_some()
    };
    assert!(asks("GET", "keep-alive, Upgrade", "WebSocket"));
    assert!(!asks("POST", "upgrade", "websocket"));
    assert!(!asks("GET", "close", "websocket"));
    assert!(!asks("GET", "upgrade", "h2c"));
    assert!(!asks("GET", "upgrade", "websocket, h2c"));
}

#[test]
fn names_with_an_underscore_pass_for_no_other_field() {
    let fields = [
        ("host", "a"),
        ("x_forwarded_for", "6.6.6.6"),
        ("x-forwarded_proto", "https"),
        ("x_user", "eve"),
        ("x-user", "bob"),
        ("x_member", "eve"),
    ];
    let own = HeaderNames::new(&["X-Member"]).expect("a name");
    let names = |is_call: bool| {
        let mut head = head("GET /", &fields);
        drop_aliases(&mut head.headers, is_call, &own);
        let mut names: Vec<_> = head.headers.keys().map(|name| name.as_str().to_owned()).collect();
        names.sort_unstable();
        names
    };
    assert_eq!(names(false), ["host", "x-user"]);
    assert_eq!(names(true), ["host", "x-user", "x_user"]);
}

#[test]
fn trailers_of_requests_tell_nothing_of_the_connection_and_the_client() {
    let fields = [
        ("x-sum", "7"),
        ("grpc_own", "1"),
        ("x-forwarded-for", "6.6.6.6"),
        ("x_real_ip", "6.6.6.6"),
        ("forwarded", "for=6.6.6.6"),
        ("remote-user", "eve"),
        ("x-member", "eve"),
        ("content-length", "5"),
        ("transfer-encoding", "chunked"),
        ("connection", "x-named"),
        ("x-named", "1"),
        ("host", "b"),
        ("te", "trailers"),
    ];
    let mut trailers = head("GET /", &fields).headers;
    let own = HeaderNames::new(&["X-Member"]).expect("a name");
    clean_request_trailers(&mut trailers, &own);
    let mut names: Vec<_> = trailers.keys().map(HeaderName::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["grpc_own", "x-sum"]);
}
