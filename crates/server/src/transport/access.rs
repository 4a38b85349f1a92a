//! Access control of HTTP calls: by `Host`, by the origin of web pages, and by token. ADR 24 has
//! the table.

use std::net::IpAddr;

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN};
use hyper::http::request::Parts;

use crate::settings::{Address, Listen, Settings};

/// A refused call, and how to get it accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Denied {
    pub(crate) status: StatusCode,
    pub(crate) why: &'static str,
}

const fn denied<T>(status: StatusCode, why: &'static str) -> Result<T, Denied> {
    Err(Denied { status, why })
}

/// A caller of an HTTP listener, known by the head of its request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller<'a> {
    pub(crate) head: &'a Parts,
    pub(crate) settings: &'a Settings,
}

impl Caller<'_> {
    /// Checks that a call on the admin listener does not come from a web page of another origin.
    ///
    /// A browser connects to loopback for any page whose name resolves to it (DNS rebinding), and
    /// treats the answer as that page's own. The name in `Host` distinguishes such a call.
    pub(crate) fn may_use_admin(&self) -> Result<(), Denied> {
        let listen = self.settings.admin.as_ref();
        if !self.names_listener(listen, &self.settings.hosts) {
            let why = "Host is not a name of this listener: use its address or localhost, or add \
                       the name to listen.admin.hosts";
            return denied(StatusCode::MISDIRECTED_REQUEST, why);
        }
        self.check_origin()
    }

    /// Checks that a call on the admin listener may read or change keys.
    pub(crate) fn may_use_keys(&self) -> Result<(), Denied> {
        let why = "calls that name or change keys need a token on this address: set \
                   listen.admin.token_file";
        self.check_token(self.settings.token.as_deref(), self.settings.admin.as_ref(), why)
    }

    /// Checks that a call on the HTTP listener may return units.
    pub(crate) fn may_return_units(&self) -> Result<(), Denied> {
        let (token, listen) = (self.settings.http_token.as_deref(), self.settings.http.as_ref());
        self.check_origin()?;
        let why = "calls that return units need a token on this address: set \
                   listen.http.token_file";
        self.check_token(token, listen, why)?;
        // Web pages do not have the token.
        if token.is_none() && !self.names_listener(listen, &[]) {
            let why = "Host is not a name of this listener: use its address or localhost, or set \
                       listen.http.token_file";
            return denied(StatusCode::MISDIRECTED_REQUEST, why);
        }
        Ok(())
    }

    /// Whether `Host` is a name that a web page cannot have chosen.
    fn names_listener(&self, listen: Option<&Listen>, names: &[String]) -> bool {
        let is_loopback = match listen.map(|listen| &listen.address) {
            // Browsers do not connect to Unix sockets.
            Some(Address::Unix(_)) | None => return true,
            Some(Address::Tcp(address)) => address.ip().to_canonical().is_loopback(),
        };
        // Beyond loopback, access does not depend on the address alone, and a network may use any
        // names, so they are checked only if configured.
        if !is_loopback && names.is_empty() {
            return true;
        }
        let mut hosts = self.head.headers.get_all(HOST).iter().map(HeaderValue::to_str);
        let (Some(Ok(host)), None) = (hosts.next(), hosts.next()) else { return false };
        // The absolute form of a request target contains the name a second time.
        let target = self.head.uri.authority().map(|authority| authority.as_str());
        [Some(host), target].into_iter().flatten().all(|host| {
            let name = without_port(host);
            match name.trim_matches(['[', ']']).parse::<IpAddr>() {
                Ok(address) => !is_loopback || address.to_canonical().is_loopback(),
                Err(_) => {
                    let is = |known: &str| known.eq_ignore_ascii_case(name.trim_end_matches('.'));
                    is("localhost") || names.iter().any(|known| is(known))
                }
            }
        })
    }

    /// Refuses calls that a browser makes for a page of another origin. Other programs do not send
    /// these headers.
    fn check_origin(&self) -> Result<(), Denied> {
        const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
        let headers = &self.head.headers;
        let is_cross_site =
            headers.get(SITE).is_some_and(|site| site != "none" && site != "same-origin");
        if is_cross_site || !is_origin_own(headers) {
            return denied(
                StatusCode::FORBIDDEN,
                "calls of web pages of other origins are refused",
            );
        }
        Ok(())
    }

    /// Checks the token. Without one, only calls from this machine are accepted.
    fn check_token(
        &self,
        token: Option<&str>,
        listen: Option<&Listen>,
        why: &'static str,
    ) -> Result<(), Denied> {
        match token {
            Some(token) => match bearer(&self.head.headers) {
                Some(shown) if is_same(shown.as_bytes(), token.as_bytes()) => Ok(()),
                Some(_) => denied(StatusCode::UNAUTHORIZED, "the token is wrong"),
                None => denied(
                    StatusCode::UNAUTHORIZED,
                    "a token is needed: Authorization: Bearer TOKEN",
                ),
            },
            None if listen.is_some_and(Listen::is_local) => Ok(()),
            None => denied(StatusCode::FORBIDDEN, why),
        }
    }
}

/// Whether `Origin`, if present, is this listener's.
fn is_origin_own(headers: &HeaderMap) -> bool {
    let text = |value: &HeaderValue| value.to_str().unwrap_or_default().to_ascii_lowercase();
    let host = headers.get(HOST).map(text);
    headers.get_all(ORIGIN).iter().map(text).all(|origin| {
        let authority = origin.split_once("://").map(|(_, authority)| authority.to_owned());
        authority.is_some() && authority == host
    })
}

