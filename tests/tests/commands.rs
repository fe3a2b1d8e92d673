//! Every command that README.md, docs and the examples show is run as it is printed, or is listed with the test that covers it, or the
//! reason why none can.

#[path = "commands/list.rs"]
mod list;
#[path = "commands/parser.rs"]
mod parser;
#[path = "commands/place.rs"]
mod place;

use list::{LONG, PAGES, Run, Way};
use place::{Built, Place};
use std::fs;
use std::process::Command;
use std::sync::Mutex;
use tarn_tests::pages::{self, Block};
use tarn_tests::tree;

/// The blocks of commands of a page that are not [`LONG`].
fn listed(page: &str) -> Vec<Block> {
    let long = |block: &Block| {
        block.text.lines().all(|line| {
            let line = line.strip_prefix("sudo ").unwrap_or(line);
            LONG.iter().any(|begin| line.starts_with(begin))
        })
    };
    let mut blocks = pages::blocks(page);
    blocks.retain(|block| block.is_commands() && !long(block));
    blocks
}

#[test]
fn every_block_of_commands_is_run_or_listed() {
    let mut wrong = Vec::new();
    let pages = pages::all().expect("the pages");
    for page in &pages {
        let ways = PAGES.iter().find(|(path, _)| *path == page.path);
        let ways = ways.map_or(&[][..], |(_, ways)| ways);
        for block in pages::blocks(&page.text) {
            if block.fenced && block.label.is_empty() {
                wrong.push(format!(
                    "{}:{}: say what it is: sh, text, ...",
                    page.path, block.line
                ));
            }
        }
        let blocks = listed(&page.text);
        for block in &blocks {
            let found = ways
                .iter()
                .filter(|(words, _)| block.text.contains(words))
                .count();
            if found != 1 {
                wrong.push(format!(
                    "{}:{}: commands that {found} lines of the list name",
                    page.path, block.line
                ));
            }
        }
        for (words, _) in ways {
            let found = blocks
                .iter()
                .filter(|block| block.text.contains(words))
                .count();
            if found != 1 {
                wrong.push(format!(
                    "{}: `{words}` is in {found} blocks of commands",
                    page.path
                ));
            }
        }
    }
    for (path, ways) in PAGES {
        if !pages.iter().any(|page| page.path == *path) {
            wrong.push(format!("there is no page {path}"));
        }
        for (words, way) in *ways {
            if let Way::Test(file, name) = way {
                let source = fs::read_to_string(tree::root().join(file)).unwrap_or_default();
                if !source.contains(&format!("#[test]\nfn {name}()")) {
                    wrong.push(format!("{path}: `{words}`: {file} has no test {name}"));
                }
            }
            if let Way::Not(why) = way {
                assert!(!why.is_empty());
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "{}\ntests/tests/commands/list.rs is the list",
        wrong.join("\n")
    );
}

/// The missing ones of these: a program, a header, or a module of Python.
fn missing<'a>(needs: &[&'a str]) -> Vec<&'a str> {
    let here = |need: &&&str| {
        let probe = match **need {
            "nbdkit.h" => "echo '#include <nbdkit-plugin.h>' | cc -E -x c -".to_owned(),
            "verbs.h" => "echo '#include <infiniband/verbs.h>' | cc -E -x c -".to_owned(),
            "h5py" => format!("test -x {}/new/bin/python", place::pythons().display()),
            "xarray" | "dask" | "zarr" | "torch" | "astropy" | "numpy" => {
                format!("/usr/bin/python3 -c 'import {need}'")
            }
            program => format!("command -v {program}"),
        };
        let status = Command::new("sh")
            .args([
                "-c",
                &format!("PATH=/usr/bin:/usr/sbin:$PATH; {probe} > /dev/null 2>&1"),
            ])
            .status();
        !status.expect("sh").success()
    };
    needs.iter().filter(here).copied().collect()
}

/// The script that follows a page: the commands are on the page's own lines, so that errors name them.
fn script(path: &str, text: &str, ways: &[(&str, Way)], place: &Place) -> Vec<String> {
    let all = pages::blocks(text);
    let mut lines = vec![String::new(); text.lines().count() + 2];
    for block in listed(text) {
        let way = ways.iter().find(|(words, _)| block.text.contains(words));
        let Some((
            _,
            Way::Run(Run {
                needs,
                saves,
                given,
                beside,
                then,
            }),
        )) = way
        else {
            continue;
        };
        let lacks = missing(needs);
        if !lacks.is_empty() {
            eprintln!("SKIPPED: {path}:{} needs {}", block.line, lacks.join(", "));
            continue;
        }
        // A file that is read where the page has a fence, or an empty line.
        let read = |when: &str, commands: &str| {
            let file = place.file(&format!("{when}-{}", block.line));
            fs::write(&file, commands).expect("a file");
            format!(". {}; ", file.display())
        };
        let mut before = read("given", &given.concat());
        if let Some((label, name)) = saves {
            let above = all
                .iter()
                .rev()
                .find(|b| b.label == *label && b.line < block.line);
            let above = above.unwrap_or_else(|| panic!("{path}:{}: no {label} above", block.line));
            let names_it = text
                .lines()
                .take(block.line)
                .skip(above.line)
                .any(|line| line.contains(name));
            assert!(
                names_it,
                "{path}:{}: the page does not say that it is {name}",
                block.line
            );
            let kept = place.file(&format!("saved-{}", block.line));
            fs::write(&kept, &above.text).expect("a file");
            before.push_str(&format!("cp {} {name}; ", kept.display()));
        }
        let mut after = String::new();
        if let Some(meanwhile) = beside {
            before.push('{');
            after = format!("}} & {}", read("beside", meanwhile));
        }
        after.push_str(&read("then", then));
        let first = block.line - 1;
        let commands = block.commands();
        lines[first - 1].push_str(&before);
        for (at, line) in commands.lines().enumerate() {
            lines[first + at] = line.to_owned();
        }
        lines[first + commands.lines().count()].push_str(&after);
    }
    lines
}

/// At a time, as most of them wait now and then.
const AT_ONCE: usize = 3;

#[test]
fn commands_of_the_pages_succeed_as_they_are_printed() {
    if let Some(why) = place::lacks() {
        eprintln!("SKIPPED: no namespaces to follow the pages in: {why}");
        return;
    }
    let built = Built::new();
    let pages = pages::all().expect("the pages");
    // The longest are the examples.
    let left: Mutex<Vec<_>> = Mutex::new(PAGES.iter().collect());
    let failed: Mutex<Vec<String>> = Mutex::new(Vec::new());
    // One page alone, for its author: TARN_PAGE=block.md.
    let only = std::env::var("TARN_PAGE").unwrap_or_default();
    let follow = || {
        loop {
            let next = left.lock().expect("the pages left").pop();
            let Some((path, ways)) = next else { break };
            let run = ways.iter().any(|(_, way)| matches!(way, Way::Run(_)));
            if !run || !path.contains(&only) {
                continue;
            }
            let page = pages.iter().find(|page| page.path == *path);
            let text = &page.unwrap_or_else(|| panic!("no page {path}")).text;
            let place = Place::new(&built);
            let folder = if path.starts_with("examples/") {
                path.trim_end_matches("README.md")
            } else {
                ""
            };
            if let Err(why) = place.run(folder, &script(path, text, ways, &place)) {
                failed
                    .lock()
                    .expect("what failed")
                    .push(format!("== {path}: {why}"));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(follow);
        }
    });
    let failed = failed.into_inner().expect("what failed");
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
