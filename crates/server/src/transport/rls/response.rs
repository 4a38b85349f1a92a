//! `RateLimitResponse` in protobuf.

use super::metadata;
use super::request::unit_number;
use super::verdict::{RlsVerdict, Status};
use super::wire::Writer;

const OK: u64 = 1;
const OVER_LIMIT: u64 = 2;

/// Appends an answer to `bytes`.
pub(crate) fn write(status: &RlsVerdict<'_>, bytes: &mut Vec<u8>) {
    let mut response = Writer::new(bytes);
    response.number(1, code(status.is_over()));
    for descriptor in status.statuses() {
        response.message(2, |message| write_status(&descriptor, message));
    }
    for (name, value) in status.headers_for_proxy() {
        response.message(3, |header| {
            header.bytes(1, name.as_bytes());
            header.bytes(2, value.as_bytes());
        });
    }
    response.bytes(5, status.body().unwrap_or_default().as_bytes());
    if let Some(fields) = status.metadata() {
        response.message(6, |message| metadata::write(&fields, message));
    }
}

const fn code(is_over: bool) -> u64 {
    if is_over { OVER_LIMIT } else { OK }
}

fn write_status(status: &Status<'_>, message: &mut Writer<'_>) {
    message.number(1, code(status.is_over));
    if let Some(limit) = status.limit {
        message.message(2, |message| {
            message.number(1, limit.requests_per_unit.into());
            message.number(2, limit.unit.map_or(0, unit_number).into());
            message.bytes(3, limit.name.as_bytes());
        });
    }
    message.number(3, status.remaining.into());
    if let Some(seconds) = status.until_reset {
        message.message(4, |duration| duration.number(1, seconds));
    }
}
