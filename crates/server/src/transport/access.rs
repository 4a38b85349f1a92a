//! Who may change something.

use hyper::StatusCode;
use hyper::header::{AUTHORIZATION, HeaderName, ORIGIN};
use hyper::http::request::Parts;

use crate::settings::{Address, Settings};

/// Lets a call through that may change something, or says why not.
///
/// On loopback any program of the machine may, but no page that somebody's browser happens to show:
/// a browser says where a call comes from, and other programs do not.
pub(super) fn check(head: &Parts, settings: &Settings) -> Result<(), (StatusCode, &'static str)> {
    const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");
    let is_from_elsewhere =
        head.headers.get(SITE).is_some_and(|site| site != "none" && site != "same-origin");
    if head.headers.contains_key(ORIGIN) || is_from_elsewhere {
        return Err((StatusCode::FORBIDDEN, "nothing is changed at the wish of a web page"));
    }
    match &settings.token {
        Some(token) => match bearer(head) {
            Some(shown) if is_same(shown.as_bytes(), token.as_bytes()) => Ok(()),
            Some(_) => Err((StatusCode::UNAUTHORIZED, "this is not the token")),
            None => Err((StatusCode::UNAUTHORIZED, "show the token: Authorization: Bearer TOKEN")),
        },
        None if is_local(settings) => Ok(()),
        None => Err((
            StatusCode::FORBIDDEN,
            "nothing is changed from afar without a token: set listen.admin.token_file",
        )),
    }
}

fn bearer(head: &Parts) -> Option<&str> {
    let shown = head.headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = shown.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

/// Whether only this machine can get here.
fn is_local(settings: &Settings) -> bool {
    match settings.admin.as_ref().map(|listen| &listen.address) {
        Some(Address::Tcp(address)) => address.ip().is_loopback(),
        Some(Address::Unix(_)) => true,
        None => false,
    }
}

/// Takes as long whatever differs, so that nobody finds the token byte by byte.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    let differs = one.iter().zip(other).fold(0, |seen, (a, b)| seen | (a ^ b));
    one.len() == other.len() && std::hint::black_box(differs) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::Request;

    fn checked(headers: &[(&str, &str)], address: [u8; 4], token: Option<&str>) -> Option<u16> {
        let mut request = Request::builder();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let (head, ()) = request.body(()).unwrap().into_parts();
        let admin = Some((address, 1).into());
        let settings = Settings { admin, token: token.map(Into::into), ..Settings::default() };
        check(&head, &settings).err().map(|(status, _)| status.as_u16())
    }

    #[test]
    fn loopback_needs_no_token_and_elsewhere_needs_one() {
        assert_eq!(checked(&[], [127, 0, 0, 1], None), None);
        assert_eq!(checked(&[], [0, 0, 0, 0], None), Some(403));
        for address in [[127, 0, 0, 1], [0, 0, 0, 0]] {
            let with = |value| checked(&[("authorization", value)], address, Some("s3cret"));
            assert_eq!(checked(&[], address, Some("s3cret")), Some(401));
            assert_eq!(with("Bearer s3cret"), None);
            assert_eq!(with("bearer s3cret"), None);
            for wrong in
                ["Bearer s3cre", "Bearer s3cretx", "Bearer t3cret", "Basic s3cret", "s3cret"]
            {
                assert_eq!(with(wrong), Some(401), "{wrong}");
            }
        }
    }

    #[test]
    fn no_web_page_changes_anything() {
        for (header, value) in [
            ("origin", "http://evil.example"),
            ("origin", "null"),
            ("sec-fetch-site", "cross-site"),
            ("sec-fetch-site", "same-site"),
        ] {
            assert_eq!(checked(&[(header, value)], [127, 0, 0, 1], None), Some(403), "{value}");
            let token = [(header, value), ("authorization", "Bearer t")];
            assert_eq!(checked(&token, [127, 0, 0, 1], Some("t")), Some(403), "{value}");
        }
    }
}
