//! The client address of a request.

use std::net::IpAddr;

use crate::policy::matching::network::address;

/// The header that proxies append the address of their peer to.
pub(super) const FORWARDED_FOR: &str = "x-forwarded-for";

/// The address of the client, given the lines of `X-Forwarded-For` and the number of trusted proxies between
/// it and the listener.
///
/// Each proxy appends its peer to `X-Forwarded-For`, so with `n` proxies the client is the `n`-th
/// address from the right, and with none it is the peer. Addresses further left come from the
/// client and cannot be trusted. This is Envoy's `xff_num_trusted_hops: n` with
/// `use_remote_address: true`; as in Envoy, the peer is used if there are fewer addresses or if the
/// value at that position is no address.
pub(super) fn client<'a>(
    lines: impl DoubleEndedIterator<Item = &'a [u8]>,
    peer: Option<IpAddr>,
    trusted_proxies: usize,
) -> Option<IpAddr> {
    let forwarded = trusted_proxies.checked_sub(1).and_then(|place| {
        // Several header lines form one list.
        lines.rev().flat_map(|line| line.rsplit(|byte| *byte == b',')).nth(place)
    });
    let forwarded = forwarded.and_then(|text| std::str::from_utf8(text).ok());
    forwarded.and_then(address).or_else(|| peer.map(|peer| peer.to_canonical()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes<'a>(lines: &'a [&str]) -> impl DoubleEndedIterator<Item = &'a [u8]> {
        lines.iter().map(|line| line.as_bytes())
    }

    #[test]
    fn the_place_that_our_proxies_wrote_is_trusted() {
        let long = "1.1.1.1, 2.2.2.2 ,3.3.3.3";
        for (lines, proxies, expected) in [
            (&[long][..], 0, "9.9.9.9"),
            (&[long], 1, "3.3.3.3"),
            (&[long], 2, "2.2.2.2"),
            (&[long], 3, "1.1.1.1"),
            (&[long], 4, "9.9.9.9"),
            (&[long], usize::MAX, "9.9.9.9"),
            (&["1.1.1.1", "2.2.2.2, 3.3.3.3"], 1, "3.3.3.3"),
            (&["1.1.1.1", "2.2.2.2, 3.3.3.3"], 2, "2.2.2.2"),
            (&["1.1.1.1", "2.2.2.2, 3.3.3.3"], 3, "1.1.1.1"),
            (&[], 1, "9.9.9.9"),
            (&["1.1.1.1, unknown"], 1, "9.9.9.9"),
            (&["1.1.1.1, "], 1, "9.9.9.9"),
            (&["1.1.1.1:443"], 1, "1.1.1.1"),
            (&["[2001:db8::1]:443"], 1, "2001:db8::1"),
            (&["[2001:db8::1]"], 1, "2001:db8::1"),
            (&["2001:DB8:0::1"], 1, "2001:db8::1"),
            (&["::ffff:1.1.1.1"], 1, "1.1.1.1"),
        ] {
            let found = client(bytes(lines), address("::ffff:9.9.9.9"), proxies);
            assert_eq!(found.map(|ip| ip.to_string()).as_deref(), Some(expected), "{lines:?}");
        }
        assert_eq!(client(bytes(&[]), None, 0), None);
        assert_eq!(client(bytes(&["none"]), None, 1), None);
        let not_text: [&[u8]; 1] = [b"\xff, 1.1.1.1"];
        assert_eq!(client(not_text.into_iter(), None, 1), address("1.1.1.1"));
    }
}
