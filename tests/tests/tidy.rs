//! House style as tests. Each check is a function of a tree of files; `plants` shows that each can
//! fail, by handing it a tree with one violation.

#[path = "tidy/code.rs"]
mod code;
#[path = "tidy/docs.rs"]
mod docs;
#[path = "tidy/files.rs"]
mod files;
#[path = "tidy/layers.rs"]
mod layers;
#[path = "tidy/lexer.rs"]
mod lexer;
#[path = "tidy/plants.rs"]
mod plants;
#[path = "tidy/public.rs"]
mod public;
#[path = "tidy/tree.rs"]
mod tree;
#[path = "tidy/words.rs"]
mod words;

use tree::{Check, Tree, report};

/// Runs one check on the repository.
fn hold(check: Check) {
    report(&check(&Tree::repository()));
}

#[test]
fn source_files_are_short() {
    hold(files::source_files_are_short);
}

#[test]
fn the_limiter_fits_one_reading() {
    hold(files::the_limiter_fits_one_reading);
}

#[test]
fn file_names_are_nouns_of_the_domain() {
    hold(files::file_names_are_nouns_of_the_domain);
}

#[test]
fn large_folders_have_a_reason() {
    hold(files::large_folders_have_a_reason);
}

#[test]
fn no_text_names_a_machine() {
    hold(files::no_text_names_a_machine);
}

#[test]
fn locked_dependencies_come_from_the_default_registry() {
    hold(files::locked_dependencies_come_from_the_default_registry);
}

#[test]
fn manifests_inherit_the_lints() {
    hold(files::manifests_inherit_the_lints);
}

#[test]
fn identifiers_are_words_of_the_domain() {
    hold(code::identifiers_are_words_of_the_domain);
}

#[test]
fn allowances_give_a_reason() {
    hold(code::allowances_give_a_reason);
}

#[test]
fn loose_ends_name_an_issue() {
    hold(code::loose_ends_name_an_issue);
}

#[test]
fn no_code_is_left_unwritten() {
    hold(code::no_code_is_left_unwritten);
}

#[test]
fn no_code_is_commented_out() {
    hold(code::no_code_is_commented_out);
}

#[test]
fn tests_do_not_sleep() {
    hold(code::tests_do_not_sleep);
}

#[test]
fn only_the_clock_reads_time() {
    hold(code::only_the_clock_reads_time);
}

#[test]
fn the_core_has_no_floats() {
    hold(code::the_core_has_no_floats);
}

#[test]
fn the_library_documents_few_items() {
    hold(public::the_library_documents_few_items);
}

#[test]
fn public_modules_begin_with_an_example() {
    hold(docs::public_modules_begin_with_an_example);
}

#[test]
fn algorithms_are_documented_alike() {
    hold(docs::algorithms_are_documented_alike);
}

#[test]
fn every_family_has_a_script() {
    hold(docs::every_family_has_a_script);
}

#[test]
fn links_lead_somewhere() {
    hold(docs::links_lead_somewhere);
}

#[test]
fn decision_records_are_one_page() {
    hold(docs::decision_records_are_one_page);
}

#[test]
fn the_changelog_is_tagged() {
    hold(docs::the_changelog_is_tagged);
}

#[test]
fn prose_names_its_subjects() {
    hold(words::prose_names_its_subjects);
}

#[test]
fn citations_resolve() {
    hold(words::citations_resolve);
}

#[test]
fn dependencies_point_one_way() {
    report(&layers::dependencies_point_one_way(&layers::workspace()));
}

#[test]
fn the_core_depends_on_nothing() {
    report(&layers::the_core_depends_on_nothing(&layers::workspace()));
}

#[test]
fn the_library_depends_on_what_is_listed() {
    report(&layers::the_library_depends_on_what_is_listed(&layers::workspace()));
}
