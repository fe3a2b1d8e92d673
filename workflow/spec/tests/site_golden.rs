//! Every key and every error of cluster and workload files, as a person sees it. `tests/site/*.cases` hold inputs, each
//! below a line `=== NAME`; `*.txt` their output. `TARN_BLESS=1 cargo test -p tarn-spec` writes the expected output again:
//! read the difference before you keep it.

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme};
use std::collections::BTreeSet;
use std::fmt::Write;
use std::io;
use std::path::{Path, PathBuf};
use tarn_spec::SpecError;
use tarn_spec::site::{Loaded, ReadOptions, parse_machine, read_workload};
use tarn_types::site::{Machine, Submit};
use tarn_types::units::Elapsed;

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn text(path: &str) -> String {
    std::fs::read_to_string(root(path)).expect(path)
}

/// Names and inputs of a file of cases.
fn cases(file: &str) -> Vec<(String, String)> {
    let text = text(&format!("tests/site/{file}.cases"));
    let parts = text
        .split("=== ")
        .skip(1)
        .filter_map(|part| part.split_once('\n'));
    parts
        .map(|(name, input)| (name.to_owned(), input.to_owned()))
        .collect()
}

fn draw(diagnostic: &dyn Diagnostic) -> String {
    let handler = GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor())
        .with_width(120)
        .with_links(false);
    let mut text = String::new();
    handler
        .render_report(&mut text, diagnostic)
        .expect("a report");
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n") + "\n"
}

fn json(machine: &Machine) -> Vec<String> {
    let text = serde_json::to_string_pretty(machine).expect("a machine");
    text.lines()
        .map(|l| l.trim_end_matches(',').to_owned())
        .collect()
}

/// A machine: the lines in which it differs from the plainest one.
fn machine(input: &str) -> String {
    let plain = parse_machine("plain", "island = [{ nodes = 1, cores = 1 }]")
        .expect("the plainest machine");
    match parse_machine("cluster.toml", input) {
        Ok(machine) => {
            let plain: BTreeSet<String> = json(&plain).into_iter().collect();
            let other: Vec<String> = json(&machine)
                .into_iter()
                .filter(|l| !plain.contains(l))
                .collect();
            other
                .iter()
                .map(|line| line.trim().to_owned() + "\n")
                .collect()
        }
        Err(rejected) => draw(&rejected),
    }
}

fn target() -> Machine {
    let text = "[external]\nclient-read = '1 GB/s'\nclient-write = '1 GB/s'\n[[island]]\nnodes = 8\ncores = 4\n";
    parse_machine("cluster.toml", text).expect("a machine")
}

/// Reads a workload with some small files beside it.
fn read(input: &str) -> Result<Loaded, SpecError> {
    let line = |status: i32| format!("1 0 -1 60 2 -1 -1 2 300 -1 {status} 1 1 -1 -1 -1 -1 -1\n");
    let flow = "name = 'f'\n[data.d]\nsize = '8 B'\n[[step]]\nname = 'a'\nrun = 'x'\ntime = '2s'\nout = 'd'\n[[step]]\nname = 'b'\nrun = 'x'\nin = 'd'\ntime = '4s'\n";
    let files = |path: &Path| {
        match path.to_str() {
        Some("w/workload") => Ok(input.to_owned()),
        Some("w/jobs.swf") => Ok(line(1).repeat(3) + &line(-1)),
        Some("w/empty.swf") => Ok("; nothing\n".to_owned()),
        Some("w/flow.toml") => Ok(flow.to_owned()),
        Some("w/many.toml") => Ok("name = 'm'\n[[step]]\nname = 'a'\nrun = 'x'\nforeach = 'd/*'\nmax = 20\nin = 'd/{item}'\n[data.d]\nsource = '/d'\n".to_owned()),
        Some("w/wrong.toml") => Ok(flow.replace("run", "runs")),
        _ => Err(io::Error::from(io::ErrorKind::NotFound)),
    }
    };
    let read = |path: &Path| files(path).map(String::into_bytes);
    read_workload(
        Path::new("w/workload"),
        &target(),
        &ReadOptions::default(),
        &read,
    )
}

fn workload(input: &str) -> String {
    match read(input) {
        Ok(loaded) => show(&loaded),
        Err(rejected) => draw(&rejected),
    }
}

