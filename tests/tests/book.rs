//! The documents as a book: every page is in it, and every link of mdBook's output leads somewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use tarn_tests::{pages, programs, tree};

/// The targets of `[text](target)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let ends = text.match_indices("](").map(|(i, _)| &text[i + 2..]);
    ends.filter_map(|rest| Some(rest.split_once(')')?.0))
}

/// The pages that the summary lists, as paths from the top; and two that are made for the book alone.
fn summary() -> Vec<String> {
    let summary = tree::root().join("docs/SUMMARY.md");
    let summary = fs::read_to_string(summary).expect("the summary");
    let listed = links(&summary).filter(|target| !target.is_empty());
    let from_top = |target: &str| match target.strip_prefix("../") {
        Some(above) => above.to_owned(),
        None => format!("docs/{target}"),
    };
    listed.map(from_top).collect()
}

#[test]
fn the_book_has_every_page() {
    let mut listed = summary();
    listed.retain(|page| !pages::MADE.contains(&page.as_str()));
    let once: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(once.len(), listed.len(), "a page is listed twice");
    let pages = pages::all().expect("the pages").into_iter();
    assert_eq!(pages.map(|page| page.path).collect::<BTreeSet<_>>(), once);
}

/// The book, built in a folder; false, with a message, where there is no mdBook.
fn build(to: &Path) -> bool {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .parent()
        .expect("its folder");
    let script = |name: &str| {
        let mut command = Command::new(tree::root().join("scripts").join(name));
        command.env("CARGO_TARGET_DIR", target);
        command
    };
    let made = script("mdbook.sh")
        .arg(target.join("mdbook"))
        .output()
        .expect("mdbook.sh");
    if !made.status.success() {
        let why = String::from_utf8_lossy(&made.stderr);
        eprintln!("SKIPPED: no mdBook from crates.io: {why}");
        assert!(std::env::var_os("CI").is_none(), "no mdBook");
        return false;
    }
    if Command::new("mandoc").arg("/dev/null").output().is_err() {
        eprintln!("SKIPPED: no mandoc");
        return false;
    }
    let programs = tempfile::tempdir().expect("a folder");
    for name in ["tarn", "tarn-bench", "tarnd"] {
        let program = programs::built(name).unwrap_or_else(|e| panic!("{e:#}"));
        std::os::unix::fs::symlink(program, programs.path().join(name)).expect("a link");
    }
    let built = script("book.sh")
        .arg(programs.path())
        .arg(to)
        .output()
        .expect("book.sh");
    let stderr = String::from_utf8_lossy(&built.stderr);
    let complains = ["WARN", "ERROR"].iter().any(|word| stderr.contains(word));
    assert!(built.status.success() && !complains, "{stderr}");
    true
}

/// The values of an attribute in HTML.
fn attributes(html: &str, name: &str) -> Vec<String> {
    let begin = format!(" {name}=\"");
    let found = html.split(&begin).skip(1);
    let values = found.filter_map(|rest| rest.split_once('"'));
    values
        .map(|(value, _)| value.replace("&amp;", "&"))
        .collect()
}

/// A path without `.` and `..`, below the book; none for one that leads out of it.
fn plain(path: &Path) -> Option<PathBuf> {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::Normal(name) => plain.push(name),
            Component::ParentDir if plain.pop() => {}
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(plain)
}

#[test]
fn links_of_the_book_lead_somewhere() {
    let book = tempfile::tempdir().expect("a folder");
    let book = book.path().join("book");
    if !build(&book) {
        return;
    }
    let made = |page: &str| {
        let page = page.strip_suffix(".md").expect("a page");
        let index = page
            .strip_suffix("README")
            .map(|folder| format!("{folder}index"));
        PathBuf::from(index.unwrap_or_else(|| page.to_owned()) + ".html")
    };
    let texts: BTreeMap<PathBuf, String> = summary()
        .iter()
        .map(|page| {
            let file = made(page);
            let html = fs::read_to_string(book.join(&file));
            (
                file,
                html.unwrap_or_else(|e| panic!("{page} is not in the book: {e}")),
            )
        })
        .collect();
    let anchors: BTreeMap<&PathBuf, BTreeSet<String>> = texts
        .iter()
        .map(|(file, html)| (file, attributes(html, "id").into_iter().collect()))
        .collect();
    let (mut wrong, mut checked) = (Vec::new(), 0);
    for (file, html) in &texts {
        let targets = ["href", "src"].map(|name| attributes(html, name));
        for target in targets.concat() {
            if ["https:", "http:", "mailto:", "data:"]
                .iter()
                .any(|outside| target.starts_with(outside))
            {
                continue;
            }
            let (path, anchor) = target.split_once('#').unwrap_or((&target, ""));
            let folder = file.parent().expect("a folder");
            let to = if path.is_empty() {
                Some(file.clone())
            } else {
                plain(&folder.join(path))
            };
            let there = to.as_ref().is_some_and(|to| book.join(to).exists());
            let known = to.as_ref().and_then(|to| anchors.get(to));
            let found = anchor.is_empty() || known.is_some_and(|all| all.contains(anchor));
            if !there || !found {
                wrong.push(format!("{}: {target}", file.display()));
            }
            checked += 1;
        }
    }
    assert!(
        wrong.is_empty(),
        "these lead nowhere:\n{}",
        wrong.join("\n")
    );
    assert!(checked > 1000, "only {checked} links");
}
