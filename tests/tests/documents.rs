//! The documents agree with the code.

use std::collections::BTreeMap;
use tarn_tests::{pages, tree};

fn read(path: &str) -> String {
    std::fs::read_to_string(tree::root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

/// The targets of `[text](target)` in a document.
fn links(text: &str) -> Vec<&str> {
    let ends = text.match_indices("](").map(|(i, _)| &text[i + 2..]);
    ends.filter_map(|rest| rest.split_once(')').map(|(target, _)| target))
        .collect()
}

#[test]
fn links_lead_somewhere() {
    let documents = tree::texts(&tree::root(), &["md"]).expect("the repository");
    assert!(documents.len() > 3);
    for document in &documents {
        let folder = tree::root().join(&document.path);
        let folder = folder.parent().expect("a folder");
        for target in links(&document.text) {
            let path = target.split('#').next().unwrap_or_default();
            // Pages that scripts/book.sh makes are in the book alone.
            let made = document.path == "docs/SUMMARY.md"
                && pages::MADE.contains(&format!("docs/{path}").as_str());
            if path.contains(':') || made {
                continue;
            }
            let file = match path {
                "" => tree::root().join(&document.path),
                path => folder.join(path),
            };
            assert!(file.exists(), "{}: {target} does not exist", document.path);
            if let Some((_, anchor)) = target.split_once('#')
                && file.extension().is_some_and(|e| e == "md")
            {
                let text = std::fs::read_to_string(&file).expect("a document");
                assert!(
                    anchors(&text).any(|a| a == anchor),
                    "{}: {target}: there is no such heading",
                    document.path
                );
            }
        }
    }
}

/// The names by which the headings of a document are linked to.
fn anchors(text: &str) -> impl Iterator<Item = String> {
    let mut fenced = false;
    text.lines().filter_map(move |line| {
        fenced ^= line.starts_with("```");
        let heading = line.strip_prefix('#').filter(|_| !fenced)?;
        let name = heading.trim_start_matches('#').trim().to_lowercase();
        let kept = |c: &char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        Some(
            name.chars()
                .filter(kept)
                .collect::<String>()
                .replace(' ', "-"),
        )
    })
}

#[test]
fn links_are_found() {
    assert_eq!(links("see [a](b.md#c) and [d](e)."), ["b.md#c", "e"]);
    let text = "# A `b`: c\n```sh\n# none\n```\n### By D's e-f\n";
    assert_eq!(anchors(text).collect::<Vec<_>>(), ["a-b-c", "by-ds-e-f"]);
}

#[test]
fn every_exit_code_is_documented() {
    let source = read("foundation/types/src/codes.rs");
    let in_code: BTreeMap<&str, u8> = source
        .lines()
        .filter_map(|l| l.trim().strip_suffix(',')?.split_once(" = "))
        .filter_map(|(name, code)| Some((name, code.parse().ok()?)))
        .collect();
    assert!(in_code.len() > 8 && in_code["Success"] == 0, "{in_code:?}");

    let document = read("docs/reference/exit-codes.md");
    let in_document: BTreeMap<&str, u8> = document
        .lines()
        .filter_map(|l| {
            let mut cells = l.split('|').map(str::trim).skip(1);
            let code = cells.next()?.parse().ok()?;
            Some((cells.next()?.trim_matches('`'), code))
        })
        .collect();
    assert_eq!(in_code, in_document);
}

/// The Montage workflow is compared with plain.sh: it must run the same commands.
#[test]
fn the_plain_script_runs_the_commands_of_the_workflow() {
    let workflow: toml::Table = read("examples/montage/workflow.toml")
        .parse()
        .expect("TOML");
    let plain = read("examples/montage/plain.sh").replace(['"', '\''], "");
    let steps = workflow["step"].as_array().expect("steps");
    assert!(steps.len() >= 8);
    let mut compared = 0;
    for step in steps {
        let run = step["run"].as_str().expect("a command");
        let tables = step
            .get("env")
            .and_then(|e| e["TABLES"].as_str())
            .unwrap_or_default();
        for command in run.split("&&").map(|c| c.trim().replace("$TABLES", tables)) {
            // plain.sh leaves its tables where they are.
            if !command.starts_with("rm ") {
                assert!(plain.contains(&command), "plain.sh lacks `{command}`");
                compared += 1;
            }
        }
    }
    assert!(compared >= 12, "only {compared} commands");
}

#[test]
fn the_examples_are_workflows() {
    let files = tree::texts(&tree::root().join("examples"), &["toml"]).expect("the examples");
    assert!(files.iter().any(|f| f.path == "montage/workflow.toml"));
    for file in files.iter().filter(|f| f.path.ends_with("workflow.toml")) {
        let folder = tree::root().join("examples").join(&file.path);
        let folder = folder
            .parent()
            .and_then(|f| f.canonicalize().ok())
            .expect("a folder");
        if let Err(rejected) = tarn_spec::parse(&file.path, &file.text, &folder) {
            panic!("{}: {rejected:?}", file.path);
        }
    }
}

#[test]
fn every_experiment_is_found_and_has_its_page() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tree::root().join("research/experiments");
    let programs = tree::texts(&folder, &["py"]).expect("the experiments");
    let experiments = programs.iter().filter(|p| p.text.contains("\nABOUT = {"));
    let listed = read("research/evidence/README.md");
    let mut count = 0;
    for program in experiments {
        let name = program.path.strip_suffix(".py").expect("a program");
        let mode = std::fs::metadata(folder.join(&program.path)).expect("its mode");
        assert!(
            mode.permissions().mode() & 0o111 == 0o111,
            "{name} cannot be run: chmod +x"
        );
        assert!(
            listed.contains(&format!("| [{name}]({name}.md) |")),
            "{name} is not listed in research/evidence/README.md"
        );
        assert!(
            read(&format!("research/evidence/{name}.md"))
                .contains(&format!("tarn reproduce {name}"))
        );
        count += 1;
    }
    assert!(count >= 7, "only {count} experiments");
}

/// A figure that nobody can have printed is none: each section has its commands, in a block of their own.
#[test]
fn every_section_of_the_results_has_its_command() {
    let text = read("research/results.md");
    let mut count = 0;
    for section in text.split("\n## ").skip(1) {
        let title = section.lines().next().unwrap_or_default();
        let commands = section.lines().filter_map(|l| l.strip_prefix("    "));
        let folders = ["bench/", "scripts/"];
        let in_folder = |l: &str| folders.iter().any(|folder| l.starts_with(folder));
        let ours = |l: &str| l.starts_with("tarn ") || in_folder(l);
        assert!(
            commands.clone().any(ours),
            "{title}: which command prints it?"
        );
        for program in commands.filter_map(|l| l.split(' ').next()) {
            let exists = !in_folder(program) || tree::root().join(program).exists();
            assert!(exists, "{title}: there is no {program}");
        }
        count += 1;
    }
    assert!(count > 10, "only {count} sections");
}

/// The items of the four papers, by their letters: how many each has.
const ITEMS: [(&str, u32); 4] = [("J", 53), ("W", 38), ("S", 31), ("F", 22)];
/// The marks of rows of which something is missing.
const MARKS: [&str; 3] = ["Partly", "Differs", "Missing"];
const END: &str = "\n## What is missing or partial, and what it would take\n";

/// The rows of research/coverage.md: the item, how tarn has it, and the evidence.
fn rows(text: &str) -> Vec<(&str, &str, &str)> {
    let rows = text.lines().filter_map(|line| {
        let mut cells = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ");
        let id = cells
            .next()
            .filter(|id| *id != "id" && !id.starts_with('-'))?;
        let (_, how, shown) = (cells.next()?, cells.next()?, cells.next()?);
        assert_eq!(cells.next(), None, "{id} has too many cells");
        Some((id, how, shown))
    });
    rows.collect()
}

#[test]
fn coverage_has_every_item_of_the_papers_once() {
    let text = read("research/coverage.md");
    let ids: Vec<String> = rows(&text).iter().map(|(id, ..)| (*id).into()).collect();
    let items = ITEMS
        .iter()
        .flat_map(|(letter, most)| (1..=*most).map(move |n| format!("{letter}{n}")));
    assert_eq!(ids, items.collect::<Vec<_>>());
}

/// Rows with something missing, and no others, are at the end once more.
#[test]
fn what_coverage_lacks_is_listed_at_its_end() {
    let text = read("research/coverage.md");
    let (table, end) = text.split_once(END).expect("the list at the end");
    let lacking = rows(table)
        .into_iter()
        .filter(|(_, how, _)| MARKS.iter().any(|mark| how.contains(mark)));
    let lacking: Vec<&str> = lacking.map(|(id, ..)| id).collect();
    let listed: Vec<&str> = end
        .lines()
        .filter_map(|line| line.strip_prefix("- ")?.split_once(": "))
        .map(|(id, _)| id)
        .collect();
    assert_eq!(lacking, listed);
}

/// Without text in parentheses.
fn bare(text: &str) -> String {
    let mut depth = 0;
    let outside = text.chars().filter(|c| {
        depth += i32::from(*c == '(');
        let out = depth == 0;
        depth -= i32::from(*c == ')');
        out
    });
    outside.collect()
}

/// Whether a source has a test of this name that is run with the others.
fn has_test(source: &str, name: &str) -> bool {
    let Some(at) = source.find(&format!("fn {name}(")) else {
        return false;
    };
    // Its attributes are behind the item before it.
    let own = source[..at].rsplit("}\n").next().unwrap_or_default();
    own.contains("#[test]") && !own.contains("#[ignore")
}

/// An item is shown by tests, a file in backquotes and behind it their names; by commands of tarn, which are parsed where they are
/// defined (`apps/tarn/src/args.rs`); and by programs of `bench`. Semicolons are between them.
#[test]
fn what_coverage_is_shown_by_exists() {
    let text = read("research/coverage.md");
    let (mut tests, mut experiments) = (0, 0);
    for (id, _, shown) in rows(&text) {
        for part in bare(shown).split("; ") {
            let code: Vec<&str> = part.split('`').skip(1).step_by(2).collect();
            let first = code.first().copied().unwrap_or_default();
            let words: Vec<&str> = first.split(' ').collect();
            match words[..] {
                [file] if file.ends_with(".rs") => {
                    let source = read(file);
                    assert!(code.len() > 1, "{id}: which tests of {file}?");
                    for name in &code[1..] {
                        assert!(has_test(&source, name), "{id}: {file} has no test {name}");
                        tests += 1;
                    }
                }
                ["tarn", "reproduce", ref names @ ..] => {
                    assert!(!names.is_empty(), "{id}: which experiment?");
                    for name in names {
                        let program = format!("research/experiments/{name}.py");
                        let about = read(&program).contains("\nABOUT = {");
                        assert!(about, "{id}: {program} is no experiment");
                        experiments += 1;
                    }
                }
                ["tarn", _, ..] => assert_eq!(code.len(), 1, "{id}: `{part}`"),
                [program, "target/release/tarn", ..] if program.starts_with("bench/") => {
                    assert!(tree::root().join(program).exists(), "{id}: {program}");
                }
                _ => panic!("{id}: `{part}` is no test and no command"),
            }
        }
    }
    assert!(tests > 200, "only {tests} tests");
    assert!(experiments > 30, "only {experiments} experiments");
}

#[test]
fn what_coverage_is_shown_by_is_understood() {
    assert_eq!(bare("`a` (b `c`), `d` (e)"), "`a` , `d` ");
    let source = "#[test]\nfn a() {}\n\nfn b() {}\n\n#[test]\n#[ignore = \"no\"]\nfn c() {}\n";
    let found = ["a", "b", "c", "d"].map(|name| has_test(source, name));
    assert_eq!(found, [true, false, false, false]);
    let table = "| id | what | how | by |\n| --- | --- | --- | --- |\n| J1 | a | b | c |\n";
    assert_eq!(rows(table), [("J1", "b", "c")]);
}