/// Removes the port: `example` of `example:80`, `[::1]` of `[::1]:80`.
fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let shown = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = shown.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

/// Compares `shown` with a secret in a time that depends on the length of `shown` only.
pub(crate) fn is_same(shown: &[u8], secret: &[u8]) -> bool {
    let expected = secret.iter().chain(std::iter::repeat(&0));
    let differs = shown.iter().zip(expected).fold(0, |seen, (a, b)| seen | (a ^ b));
    (std::hint::black_box(differs) == 0) & (shown.len() == secret.len())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    const LOOPBACK: [u8; 4] = [127, 0, 0, 1];
    const ANY: [u8; 4] = [0, 0, 0, 0];

    #[derive(Clone, Copy)]
    enum Check {
        Admin,
        Keys,
        Units,
    }

    fn ask(settings: &Settings, headers: &[(&str, &str)], check: Check) -> Option<u16> {
        let mut request = Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        let caller = Caller { head: &head, settings };
        let checked = match check {
            Check::Admin => caller.may_use_admin(),
            Check::Keys => caller.may_use_keys(),
            Check::Units => caller.may_return_units(),
        };
        checked.err().map(|denied| denied.status.as_u16())
    }

    fn settings(address: [u8; 4], token: Option<&str>) -> Settings {
        let listen = Some((address, 1).into());
        let token = token.map(ToOwned::to_owned);
        let (admin, http_token) = (listen.clone(), token.clone());
        Settings { admin, http: listen, token, http_token, ..Settings::default() }
    }

    #[test]
    fn loopback_needs_no_token_and_other_addresses_need_one() {
        let local = [("host", "localhost")];
        for check in [Check::Keys, Check::Units] {
            assert_eq!(ask(&settings(LOOPBACK, None), &local, check), None);
            assert_eq!(ask(&settings(ANY, None), &local, check), Some(403));
            for address in [LOOPBACK, ANY] {
                let settings = settings(address, Some("s3cret"));
                let with = |value| ask(&settings, &[("authorization", value)], check);
                assert_eq!(ask(&settings, &local, check), Some(401));
                assert_eq!(with("Bearer s3cret"), None);
                assert_eq!(with("bearer s3cret"), None);
                for wrong in
                    ["Bearer s3cre", "Bearer s3cretx", "Bearer t3cret", "Basic s3cret", "s3cret"]
                {
                    assert_eq!(with(wrong), Some(401), "{wrong}");
                }
            }
        }
    }

    #[test]
    fn only_pages_of_the_same_origin_are_answered() {
        let own = [("host", "localhost:1"), ("origin", "http://localhost:1")];
        for (header, value) in [
            ("origin", "http://evil.example"),
            ("origin", "http://localhost:2"),
            ("origin", "localhost:1"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            for check in [Check::Admin, Check::Units] {
                let sent = [("host", "localhost:1"), (header, value)];
                assert_eq!(ask(&settings(LOOPBACK, None), &sent, check), Some(403), "{value}");
                let sent = [sent[0], sent[1], ("authorization", "Bearer t")];
                assert_eq!(ask(&settings(ANY, Some("t")), &sent, check), Some(403), "{value}");
                assert_eq!(ask(&settings(LOOPBACK, None), &own, check), None);
            }
        }
    }

    #[test]
    fn a_name_that_is_not_the_listener_s_is_not_answered() {
        let named =
            |settings: &Settings, host: &str| ask(settings, &[("host", host)], Check::Admin);
        let local = settings(LOOPBACK, None);
        for host in ["localhost", "LocalHost:6070", "localhost.", "127.0.0.1:1", "[::1]:6070"] {
            assert_eq!(named(&local, host), None, "{host}");
        }
        for host in ["evil.example", "localhost.evil.example", "192.0.2.1:80", "", "127.0.0.1.x:1"]
        {
            assert_eq!(named(&local, host), Some(421), "{host}");
            let returned = ask(&local, &[("host", host)], Check::Units);
            assert_eq!(returned, Some(421), "{host}");
        }
        assert_eq!(ask(&local, &[], Check::Admin), Some(421));
        let twice = [("host", "localhost"), ("host", "evil.example")];
        assert_eq!(ask(&local, &twice, Check::Admin), Some(421));
        // Beyond loopback, names are checked once they are configured.
        let mut open = settings(ANY, None);
        assert_eq!(named(&open, "limits.internal:6070"), None);
        open.hosts = vec!["limits.internal".into()];
        assert_eq!(named(&open, "Limits.Internal:6070"), None);
        assert_eq!(named(&open, "192.0.2.1:6070"), None);
        assert_eq!(named(&open, "evil.example"), Some(421));
        let named_too = Settings { hosts: open.hosts, ..local };
        assert_eq!(named(&named_too, "limits.internal"), None);
        assert_eq!(named(&named_too, "evil.example"), Some(421));
    }

    #[test]
    fn secrets_are_the_same_only_if_every_byte_is() {
        assert!(is_same(b"s3cret", b"s3cret"));
        for shown in ["", "s3cre", "s3cret0", "s3cret\0", "t3cret", "s3creu"] {
            assert!(!is_same(shown.as_bytes(), b"s3cret"), "{shown:?}");
        }
    }
}
