//! The documents as a book: every page is in it, and its commands are those of tarn.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use tarn_tests::{programs, tree};

/// The targets of `[text](target)`.
fn links(text: &str) -> impl Iterator<Item = &str> {
    let ends = text.match_indices("](").map(|(i, _)| &text[i + 2..]);
    ends.filter_map(|rest| Some(rest.split_once(')')?.0))
}

#[test]
fn the_book_has_every_page() {
    let root = tree::root();
    let summary = std::fs::read_to_string(root.join("docs/SUMMARY.md")).expect("the summary");
    // What is made for the book alone.
    let made = |target: &&str| !target.is_empty() && !target.starts_with("reference/");
    let listed: Vec<String> = links(&summary)
        .filter(made)
        .map(|target| match target.strip_prefix("../") {
            Some(above) => above.to_owned(),
            None => format!("docs/{target}"),
        })
        .collect();
    let once: BTreeSet<String> = listed.iter().cloned().collect();
    assert_eq!(once.len(), listed.len(), "a page is listed twice");
    let texts = tree::texts(&root, &["md"]).expect("the repository");
    let pages = texts.into_iter().map(|t| t.path).filter(|path| {
        let page = path.starts_with("docs/") || path.starts_with("examples/");
        let top = path == "README.md" || path == "ARCHITECTURE.md";
        (page || top) && path != "docs/SUMMARY.md"
    });
    assert_eq!(pages.collect::<BTreeSet<_>>(), once);
}

/// The commands of a page's code: lines of blocks, and what stands in backquotes and is none of prose (a format's first word may be `tarn`, too).
fn commands(text: &str, is_command: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut fenced = false;
    let mut open = String::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
            continue;
        }
        if fenced || line.starts_with("    ") {
            let line = line.split(" # ").next().unwrap_or_default().trim();
            match line.strip_suffix('\\') {
                Some(begun) => open.push_str(begun),
                None => found.push(std::mem::take(&mut open) + line),
            }
        } else {
            let inline = line.split('`').skip(1).step_by(2);
            let ours = inline.filter(|code| {
                let mut words = code.split(' ');
                words.next() == Some("tarn") && words.next().is_some_and(&is_command)
            });
            found.extend(ours.map(str::to_owned));
        }
    }
    let ours = found.into_iter().filter_map(|line| {
        let line = line.strip_prefix("sudo ").unwrap_or(&line);
        let line = line.strip_prefix("target/release/").unwrap_or(line);
        line.strip_prefix("tarn ").map(str::to_owned)
    });
    ours.collect()
}

#[test]
fn commands_are_found() {
    let page = "Say `tarn why x`, not `tarnd` or `tarn sealed`.\n\n    sudo tarn a --b \\\n        --c # why\n\n```sh\ntarn d\n```\n";
    let found = commands(page, |word| word == "why");
    assert_eq!(found, ["why x", "a --b --c", "d"]);
}

/// What `--help` of a command says, and the names of its own commands.
fn help(
    path: &[String],
    known: &mut BTreeMap<Vec<String>, (String, BTreeSet<String>)>,
) -> (String, BTreeSet<String>) {
    if let Some(help) = known.get(path) {
        return help.clone();
    }
    let tarn = programs::built("tarn").expect("tarn");
    let said = Command::new(tarn).args(path).arg("--help").output();
    let said = String::from_utf8(said.expect("its help").stdout).expect("UTF-8");
    let below = said
        .split_once("\nCommands:\n")
        .map_or("", |(_, rest)| rest);
    let below = below.split("\n\n").next().unwrap_or_default();
    let name = |line: &str| {
        let own = line.strip_prefix("  ").filter(|l| !l.starts_with(' '))?;
        Some(own.split(' ').next()?.to_owned())
    };
    let names: BTreeSet<String> = below.lines().filter_map(name).collect();
    known.insert(path.to_vec(), (said.clone(), names.clone()));
    (said, names)
}

#[test]
fn commands_in_the_documents_are_tarns() {
    let mut known = BTreeMap::new();
    let mut checked = 0;
    let (_, all) = help(&[], &mut known);
    let texts = tree::texts(&tree::root(), &["md"]).expect("the repository");
    for page in texts {
        for command in commands(&page.text, |word| all.contains(word)) {
            let mut path: Vec<String> = Vec::new();
            let mut options = Vec::new();
            for word in command.split_whitespace() {
                let ends = matches!(word, "--" | "|" | "||" | "&&" | ">" | "&");
                if ends || word.starts_with("$(") || word.starts_with("<<") {
                    break;
                }
                let (_, below) = help(&path, &mut known);
                match word.strip_prefix("--") {
                    Some(option) => {
                        let end = option.find(|c: char| c != '-' && !c.is_ascii_alphanumeric());
                        options.push(&option[..end.unwrap_or(option.len())]);
                    }
                    None if options.is_empty() && below.contains(word) => {
                        path.push(word.to_owned());
                    }
                    None => {
                        // Where a command is wanted, a word is one, or stands for one: `tarn mode show|plan|set`, `tarn ...`.
                        let first = word.split(['|', ',']).next().unwrap_or_default();
                        let plain = first.chars().all(|c| c.is_ascii_lowercase() || c == '-');
                        let wants = options.is_empty() && !below.is_empty() && plain;
                        assert!(
                            !wants || below.contains(first),
                            "{}: `tarn {command}`: there is no command `{word}`",
                            page.path
                        );
                    }
                }
            }
            let (said, _) = help(&path, &mut known);
            for option in options {
                assert!(
                    said.contains(&format!("--{option}")),
                    "{}: `tarn {command}`: `tarn {}` has no option --{option}",
                    page.path,
                    path.join(" ")
                );
                checked += 1;
            }
        }
    }
    assert!(checked > 100, "only {checked} options");
}
