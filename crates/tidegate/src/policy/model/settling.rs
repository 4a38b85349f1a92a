//! How a limit is settled once the response to a request is known.

use std::fmt;

/// How a limit charges a request after its response is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settling {
    /// `count` or `refund`.
    pub(in crate::policy) by_status: Option<ByStatus>,
    /// `actual`.
    pub(in crate::policy) actual: Option<ActualSource>,
}

/// Whether a request counts, by the status of its response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ByStatus {
    /// Only requests with one of these statuses count.
    Count(Statuses),
    /// Requests with one of these statuses do not count.
    Refund(Statuses),
}

/// Where the actual cost of a request is found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ActualSource {
    /// In this header of the response, in lower case.
    Header(Box<str>),
    /// In this trailer of the response, in lower case.
    Trailer(Box<str>),
    /// The application reports it.
    Application,
}

/// Statuses of responses, as ranges: of HTTP from 100 on, of gRPC up to 16.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statuses(pub(in crate::policy) Box<[(u16, u16)]>);

impl Settling {
    /// Whether the code of a gRPC call decides, which may follow the body.
    pub(in crate::policy) fn reads_grpc_codes(&self) -> bool {
        let statuses = self.by_status.as_ref().map(ByStatus::statuses);
        statuses.is_some_and(|statuses| statuses.0.iter().any(|(first, _)| is_grpc_code(*first)))
    }

    /// `count` or `refund`.
    pub const fn by_status(&self) -> Option<&ByStatus> {
        self.by_status.as_ref()
    }

    /// Bytes of the name of the header or trailer.
    pub(in crate::policy) fn name_bytes(&self) -> usize {
        match &self.actual {
            Some(ActualSource::Header(name) | ActualSource::Trailer(name)) => name.len(),
            Some(ActualSource::Application) | None => 0,
        }
    }

    /// `actual`.
    pub const fn actual(&self) -> Option<&ActualSource> {
        self.actual.as_ref()
    }
}

impl ByStatus {
    const fn statuses(&self) -> &Statuses {
        match self {
            Self::Count(statuses) | Self::Refund(statuses) => statuses,
        }
    }

    /// Whether a request with these statuses counts.
    pub(in crate::policy) fn counts(&self, known: &[Option<u16>]) -> bool {
        let is_in = |statuses: &Statuses| known.iter().flatten().any(|it| statuses.contains(*it));
        match self {
            Self::Count(statuses) => is_in(statuses),
            Self::Refund(statuses) => !is_in(statuses),
        }
    }
}

impl Statuses {
    /// Maximum number of entries of a list.
    pub const MOST: usize = 32;

    /// The names of gRPC codes, by number.
    #[doc(hidden)]
    pub const GRPC_CODES: [&'static str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];

    /// Whether the list contains this status.
    pub fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|(first, last)| (*first..=*last).contains(&status))
    }

    /// `401`, or `5xx` for 500 to 599, from 100 to 599; or the name of a gRPC code.
    pub(in crate::policy) fn range(text: &str) -> Option<(u16, u16)> {
        if let Some(code) = Self::GRPC_CODES.iter().position(|name| *name == text) {
            return Some((code as u16, code as u16));
        }
        if let Some(class) = text.strip_suffix("xx") {
            let first = class.parse::<u16>().ok().filter(|class| (1..=5).contains(class))? * 100;
            return Some((first, first + 99));
        }
        let status = text.parse::<u16>().ok().filter(|status| (100..=599).contains(status))?;
        Some((status, status))
    }
}

impl fmt::Display for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (number, (first, last)) in self.0.iter().enumerate() {
            let comma = if number > 0 { ", " } else { "" };
            match Self::GRPC_CODES.get(usize::from(*first)) {
                Some(name) => write!(f, "{comma}{name}")?,
                None if first == last => write!(f, "{comma}{first}")?,
                None => write!(f, "{comma}{}xx", first / 100)?,
            }
        }
        Ok(())
    }
}

const fn is_grpc_code(status: u16) -> bool {
    status < Statuses::GRPC_CODES.len() as u16
}

/// As shown by `explain`.
impl fmt::Display for Settling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.by_status {
            Some(ByStatus::Count(statuses)) => write!(f, "counts responses with {statuses} only")?,
            Some(ByStatus::Refund(statuses)) => {
                write!(f, "does not count responses with {statuses}")?
            }
            None => {}
        }
        if self.by_status.is_some() && self.actual.is_some() {
            f.write_str("; ")?;
        }
        match &self.actual {
            Some(ActualSource::Header(name)) => write!(f, "settled by the response header {name}"),
            Some(ActualSource::Trailer(name)) => write!(f, "settled by the trailer {name}"),
            Some(ActualSource::Application) => f.write_str("settled by the application"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_numbers_and_classes() {
        let read = |texts: &[&str]| -> Option<Statuses> {
            let ranges: Option<Vec<_>> = texts.iter().map(|text| Statuses::range(text)).collect();
            ranges.map(|ranges| Statuses(ranges.into()))
        };
        let statuses = read(&["401", "5xx"]).unwrap();
        assert_eq!(statuses.to_string(), "401, 5xx");
        for (status, is_in) in [(400, false), (401, true), (499, false), (500, true), (599, true)] {
            assert_eq!(statuses.contains(status), is_in, "{status}");
            assert_eq!(
                ByStatus::Count(statuses.clone()).counts(&[Some(status), None]),
                is_in,
                "{status}"
            );
            assert_eq!(
                ByStatus::Refund(statuses.clone()).counts(&[Some(status), None]),
                !is_in,
                "{status}"
            );
        }
        let codes = read(&["UNAUTHENTICATED", "OK", "401"]).unwrap();
        assert_eq!(codes.to_string(), "UNAUTHENTICATED, OK, 401");
        for (status, is_in) in [(16, true), (0, true), (401, true), (1, false), (200, false)] {
            assert_eq!(codes.contains(status), is_in, "{status}");
        }
        let call = [Some(200), Some(16)];
        assert!(ByStatus::Count(codes.clone()).counts(&call));
        assert!(!ByStatus::Refund(codes).counts(&call));
        for wrong in [
            "16",
            "0",
            "unauthenticated",
            "Unauthenticated",
            "OKAY",
            "99",
            "600",
            "0xx",
            "6xx",
            "xx",
            "",
            "4x",
            "4XX",
            "-1",
            "70000",
        ] {
            assert_eq!(Statuses::range(wrong), None, "{wrong}");
        }
    }
}
