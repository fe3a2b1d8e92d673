//! The sources keep the rules of style; and each rule finds its violations.

use tarn_tests::style;
use tarn_tests::tree::{self, Text};

const SOURCES: &[&str] = &["rs", "sh", "py", "c", "h", "lua", "js", "css", "html"];
const RUST: &[&str] = &["rs"];
const TEXTS: &[&str] = &[
    "rs", "sh", "py", "c", "h", "lua", "js", "css", "html", "toml", "md", "yml", "",
];

/// A rule, the files it is for, and texts at paths that break it once.
type Rule = (
    fn(&Text) -> Vec<String>,
    &'static [&'static str],
    &'static [(&'static str, &'static str)],
);

const RULES: &[Rule] = &[
    (
        style::unfinished,
        TEXTS,
        &[
            ("a.rs", concat!("fn f() {\n    // TO", "DO: later\n}\n")),
            ("a.rs", concat!("fn f() { todo", "!() }\n")),
        ],
    ),
    (
        style::width,
        &["md"],
        &[(
            "a.md",
            "```\na line of code may be as long as it is, whatever its width, for it is copied as it stands, with all of it\n```\n- a line of prose that is above one hundred columns is divided at a space so that two texts can be compared\n",
        )],
    ),
    (
        style::headless,
        RUST,
        &[
            ("a.rs", concat!("/// Wh", "at is missing.\nstruct A;\n")),
            ("a.rs", concat!("    // Wh", "oever comes first waits.\n")),
        ],
    ),
    (
        style::machine_paths,
        TEXTS,
        &[
            ("a.sh", concat!("cd /wo", "rk/main\n")),
            ("a.md", concat!("see ../sha", "red/DESIGN.md\n")),
        ],
    ),
    (
        style::unsafe_code,
        RUST,
        &[
            (
                "workflow/node/src/a.rs",
                concat!("// SAFETY: no\nun", "safe { f() }\n"),
            ),
            (
                "foundation/sys/src/a.rs",
                concat!("fn g() {\n    un", "safe { f() }\n}\n"),
            ),
        ],
    ),
    (
        style::bounds,
        RUST,
        &[(
            "workflow/x/src/a.rs",
            "use a;\npub const MAX_NODES: usize = 7;\n",
        )],
    ),
];

fn file(path: &str, text: &str) -> Text {
    Text {
        path: path.into(),
        text: text.into(),
    }
}

#[test]
fn the_sources_keep_the_rules() {
    let mut found = Vec::new();
    for (rule, extensions, _) in RULES {
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
    let long = file("a.rs", &"\n".repeat(style::MAX_LINES + 1));
    assert_eq!(style::length(&long).len(), 1);
}

#[test]
fn every_rule_can_fail() {
    for (rule, _, broken) in RULES {
        assert!(!broken.is_empty());
        for (path, text) in *broken {
            assert_eq!(rule(&file(path, text)).len(), 1, "{text}");
        }
    }
}

#[test]
fn the_rules_let_good_code_pass() {
    let text = concat!(
        "/// Nodes of a cluster.\npub const MAX_NODES: usize = 7;\n// SAFETY: f has no condition.\nun",
        "safe { f() }\nlet d = \"$TMP/wo",
        "rk/x table.XXXXXX\";\n"
    );
    let good = file("foundation/sys/src/a.rs", text);
    for (rule, _, _) in RULES {
        assert_eq!(rule(&good), Vec::<String>::new());
    }
}
