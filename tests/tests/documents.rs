//! The documents say what the code does.

use std::collections::BTreeMap;
use tarn_tests::tree;

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
            // What scripts/book.sh makes is in the book alone.
            let made = document.path == "docs/SUMMARY.md" && path.starts_with("reference/");
            let inside = !path.is_empty() && !path.contains(':') && !made;
            assert!(
                !inside || folder.join(path).exists(),
                "{}: {target} does not exist",
                document.path
            );
        }
    }
}

#[test]
fn links_are_found() {
    assert_eq!(links("see [a](b.md#c) and [d](e)."), ["b.md#c", "e"]);
}

#[test]
fn every_exit_code_is_documented() {
    let source = read("crates/base/src/codes.rs");
    let in_code: BTreeMap<&str, u8> = source
        .lines()
        .filter_map(|l| l.trim().strip_suffix(',')?.split_once(" = "))
        .filter_map(|(name, code)| Some((name, code.parse().ok()?)))
        .collect();
    assert!(in_code.len() > 8 && in_code["Success"] == 0, "{in_code:?}");

    let document = read("docs/exit-codes.md");
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

/// plain.sh is what the Montage workflow is compared with: it must run the same commands.
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
        if let Err(rejected) = tarn_flow::parse(&file.path, &file.text, &folder) {
            panic!("{}: {rejected:?}", file.path);
        }
    }
}

#[test]
fn every_experiment_is_found_and_has_its_page() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tree::root().join("bench/experiments");
    let programs = tree::texts(&folder, &["py"]).expect("the experiments");
    let experiments = programs.iter().filter(|p| p.text.contains("\nABOUT = {"));
    let listed = read("docs/evidence/README.md");
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
            "{name} is not listed in docs/evidence/README.md"
        );
        assert!(
            read(&format!("docs/evidence/{name}.md")).contains(&format!("tarn reproduce {name}"))
        );
        count += 1;
    }
    assert!(count >= 7, "only {count} experiments");
}

/// The items of the four papers, by their letters: how many each has.
const ITEMS: [(&str, u32); 4] = [("J", 53), ("W", 38), ("S", 31), ("F", 22)];

#[test]
fn every_item_of_the_papers_is_covered_by_what_there_is() {
    let text = read("docs/coverage.md");
    let rows: Vec<(&str, &str)> = text
        .lines()
        .filter_map(|line| line.strip_prefix("| ")?.split_once(" | "))
        .filter(|(id, _)| *id != "id" && !id.starts_with('-'))
        .collect();
    let items = ITEMS
        .iter()
        .flat_map(|(letter, most)| (1..=*most).map(move |n| format!("{letter}{n}")));
    let ids: Vec<String> = rows.iter().map(|(id, _)| (*id).to_owned()).collect();
    assert_eq!(ids, items.collect::<Vec<_>>());
    let mut named = 0;
    for (id, row) in rows {
        let shown = row.rsplit(" | ").next().expect("a last cell");
        // A file in backquotes, and behind it names of its functions, until the next semicolon.
        for part in shown.split(';') {
            let mut code = part.split('`').skip(1).step_by(2);
            let first = code.next().unwrap_or_default();
            if let Some(name) = first.strip_prefix("tarn reproduce ") {
                let program = tree::root().join(format!("bench/experiments/{name}.py"));
                assert!(program.exists(), "{id}: there is no experiment {name}");
                named += 1;
            }
            if !first.ends_with(".rs") {
                continue;
            }
            let source = read(first);
            for name in code.filter(|name| !name.contains(['.', '/', ' '])) {
                assert!(
                    source.contains(&format!("fn {name}(")),
                    "{id}: {first} has no test {name}"
                );
                named += 1;
            }
        }
    }
    assert!(named > 200, "only {named} tests and experiments");
}
