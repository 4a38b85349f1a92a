//! Whether the examples show every field of the language.

use std::collections::BTreeSet;

use serde_json::Value;
use tidegate::policy::language::{FILE, Field, Kind, Table};

use super::files;

/// A kind of map, and one of its own fields.
type Shown = BTreeSet<(&'static str, &'static str)>;

/// The table that a map under this field is written by.
fn below(field: &Field) -> Option<&'static Table> {
    match field.kind {
        Kind::Map(table) | Kind::Maps(table) | Kind::Named(table) => Some(table),
        _ => None,
    }
}

/// Every field of a table, and of those below it.
fn wanted(table: &'static Table, all: &mut Shown) {
    for field in table.fields {
        if all.insert((table.name, field.name))
            && let Some(below) = below(field)
        {
            wanted(below, all);
        }
    }
    if let Some(also) = table.also {
        wanted(also, all);
    }
}

/// Every field that a map uses, itself or below.
fn shown(table: &'static Table, map: &Value, all: &mut Shown) {
    let Some(map) = map.as_object() else { return };
    for (name, value) in map {
        let tables = [Some(table), table.also];
        let owner = tables.into_iter().flatten().find_map(|table| {
            let field = table.fields.iter().find(|field| field.name == name)?;
            Some((table, field))
        });
        let Some((owner, field)) = owner else { continue };
        all.insert((owner.name, field.name));
        match (&field.kind, value) {
            (Kind::Map(below), map) => shown(below, map, all),
            (Kind::Maps(below), Value::Array(maps)) => {
                maps.iter().for_each(|map| shown(below, map, all));
            }
            (Kind::Named(below), Value::Object(maps)) => {
                maps.values().for_each(|map| shown(below, map, all));
            }
            _ => {}
        }
    }
}

#[test]
fn every_field_of_the_language_is_in_an_example() {
    let (mut all, mut found) = (Shown::new(), Shown::new());
    wanted(&FILE, &mut all);
    for (name, text) in files() {
        let read: Value =
            serde_saphyr::from_str(&text).unwrap_or_else(|why| panic!("{name}: {why}"));
        shown(&FILE, &read, &mut found);
    }
    assert!(all.len() > 60, "{all:?}");
    let missing: Vec<_> = all.difference(&found).collect();
    assert!(missing.is_empty(), "no example has {missing:?}");
}
