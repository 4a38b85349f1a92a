//! `dynamic_metadata`: the request, with the metadata of the rules that allowed it.

use serde_json::{Map, Value, json};
use tidegate::policy::{Entry, Metadata};

use super::request::{DescriptorInput, Override, unit_name};
use super::verdict::RlsVerdict;
use super::wire::Writer;

impl RlsVerdict<'_> {
    /// Metadata for the log of the proxy; `None` unless configured.
    pub(crate) fn metadata(&self) -> Option<Map<String, Value>> {
        if !self.answers.dynamic_metadata {
            return None;
        }
        let descriptors: Vec<Value> = self
            .wire_request
            .descriptor_inputs()
            .map(|(descriptor_input, entries)| descriptor(descriptor_input, entries))
            .collect();
        let mut fields = Map::new();
        fields.insert("domain".into(), self.wire_request.domain.into());
        fields.insert("descriptors".into(), descriptors.into());
        if self.wire_request.hits_addend > 0 {
            fields.insert("hitsAddend".into(), self.wire_request.hits_addend.into());
        }
        let mut handed_on = Map::new();
        for (number, status) in self.statuses().enumerate() {
            let passed = self.verdict.strictest_of(number).filter(|_| !status.is_over);
            let rule = passed.and_then(|part| part.rule).map(|(rule, _)| rule);
            if let Some(Metadata::Map(pairs)) = rule.and_then(|rule| rule.metadata()) {
                merge(&mut handed_on, pairs);
            }
        }
        if !handed_on.is_empty() {
            fields.insert("metadata".into(), handed_on.into());
        }
        Some(fields)
    }
}

fn descriptor(descriptor_input: &DescriptorInput, entries: &[Entry<'_>]) -> Value {
    let entries: Vec<String> =
        entries.iter().map(|entry| format!("{}={}", entry.key, entry.value)).collect();
    let mut descriptor = json!({ "entries": entries });
    if let Some(Override { requests_per_unit, unit }) = descriptor_input.limit {
        let count = match requests_per_unit {
            0 => String::new(),
            count => format!("requests_per_unit:{count} "),
        };
        descriptor["limit"] = format!("{count}unit:{}", unit_name(unit).unwrap_or("0")).into();
    }
    if let Some(hits) = descriptor_input.hits_addend {
        descriptor["hitsAddend"] = hits.into();
    }
    descriptor
}

/// Merges metadata: existing values stay, and maps of the same name are merged.
fn merge(into: &mut Map<String, Value>, pairs: &[(Box<str>, Metadata)]) {
    for (name, metadata) in pairs {
        match (into.get_mut(&**name), metadata) {
            (None, metadata) => drop(into.insert((&**name).into(), value(metadata))),
            (Some(Value::Object(known)), Metadata::Map(pairs)) => merge(known, pairs),
            (Some(_), _) => {}
        }
    }
}

fn value(metadata: &Metadata) -> Value {
    match metadata {
        Metadata::Null => Value::Null,
        Metadata::Bool(flag) => (*flag).into(),
        // Numbers that JSON lacks, such as infinity, stay texts.
        Metadata::Number(text) => serde_json::from_str(text).unwrap_or_else(|_| (&**text).into()),
        Metadata::Text(text) => (&**text).into(),
        Metadata::List(items) => items.iter().map(value).collect::<Vec<_>>().into(),
        Metadata::Map(pairs) => {
            let mut fields = Map::new();
            merge(&mut fields, pairs);
            fields.into()
        }
    }
}

/// Writes the fields of a `google.protobuf.Struct`.
pub(super) fn write(fields: &Map<String, Value>, message: &mut Writer<'_>) {
    for (name, value) in fields {
        message.message(1, |pair| {
            pair.bytes(1, name.as_bytes());
            pair.message(2, |message| write_value(value, message));
        });
    }
}

fn write_value(value: &Value, message: &mut Writer<'_>) {
    match value {
        Value::Null => message.choice(1, 0),
        // All numbers of the format are doubles.
        Value::Number(number) => message.double(2, number.as_f64().unwrap_or_default()),
        Value::String(text) => message.element(3, text.as_bytes()),
        Value::Bool(flag) => message.choice(4, (*flag).into()),
        Value::Object(fields) => message.message(5, |message| write(fields, message)),
        Value::Array(items) => message.message(6, |list| {
            for item in items {
                list.message(1, |message| write_value(item, message));
            }
        }),
    }
}
