use super::*;
use crate::policy::document::reader::{
    MAX_AHEAD, MAX_DEPTH, MAX_NODES, MAX_SCALAR_BYTES, MAX_TEXT_BYTES,
};

#[test]
fn a_long_file_is_refused() {
    let text = "a".repeat(100_000_000);
    assert_eq!(
        said(&text),
        format!("policy.yaml:1:1: the file has 100000000 bytes; the maximum is {MAX_TEXT_BYTES}")
    );
}

#[test]
fn a_long_text_is_refused() {
    assert_eq!(root(&"a".repeat(MAX_SCALAR_BYTES)).as_text().unwrap().len(), MAX_SCALAR_BYTES);
    assert_eq!(
        said(&format!("a:\n- {}", "é".repeat(MAX_SCALAR_BYTES))),
        "policy.yaml:2:3: a text of 131072 bytes; the maximum is 65536 (at a[0])"
    );
}

#[test]
fn deep_nesting_is_refused_however_it_is_written() {
    let lists = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    root(&lists(MAX_DEPTH));
    let message = "lists and maps are nested deeper than 64 levels";
    let too_deep = [
        lists(MAX_DEPTH + 1),
        lists(100_000),
        "[".repeat(100_000),
        "{a: ".repeat(100_000),
        "- ".repeat(100_000),
        "? ".repeat(100_000),
        // Each alias alone is not too deep.
        format!("- &a {}\n- {}*a{}", lists(40), "[".repeat(30), "]".repeat(30)),
    ];
    for text in too_deep {
        let (documents, findings) = parse(&text);
        let findings = findings.to_string();
        assert!(documents.is_empty() && findings.contains(message), "{findings}");
    }
}

#[test]
fn a_tree_that_is_large_only_when_expanded_is_refused() {
    let mut laughs = "- &l0 [ha]\n".to_owned();
    for level in 1..30 {
        let aliases = vec![format!("*l{}", level - 1); 10].join(", ");
        laughs.push_str(&format!("- &l{level} [{aliases}]\n"));
    }
    let message = format!("more than {MAX_NODES} texts, lists and maps");
    let said = said(&laughs);
    assert!(said.starts_with("policy.yaml:7:") && said.contains(&message), "{said}");
}

#[test]
fn many_nodes_are_refused_without_aliases_too() {
    let said = said(&"- a\n".repeat(MAX_NODES));
    assert!(said.starts_with("policy.yaml:1000000:3: more than"), "{said}");
    root(&"- a\n".repeat(MAX_NODES - 1));
}

#[test]
fn a_shared_text_is_held_once() {
    let long = "a".repeat(MAX_SCALAR_BYTES);
    let text = format!("- &a {long}\n{}", "- *a\n".repeat(900_000));
    assert_eq!(root(&text).as_list().unwrap().len(), 900_001);
}

#[test]
fn the_parser_s_memory_is_bounded() {
    for text in [",", "a,", ": ", "? ", "&a ", "!a "] {
        let (documents, findings) = parse(&format!("\na: b\n---\n\n- [{}", text.repeat(4_000_000)));
        let findings = findings.to_string();
        assert!(
            findings.contains("brackets has more than") || findings.contains(":5:4:"),
            "{findings}"
        );
        assert_eq!(documents.len(), 1);
    }
}

#[test]
fn a_json_file_may_be_longer_than_the_parser_s_buffer() {
    let rule = "  {\"key\": \"a\", \"n\": [1, 2]},\n";
    let rules = rule.repeat(2 * MAX_AHEAD / rule.len());
    let text = format!("# made by a program\n\n{{\"d\": [\n{rules}{{}}], \"e\": 7}}\n");
    assert!(text.len() > 2 * MAX_AHEAD);
    let root = root(&text);
    assert_eq!((at(&root), at(child(&root, "d"))), ((3, 1), (3, 7)));
    assert_eq!(child(&root, "e").as_u64(), Ok(7));
    assert_eq!(said("[a"), "policy.yaml:1:3: the list in [ ] lacks a comma or its ] here (at [1])");
}

#[test]
fn a_bracket_below_other_lines_begins_no_document() {
    for text in ["# c\ra: b\n[x]", "a: b\n[x]", "%YAML 1.2\n[x]"] {
        let (documents, findings) = parse(text);
        assert!(documents.is_empty() && findings.has_errors(), "{text:?}");
    }
}
