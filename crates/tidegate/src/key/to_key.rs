//! Keys of the types that programs have: text, numbers, addresses and tuples of them.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::ops::Deref;
use std::sync::Arc;

/// A value that a limiter keeps state under.
///
/// Text is used unchanged, and numbers and addresses in their usual notation. Two different tuples
/// never have the same key.
///
/// ```
/// use std::net::IpAddr;
/// use tidegate::{Limit, Limiter, Rate};
///
/// let limiter = Limiter::new(Limit::token_bucket(Rate::per_minute(100)).build()?);
/// let address = IpAddr::from([192, 0, 2, 1]);
/// assert!(limiter.check("user:17").is_allowed());
/// assert!(limiter.check(17_u64).is_allowed());
/// assert!(limiter.check((address, "/login")).is_allowed());
/// # Ok::<(), tidegate::InvalidLimit>(())
/// ```
pub trait ToKey {
    /// The bytes of the key.
    fn to_key(&self) -> KeyBytes<'_>;
}

/// The bytes of a key.
#[derive(Clone, Debug)]
pub struct KeyBytes<'a>(Cow<'a, [u8]>);

impl Deref for KeyBytes<'_> {
    type Target = [u8];

    #[inline(always)]
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

impl<'a> From<KeyBytes<'a>> for Cow<'a, [u8]> {
    #[inline(always)]
    fn from(key: KeyBytes<'a>) -> Self {
        key.0
    }
}

impl AsRef<[u8]> for KeyBytes<'_> {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl<T: ToKey + ?Sized> ToKey for &T {
    #[inline(always)]
    fn to_key(&self) -> KeyBytes<'_> {
        (**self).to_key()
    }
}

macro_rules! bytes {
    ($($type:ty),*) => {$(
        impl ToKey for $type {
            #[inline(always)]
            fn to_key(&self) -> KeyBytes<'_> {
                KeyBytes(Cow::Borrowed(self.as_ref()))
            }
        }
    )*};
}

bytes!(str, String, [u8], Vec<u8>, KeyBytes<'_>);

impl<const N: usize> ToKey for [u8; N] {
    #[inline(always)]
    fn to_key(&self) -> KeyBytes<'_> {
        KeyBytes(Cow::Borrowed(self))
    }
}

macro_rules! pointers {
    ($($type:ty),*) => {$(
        impl<T: ToKey + ?Sized> ToKey for $type {
            #[inline(always)]
            fn to_key(&self) -> KeyBytes<'_> {
                (**self).to_key()
            }
        }
    )*};
}

pointers!(Box<T>, Arc<T>);

impl ToKey for Cow<'_, str> {
    #[inline(always)]
    fn to_key(&self) -> KeyBytes<'_> {
        (**self).to_key()
    }
}

macro_rules! written {
    ($($type:ty),*) => {$(
        impl ToKey for $type {
            fn to_key(&self) -> KeyBytes<'_> {
                let mut text = String::with_capacity(40);
                // Writing to a string does not fail.
                let _ = write!(text, "{self}");
                KeyBytes(Cow::Owned(text.into_bytes()))
            }
        }
    )*};
}

written!(u8, u16, u32, u64, u128, usize, i32, i64, IpAddr, Ipv4Addr, Ipv6Addr);

macro_rules! tuples {
    ($(($($name:ident),*)),*) => {$(
        impl<$($name: ToKey),*> ToKey for ($($name,)*) {
            #[expect(non_snake_case, reason = "the names of types stand for the values")]
            fn to_key(&self) -> KeyBytes<'_> {
                let (mut bytes, ($($name,)*)) = (Vec::new(), self);
                $(
                    let part = $name.to_key();
                    bytes.extend_from_slice(part.len().to_string().as_bytes());
                    bytes.push(b':');
                    bytes.extend_from_slice(&part);
                )*
                KeyBytes(Cow::Owned(bytes))
            }
        }
    )*};
}

tuples!((A, B), (A, B, C), (A, B, C, D));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_tuples_have_different_keys() {
        let keys = [
            ("a", "b").to_key().to_vec(),
            ("ab", "").to_key().to_vec(),
            ("", "ab").to_key().to_vec(),
            ("a:1", "b").to_key().to_vec(),
            ("a", "1:b").to_key().to_vec(),
        ];
        for (number, key) in keys.iter().enumerate() {
            assert!(!keys[..number].contains(key), "{key:?}");
        }
    }

    #[test]
    fn numbers_and_addresses_are_keys_as_they_are_written() {
        assert_eq!(&*17_u64.to_key(), b"17");
        assert_eq!(&*IpAddr::from([192, 0, 2, 1]).to_key(), b"192.0.2.1");
        assert_eq!(&*(17_u64, "x").to_key(), b"2:171:x");
    }
}
