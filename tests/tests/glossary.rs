//! GLOSSARY.md is true: the code has the names where the page says, and nothing has the words that are not used.

use std::collections::BTreeSet;
use tarn_tests::tree::{self, Text};

const GLOSSARY: &str = "GLOSSARY.md";
const SEARCHED: &[&str] = &["rs", "py", "sh", "c", "h", "lua", "md"];
/// The glossary itself, and what tells the past.
const EXEMPT: &[&str] = &[GLOSSARY, "CHANGELOG.md", "tests/tests/glossary.rs"];

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

/// What is wrong with where a row says that the name is.
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
