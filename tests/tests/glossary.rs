//! GLOSSARY.md is true: the code has the names where the page says, and nothing has the words that are not used.

use proc_macro2::{TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use tarn_tests::tree::{self, Text};

const GLOSSARY: &str = "GLOSSARY.md";
const SEARCHED: &[&str] = &["rs", "py", "sh", "c", "h", "lua", "md"];
/// The glossary itself, and what tells the past.
const EXEMPT: &[&str] = &[GLOSSARY, "CHANGELOG.md", "tests/tests/glossary.rs"];

/// Names of types that each crate, or each module, may have for its own: what they are is plain from where they are.
const IDIOMATIC: &[&str] = &[
    "Error", "Result", "Config", "Options", "Args", "Cli", "Command",
];

/// A row of a table that has all five columns.
struct Row {
    name: String,
    code: String,
    unused: Vec<String>,
}

fn quoted(cell: &str) -> Vec<String> {
    let parts = cell.split('`').skip(1).step_by(2);
    parts.map(str::to_owned).collect()
}

fn rows(text: &str) -> Vec<Row> {
    let lines = text.lines().filter(|line| line.starts_with("| "));
    let cells = lines.map(|line| line.trim_matches('|').split('|').map(str::trim));
    let rows = cells.filter_map(|cells| {
        let [name, _, _, code, unused] = cells.collect::<Vec<_>>()[..] else {
            return None;
        };
        let is_row = name != "name" && !name.starts_with("---");
        is_row.then(|| Row {
            name: name.to_owned(),
            code: code.to_owned(),
            unused: quoted(unused),
        })
    });
    rows.collect()
}

fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        !line[..at].ends_with(is_part) && !line[at + word.len()..].starts_with(is_part)
    })
}

/// Lines that have a word which is not used here. What is on the wire or on disk keeps its name by an attribute.
fn uses(file: &Text, word: &str) -> Vec<String> {
    let lines = file.text.lines().enumerate();
    let found = lines.filter(|(_, l)| has_word(l, word) && !l.contains("serde("));
    found
        .map(|(n, _)| format!("{}:{}: `{word}`", file.path, n + 1))
        .collect()
}

/// The fault of a row's place of the name, if it has one.
fn misplaced(row: &Row, files: &[Text]) -> Option<String> {
    let wrong = |why: &str| Some(format!("{}: {why}: {}", row.name, row.code));
    let (Some(name), Some((_, path))) = (quoted(&row.code).pop(), row.code.split_once(" in "))
    else {
        return wrong("no `name` in a file");
    };
    match files.iter().find(|file| file.path == path) {
        None => wrong("no such file"),
        Some(file) if file.text.lines().any(|line| has_word(line, &name)) => None,
        Some(_) => wrong("the file does not have the name"),
    }
}

