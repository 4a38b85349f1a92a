//! Answers as names and texts, so that differences can be named.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::web::Page;
use crate::grpc::Failed;
use crate::rls::{
    Code, DescriptorStatus, HeaderValue, Kind, RateLimitResponse, Struct, Unit, Value,
};

/// An answer, field by field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields(BTreeMap<String, String>);

impl Fields {
    pub(super) fn of_call(answer: &Result<RateLimitResponse, Failed>) -> Self {
        let mut fields = Self::default();
        match answer {
            Ok(response) => fields.add_response(response),
            Err(Failed { code, text }) => {
                fields.put("error.code", code);
                fields.put("error.text", text);
            }
        }
        fields
    }

    pub(super) fn of_page(page: &Page) -> Self {
        let mut fields = Self::default();
        fields.put("http.status", page.status);
        fields.put("http.content_type", &page.kind);
        match serde_json::from_str(&page.body) {
            Ok(json) => fields.add_json("body", &json),
            Err(_) => fields.put("http.body", format!("{:?}", page.body)),
        }
        fields
    }

    /// The lines of a listing, in any order.
    pub(super) fn of_lines(page: &Page) -> Self {
        let mut fields = Self::default();
        fields.put("http.status", page.status);
        for line in page.body.lines() {
            let (name, value) = line.rsplit_once(": ").unwrap_or((line, ""));
            fields.put(name, value);
        }
        fields
    }

    /// Removes fields whose name `wants` does not accept.
    pub fn retain(&mut self, wants: impl Fn(&str) -> bool) {
        self.0.retain(|name, _| wants(name));
    }

    /// All units in the answer.
    pub fn units(&self) -> impl Iterator<Item = &str> {
        let units = self.0.iter().filter(|(name, _)| name.ends_with(".unit"));
        units.map(|(_, unit)| unit.trim_matches('"'))
    }

    /// Name and both values of each field that differs; "nothing" if a field is missing.
    pub fn differences<'a>(&'a self, other: &'a Self) -> Vec<(&'a str, &'a str, &'a str)> {
        let text = |fields: &'a Self, name: &str| fields.0.get(name).map_or("nothing", |it| it);
        let mut names: Vec<&String> = self.0.keys().chain(other.0.keys()).collect();
        names.sort();
        names.dedup();
        let both = names.into_iter().map(|name| (&**name, text(self, name), text(other, name)));
        both.filter(|(_, this, other)| this != other).collect()
    }

    #[expect(clippy::needless_pass_by_value, reason = "numbers and texts, as they come")]
    fn put(&mut self, name: impl Into<String>, value: impl ToString) {
        self.0.insert(name.into(), value.to_string());
    }

    fn add_response(&mut self, response: &RateLimitResponse) {
        self.put("overall_code", code(response.overall_code));
        self.put("statuses.count", response.statuses.len());
        for (index, status) in response.statuses.iter().enumerate() {
            self.add_status(&format!("statuses[{index}]"), status);
        }
        // Only Tidegate has this header.
        let envoyproxy = |header: &&HeaderValue| header.key != "retry-after";
        for (index, header) in
            response.response_headers_to_add.iter().filter(envoyproxy).enumerate()
        {
            self.put(format!("headers[{index}].{}", header.key), &header.value);
        }
        if !response.raw_body.is_empty() {
            self.put("raw_body", format!("{:?}", String::from_utf8_lossy(&response.raw_body)));
        }
        if let Some(metadata) = &response.dynamic_metadata {
            self.add_json("dynamic_metadata", &object(metadata));
        }
    }

    fn add_status(&mut self, name: &str, status: &DescriptorStatus) {
        self.put(format!("{name}.code"), code(status.code));
        self.put(format!("{name}.limit_remaining"), status.limit_remaining);
        if let Some(limit) = &status.current_limit {
            let unit = Unit::try_from(limit.unit).map_or("?".into(), |unit| format!("{unit:?}"));
            self.put(format!("{name}.current_limit.unit"), unit.to_uppercase());
            self.put(format!("{name}.current_limit.requests_per_unit"), limit.requests_per_unit);
            self.put(format!("{name}.current_limit.name"), format!("{:?}", limit.name));
        }
        if let Some(reset) = &status.duration_until_reset {
            let text = format!("{}.{:09}s", reset.seconds, reset.nanos);
            self.put(format!("{name}.duration_until_reset"), text);
        }
    }

    fn add_json(&mut self, name: &str, json: &Json) {
        match json {
            Json::Object(fields) if !fields.is_empty() => {
                for (key, value) in fields {
                    self.add_json(&format!("{name}.{key}"), value);
                }
            }
            Json::Array(values) if !values.is_empty() => {
                for (index, value) in values.iter().enumerate() {
                    self.add_json(&format!("{name}[{index}]"), value);
                }
            }
            leaf => self.put(name, leaf),
        }
    }
}

fn code(number: i32) -> String {
    Code::try_from(number).map_or_else(|_| number.to_string(), |code| format!("{code:?}"))
}

fn object(fields: &Struct) -> Json {
    let fields = fields.fields.iter().map(|(name, value)| (name.clone(), json(value)));
    Json::Object(fields.collect())
}

fn json(value: &Value) -> Json {
    match &value.kind {
        None | Some(Kind::Null(_)) => Json::Null,
        Some(Kind::Number(number)) => (*number).into(),
        Some(Kind::Text(text)) => text.clone().into(),
        Some(Kind::Flag(flag)) => (*flag).into(),
        Some(Kind::Fields(fields)) => object(fields),
        Some(Kind::Values(list)) => list.values.iter().map(json).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(body: &str) -> Fields {
        Fields::of_page(&Page { status: 200, kind: "text/plain".into(), body: body.into() })
    }

    #[test]
    fn differences_are_named_wherever_they_are() {
        let one = page(r#"{"a":[{"b":1,"unit":"DAY"}],"c":"x"}"#);
        let other = page(r#"{"c": "x", "a": [{"b": 2, "unit": "DAY"}], "d": null}"#);
        let found = one.differences(&other);
        assert_eq!(found, [("body.a[0].b", "1", "2"), ("body.d", "nothing", "null")]);
        assert_eq!(one.units().collect::<Vec<_>>(), ["DAY"]);
        assert!(one.differences(&one).is_empty());
    }
}
