use super::*;

#[path = "document/bounds_tests.rs"]
mod bounds;

fn parse(text: &str) -> (Vec<Document>, Findings) {
    let mut findings = Findings::default();
    let documents = Document::parse("policy.yaml", text, &mut findings);
    (documents, findings)
}

/// The root of a valid text.
fn root(text: &str) -> Node {
    let (mut documents, findings) = parse(text);
    assert!(findings.is_empty(), "{findings}");
    assert_eq!(documents.len(), 1);
    documents.remove(0).root
}

/// The findings of a text, one per line.
fn said(text: &str) -> String {
    parse(text).1.to_string()
}

fn child<'a>(node: &'a Node, key: &str) -> &'a Node {
    let has_key = |pair: &&(Node, Node)| pair.0.as_text().unwrap() == key;
    &node.as_map().unwrap().iter().find(has_key).unwrap().1
}

fn at(node: &Node) -> (u32, u32) {
    (node.place.line, node.place.column)
}

/// The tree without positions, on one line.
fn shown(node: &Node) -> String {
    let joined = |parts: Vec<String>| parts.join(", ");
    match &node.kind {
        Kind::Null => "null".into(),
        Kind::Scalar { text, plain: true } => text.to_string(),
        Kind::Scalar { text, plain: false } => format!("{text:?}"),
        Kind::List(items) => format!("[{}]", joined(items.iter().map(shown).collect())),
        Kind::Map(pairs) => {
            let pair = |(key, value): &(Node, Node)| format!("{}: {}", shown(key), shown(value));
            format!("{{{}}}", joined(pairs.iter().map(pair).collect()))
        }
    }
}

#[test]
fn every_node_knows_its_line_and_column() {
    let root = root(
        "# limits\n\
         domain: é: x\n\
         descriptors:\n\
         \x20 - key: 'a'\n\
         \x20   rate_limit: {unit: day,\n\
         \x20     requests_per_unit: 7}\n\
         \x20 - &again\n\
         \x20   text: |\n\
         \x20     one\n\
         \x20   empty:\n\
         \x20 - *again\n"
            .replace("é: x", "é")
            .as_str(),
    );
    assert_eq!(at(&root), (2, 1));
    assert_eq!(at(child(&root, "domain")), (2, 9));
    let descriptors = child(&root, "descriptors");
    assert_eq!(at(descriptors), (4, 3));
    let descriptors = descriptors.as_list().unwrap();
    assert_eq!(at(child(&descriptors[0], "key")), (4, 10));
    let limit = child(&descriptors[0], "rate_limit");
    assert_eq!((at(limit), at(child(limit, "requests_per_unit"))), ((5, 17), (6, 26)));
    assert_eq!(at(&descriptors[1]), (7, 5));
    assert_eq!(at(child(&descriptors[1], "text")), (9, 7));
    assert_eq!(at(child(&descriptors[1], "empty")), (10, 10));
    // An alias has the position of its use, its children those of the anchor.
    assert_eq!((at(&descriptors[2]), at(child(&descriptors[2], "text"))), ((11, 5), (9, 7)));
}

#[test]
fn columns_count_characters_and_any_line_end_counts_once() {
    let root = root("a: ü\r\n\"é→\": x\rlast: y");
    assert_eq!(at(child(&root, "é→")), (2, 7));
    assert_eq!(at(child(&root, "last")), (3, 7));
}

#[test]
fn a_byte_order_mark_is_not_content() {
    let root = root("\u{feff}a: b\n");
    assert_eq!((at(&root), at(child(&root, "a"))), ((1, 1), (1, 4)));
}

#[test]
fn a_file_holds_any_number_of_documents() {
    let shapes = |text| {
        let (documents, findings) = parse(text);
        assert!(findings.is_empty(), "{findings}");
        documents.iter().map(|document| shown(&document.root)).collect::<Vec<_>>()
    };
    assert!(shapes("").is_empty());
    assert!(shapes("# nothing\n\n").is_empty());
    assert_eq!(shapes("---\n"), ["null"]);
    assert_eq!(shapes("a: 1\n---\n- b\n...\n---\nc"), ["{a: 1}", "[b]", "c"]);
    assert_eq!(&*parse("a").0[0].file, "policy.yaml");
}