#[test]
fn the_glossary_is_true() {
    let files = tree::texts(&tree::root(), SEARCHED).expect("the repository");
    let glossary = files.iter().find(|f| f.path == GLOSSARY).expect(GLOSSARY);
    let rows = rows(&glossary.text);
    assert!(rows.len() > 30, "only {} rows", rows.len());
    let mut wrong: Vec<_> = rows.iter().filter_map(|r| misplaced(r, &files)).collect();
    let searched = files.iter().filter(|f| !EXEMPT.contains(&f.path.as_str()));
    for file in searched {
        let words = rows.iter().flat_map(|r| &r.unused);
        wrong.extend(words.flat_map(|word| uses(file, word)));
    }
    let names: BTreeSet<_> = rows.iter().map(|r| &r.name).collect();
    assert_eq!(names.len(), rows.len(), "a name has two rows");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The name of the type that a line of Rust defines. Associated types, which are indented, are their trait's.
fn defined(line: &str) -> Option<&str> {
    let code = line.trim_start();
    let rest = match code.strip_prefix("pub(") {
        Some(scoped) => scoped.split_once(") ")?.1,
        None => code.strip_prefix("pub ").unwrap_or(code),
    };
    let rest = rest.strip_prefix("unsafe ").unwrap_or(rest);
    let (kind, rest) = rest.split_once(' ')?;
    let is_type = match kind {
        "struct" | "enum" | "trait" | "union" => true,
        "type" => code.len() == line.len(),
        _ => false,
    };
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_');
    let name = &rest[..end.unwrap_or(rest.len())];
    (is_type && name.starts_with(char::is_uppercase)).then_some(name)
}

/// Names of types that are defined more than once, each with where.
fn defined_twice(files: &[Text]) -> Vec<String> {
    let mut places = BTreeMap::<&str, Vec<String>>::new();
    for file in files {
        let product = file.text.split("\n#[cfg(test)]\nmod ").next();
        let lines = product.into_iter().flat_map(str::lines).enumerate();
        for (n, name) in lines.filter_map(|(n, line)| Some((n, defined(line)?))) {
            let of_name = places.entry(name).or_default();
            of_name.push(format!("{}:{}", file.path, n + 1));
        }
    }
    let twice = places.into_iter().filter(|(_, at)| at.len() > 1);
    let named = twice.filter(|(name, _)| !IDIOMATIC.contains(name));
    named
        .map(|(name, at)| format!("`{name}` is defined in {}", at.join(" and ")))
        .collect()
}

#[test]
fn each_type_name_is_defined_once() {
    let files = tree::texts(&tree::root(), &["rs"]).expect("the repository");
    let is_test = |path: &str| path.contains("/tests/") || path.ends_with("/tests.rs");
    let product =
        |f: &Text| f.path.contains("/src/") && !f.path.starts_with("tests/") && !is_test(&f.path);
    let product: Vec<_> = files.into_iter().filter(product).collect();
    assert!(product.len() > 500, "only {} files", product.len());
    let twice = defined_twice(&product);
    assert!(twice.is_empty(), "{}", twice.join("\n"));
}

/// Names of so many words are sentences: tests are called so.
const SENTENCE: usize = 5;

/// The words of the last table's first column.
fn not_names(glossary: &str) -> Vec<String> {
    let table = glossary.split("| not as a name | but |").nth(1);
    let rows = table.into_iter().flat_map(str::lines).skip(2);
    rows.filter_map(|row| row.split('|').nth(1))
        .flat_map(quoted)
        .collect()
}

/// The words of an identifier: `TierRef` has two, as `tier_ref` has.
fn words_of(identifier: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut was_lower = false;
    for c in identifier.chars() {
        if c == '_' || (c.is_uppercase() && was_lower) {
            words.push(String::new());
        }
        was_lower = c.is_lowercase() || c.is_ascii_digit();
        if let (Some(word), true) = (words.last_mut(), c != '_') {
            word.extend(c.to_lowercase());
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The identifiers of Rust code, each with its line.
fn identifiers(code: TokenStream, into: &mut Vec<(usize, String)>) {
    for token in code {
        match token {
            TokenTree::Ident(ident) => into.push((ident.span().start().line, ident.to_string())),
            TokenTree::Group(group) => identifiers(group.stream(), into),
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
    }
}

/// The identifiers of a file that have one of these words.
fn badly_named(file: &Text, words: &[String]) -> Vec<String> {
    let code = file.text.parse::<TokenStream>();
    let code = code.unwrap_or_else(|e| panic!("{}: {e}", file.path));
    let mut found = Vec::new();
    identifiers(code, &mut found);
    found.retain(|(_, name)| {
        let parts = words_of(name);
        parts.len() < SENTENCE && parts.iter().any(|part| words.contains(part))
    });
    let named = found.into_iter();
    named
        .map(|(line, name)| format!("{}:{line}: `{name}`", file.path))
        .collect()
}

#[test]
fn nothing_is_called_by_a_word_that_is_not_a_name() {
    let root = tree::root();
    let glossary = std::fs::read_to_string(root.join(GLOSSARY)).expect(GLOSSARY);
    let words = not_names(&glossary);
    assert!(words.len() > 15, "{words:?}");
    let files = tree::texts(&root, &["rs"]).expect("the repository");
    assert!(files.len() > 800, "only {} files", files.len());
    let wrong: Vec<_> = files.iter().flat_map(|f| badly_named(f, &words)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_word_that_is_not_a_name_is_found() {
    assert_eq!(words_of("NoRoomLeft2_x"), ["no", "room", "left2", "x"]);
    assert_eq!(words_of("MAX_ROOM"), ["max", "room"]);
    let text = "/// told\nfn f(told: u8) {\n    \"told {told}\";\n    x::ToldOf { y } // told\n}\nfn what_is_told_is_heard_once() {}\n";
    let file = Text {
        path: "a.rs".into(),
        text: text.into(),
    };
    let found = badly_named(&file, &["told".into(), "heard".into()]);
    assert_eq!(found, ["a.rs:2: `told`", "a.rs:4: `ToldOf`"]);
}

#[test]
fn a_second_definition_is_found() {
    let file = |path: &str, text: &str| Text {
        path: path.into(),
        text: text.into(),
    };
    let files = [
        file(
            "a.rs",
            "pub(crate) struct Twice;\nstruct Error;\npub type Once = u8;\n",
        ),
        file(
            "b.rs",
            "    enum Twice<T> {}\nstruct Error;\n    type Once = u8;\n",
        ),
        file(
            "c.rs",
            "\n#[cfg(test)]\nmod tests {\n    struct Twice;\n}\n",
        ),
    ];
    let twice = defined_twice(&files);
    assert_eq!(twice, ["`Twice` is defined in a.rs:1 and b.rs:1"]);
}

#[test]
fn what_is_wrong_is_found() {
    let table = "| name | a | b | in the code | not used here |\n| --- | --- | --- | --- | --- |\n| x | what | else | `X` in a.rs | `Old`, `old` |\n";
    let [row] = &rows(table)[..] else {
        panic!("one row");
    };
    let file = |text: &str| Text {
        path: "a.rs".into(),
        text: text.into(),
    };
    assert_eq!(row.unused, ["Old", "old"]);
    assert!(misplaced(row, &[file("struct X;")]).is_none());
    assert!(misplaced(row, &[file("struct Xs;")]).is_some());
    assert!(misplaced(row, &[]).is_some());
    assert_eq!(uses(&file("an Old, a Older\n"), "Old"), ["a.rs:1: `Old`"]);
    assert!(uses(&file("#[serde(rename = \"old\")]\n"), "old").is_empty());
    assert!(uses(&file("told, old_one\n"), "old").is_empty());
}