fn show(loaded: &Loaded) -> String {
    let mut text = String::new();
    let workload = &loaded.workload;
    for (at, flow) in workload.flows.iter().enumerate() {
        writeln!(
            text,
            "w{at} {} arrives {}",
            flow.name,
            Elapsed(flow.arrives)
        )
        .expect("memory");
    }
    for (at, item) in workload.items.iter().enumerate() {
        let marks = [(item.item.outside, " outside"), (item.item.keep, " keep")];
        let marks: String = marks
            .iter()
            .filter(|(is, _)| *is)
            .map(|(_, mark)| *mark)
            .collect();
        writeln!(text, "i{at} {} {} B{marks}", item.name, item.bytes).expect("memory");
    }
    for (at, work) in workload.jobs.iter().enumerate() {
        let job = &work.job;
        let submit = match work.submit {
            Submit::At(time) => format!("at {}", Elapsed(time)),
            Submit::After(other) => format!("after {other}"),
        };
        let per_node = format!(
            "nodes {} cores {} memory {} gpus {}",
            job.nodes, job.cores, job.memory, job.gpus
        );
        let times = [work.compute, job.limit, job.expect].map(Elapsed);
        let reads: Vec<String> = job
            .reads
            .iter()
            .map(|r| format!("{} {:?}", r.item, r.spread))
            .collect();
        let writes: Vec<String> = job.writes.iter().map(ToString::to_string).collect();
        let after: Vec<String> = job.after.iter().map(ToString::to_string).collect();
        writeln!(
            text,
            "j{at} {} {} {submit} {per_node} {:?}",
            work.name,
            job.flow.map_or("-".into(), |f| f.to_string()),
            job.mode
        )
        .expect("memory");
        writeln!(text, "  compute {} limit {} expect {} reads {reads:?} writes {writes:?} after {after:?} continues {:?}", times[0], times[1], times[2], job.continues).expect("memory");
    }
    for skipped in &workload.skipped {
        writeln!(
            text,
            "skipped {} of {}: {} (line {})",
            skipped.count, skipped.file, skipped.why, skipped.first_line
        )
        .expect("memory");
    }
    for note in &loaded.notes {
        writeln!(text, "note {note}").expect("memory");
    }
    text
}

fn output(file: &str, input: &str) -> String {
    match file {
        "cluster" => machine(input),
        _ => workload(input),
    }
}

#[test]
fn golden_files() {
    let bless = std::env::var_os("TARN_BLESS").is_some();
    for file in ["cluster", "workload"] {
        let found: String = cases(file)
            .iter()
            .map(|(name, input)| format!("=== {name}\n{}", output(file, input)))
            .collect();
        let path = format!("tests/site/{file}.txt");
        if bless {
            std::fs::write(root(&path), found).expect("write");
            continue;
        }
        let expected = text(&path);
        for (found, expected) in found.split("=== ").zip(expected.split("=== ")) {
            assert_eq!(
                found, expected,
                "{file}: TARN_BLESS=1 accepts the new output"
            );
        }
        assert_eq!(found.len(), expected.len(), "{file}: as many cases");
    }
}

/// A case shows the subject of its name: `key ...` is accepted, `error CODE ...` is refused with that code.
#[test]
fn cases_show_what_they_are_named_after() {
    for file in ["cluster", "workload"] {
        for (name, input) in cases(file) {
            let shown = output(file, &input);
            match name.split_once(' ') {
                Some(("key", _)) => assert!(
                    !shown.contains("tarn::flow::"),
                    "{name} is refused:\n{shown}"
                ),
                Some(("error", rest)) => {
                    let code = rest.split(' ').next().unwrap_or_default();
                    assert!(
                        shown.contains(&format!("tarn::flow::{code}\n")),
                        "{name} does not show {code}:\n{shown}"
                    );
                }
                _ => panic!("{name} is neither a key nor an error"),
            }
        }
    }
}

/// The words in the first column of the table of a section of a document.
fn documented(document: &str, heading: &str) -> Vec<String> {
    let section = document
        .split("\n## ")
        .find(|s| s.starts_with(heading))
        .expect(heading);
    let rows = section
        .lines()
        .filter_map(|l| l.strip_prefix("| `")?.split_once('`'));
    rows.map(|(key, _)| key.trim_end_matches(".NAME").to_owned())
        .collect()
}

/// The parser's own list of keys is the document's, and every key has a case.
#[test]
fn every_key_is_documented_and_shown() {
    let tables = [
        ("cluster", "Top level", "top"),
        ("cluster", "`[external]`", "external"),
        ("cluster", "`[[island]]`", "island"),
        ("cluster", "`[[island.tier]]`", "tier"),
        ("workload", "Top level", "top"),
        ("workload", "`[data.NAME]`", "data"),
        ("workload", "`[[job]]`", "job"),
        ("workload", "`[[trace]]`", "trace"),
        ("workload", "`[[workflow]]`", "workflow"),
    ];
    for (file, heading, short) in tables {
        let keys = documented(
            &text(&format!("../../docs/reference/{file}-file.md")),
            heading,
        );
        assert!(keys.len() > 2, "{file} {heading}");
        let cases = cases(file);
        let unknown = cases
            .iter()
            .find(|(name, _)| *name == format!("error unknown_key {short}"));
        let (_, input) =
            unknown.unwrap_or_else(|| panic!("{file}: no case with an unknown key in {short}"));
        let shown = output(file, input);
        let joined = shown
            .lines()
            .map(|l| l.trim().trim_start_matches('│').trim())
            .collect::<Vec<_>>()
            .join(" ");
        assert!(
            joined.contains(&format!("are {}", keys.join(", "))),
            "{file} {heading}: {keys:?}\n{joined}"
        );
        for key in keys {
            let wanted = format!("key {short} {key}");
            assert!(
                cases.iter().any(|(name, _)| *name == wanted),
                "{file}: no case `{wanted}`"
            );
        }
    }
}

#[test]
fn the_documents_examples_are_accepted() {
    for file in ["cluster", "workload"] {
        let document = text(&format!("../../docs/reference/{file}-file.md"));
        let example = document
            .split("```toml\n")
            .nth(1)
            .and_then(|s| s.split("\n```").next())
            .expect("an example");
        let shown = match file {
            "cluster" => machine(example),
            // The example machine has eight nodes.
            _ => workload(&example.replace("nodes = 15", "nodes = 8")),
        };
        assert!(!shown.contains("tarn::flow::"), "{shown}");
    }
}
