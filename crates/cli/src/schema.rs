//! `tidegate schema`: the policy format, as JSON Schema and as a reference page.

use std::fmt::Write;

use serde_json::{Map, Value, json};
use tidegate::policy::Statuses;
use tidegate::policy::language::{FILE, Field, Kind, Table};

use crate::args::Schema;

/// A JSON Schema of policy files, or a reference page of all fields.
pub(crate) fn schema(args: &Schema) -> String {
    let tables = tables();
    if args.reference { reference(&tables) } else { json_schema(&tables) }
}

/// Every kind of map, in the order of the reference page.
fn tables() -> Vec<&'static Table> {
    let mut tables: Vec<&'static Table> = vec![&FILE];
    let mut next = 0;
    while let Some(table) = tables.get(next).copied() {
        next += 1;
        let inner = table.all().filter_map(|field| match field.kind {
            Kind::Map(inner) | Kind::Maps(inner) | Kind::Named(inner) => Some(inner),
            _ => None,
        });
        for inner in inner.chain(table.also) {
            if !tables.iter().any(|known| std::ptr::eq(*known, inner)) {
                tables.push(inner);
            }
        }
    }
    tables
}

fn json_schema(tables: &[&'static Table]) -> String {
    let definitions: Map<String, Value> =
        tables.iter().map(|table| (anchor(table), definition(table))).collect();
    // The draft that most editors support.
    let schema = json!({
        "$schema": "http://json-schema.org/draft-07/schema#",
        "title": "Tidegate policy",
        "$ref": format!("#/definitions/{}", anchor(&FILE)),
        "definitions": definitions,
    });
    format!("{schema:#}\n")
}

fn definition(table: &Table) -> Value {
    let properties: Map<String, Value> = table
        .all()
        .map(|field| {
            let mut value = kind(&field.kind);
            if let Value::Object(value) = &mut value {
                value.insert("description".into(), field.about.into());
            }
            (field.name.to_owned(), value)
        })
        .collect();
    let required: Vec<&str> =
        table.all().filter(|field| field.required).map(|field| field.name).collect();
    json!({
        "description": table.about,
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": false,
    })
}

/// Periods as the language spells them.
const PERIOD: &str = "[0-9]* *(us|ms|s|sec|second|m|min|minute|h|hour|d|day|w|week|month|y|year)";

fn kind(kind: &Kind) -> Value {
    let refers = |table: &Table| json!({ "$ref": format!("#/definitions/{}", anchor(table)) });
    // YAML reads a bare 7 or yes as a number or a flag; the loader accepts both as text.
    let text = json!({ "type": ["string", "number", "boolean"] });
    match kind {
        Kind::Text => text,
        Kind::Flag => json!({ "type": "boolean" }),
        Kind::Number(least, most) => {
            json!({ "type": "integer", "minimum": least, "maximum": most })
        }
        Kind::Rate => json!({ "type": "string", "pattern": format!("^ *[0-9]+ */ *{PERIOD} *$") }),
        Kind::Period => json!({ "type": "string", "pattern": format!("^ *{PERIOD} *$") }),
        Kind::Percent => {
            json!({ "type": "string", "pattern": "^[0-9]{1,4}(\\.[0-9]{1,2})? *%$" })
        }
        Kind::Date => {
            json!({ "type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}([Tt ].+)?$" })
        }
        Kind::Choice(words) => json!({ "enum": words }),
        Kind::Word(words) => {
            let loud = words.iter().map(|word| word.to_uppercase());
            let all: Vec<String> =
                words.iter().map(|word| (*word).to_owned()).chain(loud).collect();
            json!({ "enum": all })
        }
        Kind::Anything => json!({}),
        Kind::Map(table) => refers(table),
        Kind::Maps(table) => json!({ "type": "array", "items": refers(table) }),
        Kind::Named(table) => json!({ "type": "object", "additionalProperties": refers(table) }),
        Kind::Texts => json!({ "type": "array", "items": text }),
        Kind::Statuses => json!({
            "type": "array",
            "minItems": 1,
            "maxItems": 32,
            "items": { "oneOf": [
                { "type": "integer", "minimum": 100, "maximum": 599 },
                { "type": "string", "pattern": "^([1-5]xx|[1-5][0-9][0-9])$" },
                { "enum": Statuses::GRPC_CODES },
            ] },
        }),
        Kind::NamedTexts => {
            json!({ "type": "object", "additionalProperties": { "type": "array", "items": text } })
        }
        // Editors accept kinds that are added later.
        _ => json!({}),
    }
}

fn reference(tables: &[&'static Table]) -> String {
    let mut page = String::from(INTRODUCTION);
    for table in tables {
        let _ = write!(page, "\n## {}\n\n{}\n\n", table.name, table.about);
        page.push_str("| field | value | meaning | example |\n|---|---|---|---|\n");
        for field in table.fields {
            page.push_str(&row(field));
        }
        if let Some(also) = table.also {
            let (name, anchor) = (also.name, anchor(also));
            let _ = writeln!(page, "\nAnd every field of a [{name}](#{anchor}).");
        }
    }
    page
}

const INTRODUCTION: &str = "\
# The policy language

<!-- Made by `tidegate schema --reference`; a test compares the two. -->

Every field that a policy file may hold. Files of envoyproxy/ratelimit load unchanged and mean the
same; all other fields are extensions. `tidegate lint` checks a file, `tidegate schema` prints a
JSON Schema for editors.
";

fn row(field: &Field) -> String {
    let required = if field.required { " Required." } else { "" };
    // A bar would end the cell.
    let example = field.example.replace('|', "\\|");
    format!(
        "| `{}` | {} | {}{required} | `{example}` |\n",
        field.name,
        value(&field.kind),
        field.about
    )
}

/// The type of a value, in words.
fn value(kind: &Kind) -> String {
    let link = |table: &Table| format!("[{}](#{})", table.name, anchor(table));
    let words = |words: &[&str]| {
        words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
    };
    match kind {
        Kind::Text => "text".into(),
        Kind::Flag => "`true` or `false`".into(),
        Kind::Number(least, most) => format!("{least} to {most}"),
        Kind::Rate => "a rate".into(),
        Kind::Period => "a period".into(),
        Kind::Percent => "a share".into(),
        Kind::Date => "a date".into(),
        Kind::Choice(choices) | Kind::Word(choices) => words(choices),
        Kind::Map(table) => link(table),
        Kind::Maps(table) => format!("a list, each a {}", link(table)),
        Kind::Named(table) => format!("names, each with {}", link(table)),
        Kind::Texts => "a list of texts".into(),
        Kind::Statuses => "a list of statuses and gRPC codes".into(),
        Kind::NamedTexts => "names, each with a list of texts".into(),
        _ => "anything".into(),
    }
}

/// The name of a table in links.
fn anchor(table: &Table) -> String {
    table.name.replace(' ', "-")
}
