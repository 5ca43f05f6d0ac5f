//! Generated pages are current.

use super::floe;

#[test]
fn problems_md_is_what_the_table_says() {
    let page = include_str!("../../../../docs/problems.md");
    let current = floe(&["problems", "--markdown"]).out;
    assert!(
        page == current,
        "docs/problems.md is out of date: floe problems --markdown > docs/problems.md"
    );
}
