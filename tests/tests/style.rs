//! The sources keep the rules of style; and each rule finds what breaks it.

use tarn_tests::style;
use tarn_tests::tree::{self, Text};

const SOURCES: &[&str] = &["rs", "sh", "py", "c", "h", "lua", "js", "css", "html"];
const RUST: &[&str] = &["rs"];
const TEXTS: &[&str] = &[
    "rs", "sh", "py", "c", "h", "lua", "js", "css", "html", "toml", "md", "yml", "",
];

/// A rule, the files it is for, and a text at a path that breaks it once.
type Rule = (
    fn(&Text) -> Vec<String>,
    &'static [&'static str],
    &'static str,
    &'static str,
);

const RULES: &[Rule] = &[
    (
        style::unfinished,
        TEXTS,
        "crates/x/src/a.rs",
        concat!("fn f() {\n    // TO", "DO: later\n}\n"),
    ),
    (
        style::unfinished,
        TEXTS,
        "crates/x/src/a.rs",
        concat!("fn f() { todo", "!() }\n"),
    ),
    (
        style::machine_paths,
        TEXTS,
        "a.sh",
        concat!("cd /wo", "rk/main\n"),
    ),
    (
        style::machine_paths,
        TEXTS,
        "a.md",
        concat!("see ../sha", "red/DESIGN.md\n"),
    ),
    (
        style::unsafe_code,
        RUST,
        "crates/local/src/a.rs",
        concat!("// SAFETY: no\nun", "safe { f() }\n"),
    ),
    (
        style::unsafe_code,
        RUST,
        "crates/sys/src/a.rs",
        concat!("fn g() {\n    un", "safe { f() }\n}\n"),
    ),
    (
        style::bounds,
        RUST,
        "crates/x/src/a.rs",
        "use a;\npub const MAX_NODES: usize = 7;\n",
    ),
];

#[test]
fn the_sources_keep_the_rules() {
    let mut found = Vec::new();
    for (rule, extensions, _, _) in RULES {
        let files = tree::texts(&tree::root(), extensions).expect("the repository");
        assert!(files.len() > 20, "only {} files", files.len());
        found.extend(files.iter().flat_map(rule));
    }
    found.sort();
    found.dedup();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn no_file_is_too_long() {
    let files = tree::texts(&tree::root(), SOURCES).expect("the repository");
    let found: Vec<_> = files.iter().flat_map(style::length).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
    let long = Text {
        path: "a.rs".into(),
        text: "\n".repeat(style::MAX_LINES + 1),
    };
    assert_eq!(style::length(&long).len(), 1);
}

#[test]
fn every_rule_can_fail() {
    for (rule, _, path, text) in RULES {
        let file = Text {
            path: (*path).into(),
            text: (*text).into(),
        };
        assert_eq!(rule(&file).len(), 1, "{text}");
    }
}

#[test]
fn the_rules_let_good_code_pass() {
    let text = concat!(
        "/// Nodes of a cluster.\npub const MAX_NODES: usize = 7;\n// SAFETY: f has no condition.\nun",
        "safe { f() }\nlet d = \"$TMP/wo",
        "rk/x table.XXXXXX\";\n"
    );
    let file = Text {
        path: "crates/sys/src/a.rs".into(),
        text: text.into(),
    };
    for (rule, _, _, _) in RULES {
        assert_eq!(rule(&file), Vec::<String>::new());
    }
}