#[test]
fn scalars_have_the_type_that_the_loader_expects() {
    let root = root("[7, '7', true, 'true', ~, null, '', '~', a b, no]");
    assert_eq!(shown(&root), r#"[7, "7", true, "true", null, null, "", "~", a b, no]"#);
    let items = root.as_list().unwrap();
    let texts: Vec<_> = items.iter().map(|item| item.as_text().ok()).collect();
    let expected = [
        Some("7"),
        Some("7"),
        Some("true"),
        Some("true"),
        None,
        None,
        Some(""),
        Some("~"),
        Some("a b"),
        Some("no"),
    ];
    assert_eq!(texts, expected);
}

#[test]
fn bools_have_the_spellings_that_go_takes() {
    for text in ["true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON", "y", "Y"] {
        assert_eq!(root(text).as_bool(), Ok(true), "{text}");
    }
    for text in ["false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF", "n", "N"] {
        assert_eq!(root(text).as_bool(), Ok(false), "{text}");
    }
    for text in ["tRUE", "'true'", "1", "0", "enabled", "~"] {
        root(text).as_bool().unwrap_err();
    }
}

#[test]
fn whole_numbers_have_the_spellings_that_go_takes() {
    let numbers = [
        ("0", 0),
        ("7", 7),
        ("+7", 7),
        ("1_000_000", 1_000_000),
        ("0x1F", 31),
        ("0XfF", 255),
        ("0o17", 15),
        ("017", 15),
        ("0b1_01", 5),
        ("18446744073709551615", u64::MAX),
        ("!!int '7'", 7),
    ];
    for (text, number) in numbers {
        assert_eq!(root(text).as_u64(), Ok(number), "{text}");
    }
    for text in
        ["-1", "08", "1.5", "1e3", "_1", "0x", "0x+7", "++7", "+", "'7'", "!!str 7", "é", "0é"]
    {
        root(text).as_u64().unwrap_err();
    }
}

#[test]
fn a_mismatch_names_the_expected_and_the_actual_value() {
    let message = |found: Result<String, Finding>| found.unwrap_err().message;
    let text = |text| message(root(text).as_text().map(str::to_owned));
    assert_eq!(text("[a]"), "expected text, found a list");
    assert_eq!(text("{}"), "expected text, found a map");
    assert_eq!(text("---"), "expected text, found nothing");
    let number = |text| message(root(text).as_u64().map(|number| number.to_string()));
    assert_eq!(number("abc"), "expected a whole number, 0 or more, found the text \"abc\"");
    assert_eq!(number("'7'"), "expected a whole number, 0 or more, found the text \"7\"");
    assert_eq!(number("-7"), "expected a whole number, 0 or more, found the number -7");
    assert_eq!(number("inf"), "expected a whole number, 0 or more, found the text \"inf\"");
    assert_eq!(
        number("18446744073709551616"),
        "expected a whole number of at most 18446744073709551615, \
         found the number 18446744073709551616"
    );
    let bool = |text| message(root(text).as_bool().map(|bool| bool.to_string()));
    assert_eq!(bool("0x10"), "expected true or false, found the number 0x10");
    assert_eq!(bool("\"a\\nb\""), "expected true or false, found the text \"a\\nb\"");
    assert_eq!(
        bool(&"long ".repeat(100)),
        "expected true or false, found the text \"long long long long long long long long …\""
    );
    assert_eq!(
        message(root("a").as_list().map(|_| String::new())),
        "expected a list, found the text \"a\""
    );
    let finding = root("\n  - 1").as_map().unwrap_err();
    assert_eq!(finding.to_string(), "policy.yaml:2:3: expected a map, found a list");
}

#[test]
fn a_finding_shows_severity_and_path() {
    let node = root("a");
    let warning = node.warning("unwise").at("descriptors[2].rate_limit.unit");
    let shown = "policy.yaml:1:1: warning: unwise (at descriptors[2].rate_limit.unit)";
    assert_eq!(warning.to_string(), shown);
    assert_eq!(node.error("wrong").to_string(), "policy.yaml:1:1: wrong");
}

#[test]
fn findings_beyond_a_thousand_are_only_counted() {
    let mut findings = Findings::default();
    let node = root("a");
    for _ in 0..1_000 {
        findings.push(node.warning("unwise"));
    }
    assert!(!findings.to_string().contains("more") && !findings.has_errors());
    findings.push(node.error("wrong"));
    findings.push(node.warning("unwise"));
    assert_eq!((findings.iter().len(), findings.dropped()), (1_000, 2));
    assert!(findings.has_errors(), "an error counts even when it is not kept");
    assert!(findings.to_string().ends_with("unwise\nand 2 more"));
}

#[test]
fn aliases_stand_for_their_anchors() {
    assert_eq!(shown(&root("a: &x [1, {b: 2}]\nc: *x")), "{a: [1, {b: 2}], c: [1, {b: 2}]}");
    assert_eq!(shown(&root("- &x 1\n- *x\n- &x 2\n- *x")), "[1, 1, 2, 2]");
    assert_eq!(shown(&root("&k key: *k")), "{key: key}");
    assert_eq!(shown(&root("- &empty\n- *empty")), "[null, null]");
}

#[test]
fn an_alias_needs_a_whole_anchor_in_the_same_document() {
    assert_eq!(
        said("a: &x\n  b: *x"),
        "policy.yaml:2:6: the alias is inside the node that it refers to (at a.b)"
    );
    assert_eq!(
        said("&x a\n---\n- *x"),
        "policy.yaml:3:3: the alias refers to an anchor of an earlier document (at [0])"
    );
    assert_eq!(
        said("a: *x"),
        "policy.yaml:1:4: the alias refers to an anchor that is not defined before it (at a)"
    );
}

#[test]
fn own_keys_win_over_merged_ones_and_earlier_over_later() {
    let base = "- &a {x: 1, y: 1}\n- &b {y: 2, z: 2}\n";
    let merged = |text: &str| shown(&root(&format!("{base}- {text}")).as_list().unwrap()[2]);
    assert_eq!(merged("{<<: *a, x: 0}"), "{x: 0, y: 1}");
    assert_eq!(merged("{x: 0, <<: *a}"), "{x: 0, y: 1}");
    assert_eq!(merged("{<<: [*a, *b], w: 0}"), "{w: 0, x: 1, y: 1, z: 2}");
    assert_eq!(merged("{<<: [*b, {y: 3, v: 3}]}"), "{y: 2, z: 2, v: 3}");
    assert_eq!(merged("{'<<': *a}"), "{\"<<\": {x: 1, y: 1}}", "quoted, it is a key");
}

#[test]
fn only_maps_can_be_merged() {
    assert_eq!(
        said("a:\n  <<: [{}, b]"),
        "policy.yaml:2:12: expected a map, or a list of maps, to merge with <<, \
         found the text \"b\" (at a)"
    );
}

#[test]
fn every_duplicate_key_is_a_finding_and_the_rest_is_still_read() {
    let (documents, findings) = parse("a: 1\nlist:\n- b: 1\n- b: 1\n  \"b\": 2\na: 3\nc: 4\n");
    assert_eq!(
        findings.to_string(),
        "policy.yaml:5:3: the key \"b\" was already given on line 4 (at list[1])\n\
         policy.yaml:6:1: the key \"a\" was already given on line 1"
    );
    assert_eq!(shown(&documents[0].root), "{a: 1, list: [{b: 1}, {b: 1}], c: 4}");
}

#[test]
fn a_key_is_text() {
    assert_eq!(said("? [a]\n: b"), "policy.yaml:1:3: expected text as a key, found a list");
    assert_eq!(said("~: b"), "policy.yaml:1:1: expected text as a key, found nothing");
    assert_eq!(shown(&root("7: b")), "{7: b}");
}

#[test]
fn yaml_tags_are_honoured_and_other_tags_refused() {
    let tagged = "[!!str 7, !!str null, ! x, !!int '7', !!null '', !<tag:yaml.org,2002:str> 7]";
    assert_eq!(shown(&root(tagged)), r#"["7", "null", "x", 7, null, "7"]"#);
    assert_eq!(shown(&root("!!map {a: !!seq [b]}")), "{a: [b]}");
    let refused = |tag: &str| format!("the tag \"{tag}\" is not supported: remove it (at a)");
    assert_eq!(said("a: !secret b"), format!("policy.yaml:1:4: {}", refused("!secret")));
    assert_eq!(said("a: !!binary b"), format!("policy.yaml:1:4: {}", refused("!!binary")));
    assert_eq!(said("a: !!seq {}"), format!("policy.yaml:1:4: {}", refused("!!seq")));
}

#[test]
fn a_syntax_error_has_a_position_and_a_plain_message() {
    let cases = [
        ("a: 'b\n  c: d\n", "1:4: the quote that opens here is never closed (at a)"),
        ("a: 'b\nc: d\n", "1:4: the quote that opens here is not closed, or the lines"),
        ("a: [b, c\n", "2:1: the list in [ ] lacks a comma or its ] here (at a[2])"),
        ("a: {b: c", "1:9: the map in { } lacks a comma or its } here (at a)"),
        ("a: b]\nc: ]", "2:4: the bracket that closes here was not opened (at c)"),
        (
            "a: b: c",
            "1:5: a : is not allowed here: quote a text that contains one, or fix the indentation",
        ),
        ("a:\n\tb: c", "2:2: a tab cannot indent: use spaces"),
        ("value: *\n", "1:8: & and * need a name; put quotes around a text that begins with one"),
        ("a: @b", "1:4: a text cannot begin with this character: put quotes around it"),
        ("a: b\0", "1:5: a character that YAML does not allow"),
        ("a: b\nc\n", "3:1: the line before this one is neither"),
        ("- a\nb: c\n", "2:1: an item that begins with - is expected here"),
    ];
    for (text, expected) in cases {
        let said = said(text);
        assert!(said.starts_with(&format!("policy.yaml:{expected}")), "{text:?}: {said}");
    }
    let (documents, findings) = parse("a: b\n---\nc: [");
    assert_eq!((documents.len(), findings.iter().len()), (1, 1), "what was whole is kept");
}

const SEEDS: [&str; 5] = [
    "domain: a\ndescriptors:\n  - key: x\n    value: \"y\\n\\u0041\"\n    rate_limit: {unit: \
     second, requests_per_unit: 0x10}\n  - &b [1, {a: b}]\n  - *b\n",
    "--- !!str a\n...\n--- |+2\n    foo\n  bar\n---\n? a\n: - >-\n    x\n\n    y\n",
    "%YAML 1.2\n%TAG !e! tag:a,2000:\n---\na: &x {}\nb:\n  <<: [*x, *x]\n  'k' : !!map {? a : b, \
     c}\n  t: \"a\\\n   b\"\n# c\n",
    "{\"a\":[1,2,{\"b\":null}],\"c\":\"d\"}\r\n\u{feff}---\rx: y # z\n",
    "&a a: &b {x: 1, y: 2}\nc: {<<: *b, x: [*b]}\nd: 'it''s'\n",
];
const SCRAPS: [&str; 44] = [
    "\n",
    "\r",
    "\t",
    " ",
    "  ",
    "- ",
    ": ",
    "? ",
    "[",
    "]",
    "{",
    "}",
    ",",
    "&a ",
    "*a",
    "!",
    "!!str ",
    "!!int ",
    "|",
    "|2-\n",
    ">",
    "'",
    "\"",
    "\\",
    "\\x4",
    "#",
    " #",
    "%",
    "@",
    "`",
    "---",
    "---\n",
    "...",
    "\u{feff}",
    "\0",
    "é",
    "\u{85}",
    "\u{2028}",
    "<<: ",
    "%TAG ! x\n",
    "!<a>",
    "%41",
    "\n\n   ",
    "                    ",
];

#[test]
fn no_text_makes_the_reader_panic_or_point_outside_the_file() {
    let mut random = fastrand::Rng::with_seed(4);
    let mut refused = 0;
    for _ in 0..100_000 {
        let mut text: Vec<char> = SEEDS[random.usize(..SEEDS.len())].chars().collect();
        for _ in 0..random.usize(1..4) {
            let from = random.usize(..=text.len());
            let to = (from + random.usize(..20)).min(text.len());
            match random.u8(..3) {
                0 => drop(text.drain(from..to)),
                1 => {
                    let copy = text[from..to].to_vec();
                    let target = random.usize(..=text.len());
                    text.splice(target..target, copy);
                }
                _ => {
                    let scrap = SCRAPS[random.usize(..SCRAPS.len())];
                    text.splice(from..from, scrap.chars());
                }
            }
        }
        let text: String = text.into_iter().collect();
        let (documents, findings) = parse(&text);
        refused += usize::from(findings.has_errors());
        let lines = widths(&text);
        for finding in findings.iter() {
            assert!(lies_within(finding.place, &lines), "{finding} in {text:?}");
            assert_eq!(finding.to_string().lines().count(), 1);
        }
        for document in &documents {
            every_place_lies_within(&document.root, &lines, &text);
        }
    }
    assert!((10_000..90_000).contains(&refused), "both answers are tried: {refused}");
}

/// The characters of each line, without its end.
fn widths(text: &str) -> Vec<usize> {
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    text.split('\n').map(|line| line.chars().count()).collect()
}

fn lies_within(place: Location, lines: &[usize]) -> bool {
    let Some(width) = lines.get(place.line as usize - 1) else { return false };
    (1..=width + 1).contains(&(place.column as usize))
}

fn every_place_lies_within(node: &Node, lines: &[usize], text: &str) {
    assert!(lies_within(node.place, lines), "{:?} in {text:?}", node.place);
    match &node.kind {
        Kind::Scalar { .. } | Kind::Null => {}
        Kind::List(items) => {
            items.iter().for_each(|item| every_place_lies_within(item, lines, text))
        }
        Kind::Map(pairs) => pairs.iter().for_each(|(key, value)| {
            every_place_lies_within(key, lines, text);
            every_place_lies_within(value, lines, text);
        }),
    }
}
