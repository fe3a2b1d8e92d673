//! Every key and every error, as a person sees it. `TARN_BLESS=1 cargo test -p tarn-spec` writes the expected output
//! again: read the difference before you keep it.

use miette::{Diagnostic, GraphicalReportHandler, GraphicalTheme};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use tarn_spec::{
    Abilities, FindingCode, Inability, Parsed, SbatchScript, SpecError, check_cluster, check_site,
    parse, parse_scripts,
};
use tarn_types::cluster::{Cluster, Host, Link, Node, Tier};

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Workflow files, and folders with the scripts of a workflow.
fn golden() -> BTreeMap<String, PathBuf> {
    let files = std::fs::read_dir(root("tests/golden"))
        .unwrap()
        .map(|f| f.unwrap().path());
    let inputs = files.filter(|p| p.is_dir() || p.extension().is_some_and(|e| e == "toml"));
    inputs
        .map(|p| (p.file_stem().unwrap().to_str().unwrap().to_owned(), p))
        .collect()
}

fn read(name: &str, path: &Path) -> Result<Parsed, SpecError> {
    let folder = Path::new("/home/ann/flow");
    if !path.is_dir() {
        let text = std::fs::read_to_string(path).unwrap();
        return parse(&format!("{name}.toml"), &text, folder);
    }
    let files = std::fs::read_dir(path).unwrap().map(|f| f.unwrap());
    let texts: BTreeMap<String, String> = files
        .map(|f| {
            let text = std::fs::read_to_string(f.path()).unwrap();
            (f.file_name().into_string().unwrap(), text)
        })
        .collect();
    let scripts = texts.iter().map(|(name, text)| SbatchScript { name, text });
    parse_scripts(&scripts.collect::<Vec<_>>(), folder)
}

fn draw(diagnostic: &dyn Diagnostic) -> String {
    let handler = GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor())
        .with_width(120)
        .with_links(false);
    let mut text = String::new();
    handler.render_report(&mut text, diagnostic).unwrap();
    text.lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n")
        + "\n"
}

/// Two hosts with two nodes each, with 4 and 3 cores for both together; one node has a GPU, another persistent memory.
fn cluster() -> Cluster {
    let tier = |name: &str, gib: u64| Tier {
        name: name.into(),
        root: PathBuf::from("/tiers").join(name),
        capacity: gib << 30,
        read: 1 << 30,
        write: 1 << 30,
        lender: None,
    };
    let node = |name: &str, host, cores, gpus, tiers| Node {
        name: name.into(),
        host,
        cores,
        memory: 16 << 30,
        gpus,
        tiers,
    };
    let link = || Link {
        read: 1 << 30,
        write: 1 << 30,
        latency: 0,
        streams: 4,
        emulated: false,
    };
    Cluster {
        hosts: (0..2)
            .map(|i| Host {
                name: format!("h{i}"),
                cores: 4 - i,
                memory: 32 << 30,
                sockets: Vec::new(),
                draw: Default::default(),
            })
            .collect(),
        nodes: vec![
            node("n0", 0, 4, 1, vec![tier("tmpfs", 8), tier("disk", 100)]),
            node(
                "n1",
                0,
                2,
                0,
                vec![tier("pmem", 50), tier("tmpfs", 8), tier("disk", 100)],
            ),
            node("n2", 1, 2, 0, vec![tier("tmpfs", 8), tier("disk", 100)]),
            node("n3", 1, 2, 0, vec![tier("tmpfs", 8), tier("disk", 100)]),
        ],
        external: link(),
        peer: link(),
    }
}

fn output(name: &str, path: &Path) -> String {
    let parsed = match read(name, path) {
        Ok(parsed) => parsed,
        Err(rejected) => return draw(&rejected),
    };
    if name.starts_with("cluster_") {
        let multi_node = match name {
            "cluster_no_multi_node" => Err(Inability::new("user namespaces are not allowed here")),
            _ => Ok(()),
        };
        let shared = match name {
            "cluster_no_shared" => Err(Inability::new("node1: there is no glusterfsd")),
            _ => Ok(()),
        };
        let images = match name {
            "cluster_no_images" => Err(Inability::new("there is no criu")),
            _ => Ok(()),
        };
        let encryption = match name {
            "cluster_no_encryption" => Err(Inability::new("the user has no key")),
            _ => Ok(()),
        };
        let abilities = Abilities {
            multi_node,
            shared,
            images,
            encryption,
        };
        let mut cluster = cluster();
        match name {
            "cluster_too_few_cores_divided" => {
                cluster.hosts.truncate(1);
                cluster.nodes.truncate(2);
                cluster.nodes.iter_mut().for_each(|node| node.cores = 2);
            }
            "cluster_no_partition" => {
                cluster.nodes[1].tiers[0].root = "/tiers/a,b".into();
            }
            "cluster_no_partition_names" => {
                let nodes = cluster.nodes.iter_mut();
                nodes.for_each(|node| node.name = node.name.repeat(15_000));
            }
            _ => {}
        }
        return match check_cluster(&parsed, &cluster, &abilities) {
            Ok(()) => "the cluster can run it\n".into(),
            Err(rejected) => draw(&rejected),
        };
    }
    if name.starts_with("site_") {
        return match check_site(&parsed) {
            Ok(()) => "jobs of a site can have it\n".into(),
            Err(rejected) => draw(&rejected),
        };
    }
    let mut shown = serde_json::to_string_pretty(&parsed.workflow).unwrap() + "\n";
    for note in &parsed.notes {
        write!(shown, "\n{}", draw(note)).unwrap();
    }
    shown
}

#[test]
fn golden_files() {
    let bless = std::env::var_os("TARN_BLESS").is_some();
    let mut wrong = String::new();
    for (name, path) in golden() {
        let found = output(&name, &path);
        let expected = path.with_extension("txt");
        if bless {
            std::fs::write(&expected, found).unwrap();
        } else if std::fs::read_to_string(&expected).unwrap_or_default() != found {
            writeln!(wrong, "=== {name}: expected another output than\n{found}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}\nrun with TARN_BLESS=1 to accept");
}

/// A golden file shows the subject of its name: `key_*` and `note_*` are accepted, `cluster_*` parse, and every other
/// file that is named after a code is refused with that code.
#[test]
fn golden_files_show_what_they_are_named_after() {
    for (name, path) in golden() {
        let parsed = read(&name, &path);
        let shown = output(&name, &path);
        if ["key_", "note_", "cluster_", "site_", "scripts_of_"]
            .iter()
            .any(|p| name.starts_with(p))
        {
            assert!(parsed.is_ok(), "{name} is refused");
        }
        let ways = ["cluster_", "site_"];
        let bare = ways.iter().find_map(|way| name.strip_prefix(way));
        let bare = bare.unwrap_or(&name);
        for code in FindingCode::ALL {
            let short = code.as_str().trim_start_matches("tarn::flow::");
            if bare == short {
                assert!(
                    shown.contains(code.as_str()),
                    "{name} does not show {}",
                    code.as_str()
                );
            }
        }
    }
}

/// The words in the first column of the first tables of a section of the document, without backticks.
fn documented(document: &str, heading: &str, tables: usize) -> Vec<String> {
    let section = document
        .split("\n## ")
        .find(|s| s.starts_with(heading))
        .expect(heading);
    let section: String = section
        .split_inclusive("\n\n")
        .filter(|p| p.starts_with('|'))
        .take(tables)
        .collect();
    let rows = section
        .lines()
        .filter_map(|l| l.strip_prefix("| `")?.split(" | ").next());
    let words = rows.flat_map(|cell| {
        cell.split(", ")
            .map(|w| w.trim_matches('`').to_owned())
            .collect::<Vec<_>>()
    });
    words.collect()
}

#[test]
fn every_key_and_every_code_is_documented_and_shown() {
    let document = std::fs::read_to_string(root("../../docs/reference/workflow-file.md")).unwrap();
    let golden = golden();
    let shown = |name: &str| output(name, &golden[name]);
    for (heading, prefix) in [
        ("Top level", "top"),
        ("`[data.NAME]`", "data"),
        ("`[partition.NAME]`", "partition"),
        ("`[[step]]`", "step"),
    ] {
        let keys = documented(&document, heading, 1);
        assert!(keys.len() > 3, "{heading}");
        let shown = shown("unknown_key_lists");
        let names: Vec<_> = keys.iter().map(|k| k.trim_end_matches(".NAME")).collect();
        // The parser's own list of keys is the document's.
        let joined = shown.lines().map(str::trim).collect::<Vec<_>>().join(" ");
        assert!(
            joined.contains(&format!("are {}", names.join(", "))),
            "{heading}: {names:?}\n{joined}"
        );
        for key in names {
            assert!(
                golden.contains_key(&format!("key_{prefix}_{key}")),
                "no golden file for {prefix} {key}"
            );
        }
    }
    let codes = documented(&document, "Errors", 2);
    let known: Vec<_> = FindingCode::ALL
        .iter()
        .map(|c| c.as_str().trim_start_matches("tarn::flow::"))
        .collect();
    assert_eq!(
        codes, known,
        "the document's codes and the parser's, in order"
    );
    let outputs: String = golden.keys().map(|name| shown(name)).collect();
    for code in FindingCode::ALL
        .iter()
        .filter(|c| **c != FindingCode::TooLarge)
    {
        assert!(
            outputs.contains(code.as_str()),
            "no golden file shows {}",
            code.as_str()
        );
    }
}

#[test]
fn the_documents_examples_are_accepted() {
    for page in [
        "reference/workflow-file.md",
        "guide/restart.md",
        "guide/step-partitions.md",
    ] {
        let document = std::fs::read_to_string(root(&format!("../../docs/{page}"))).unwrap();
        let examples: Vec<_> = document
            .split("```toml\n")
            .skip(1)
            .filter_map(|s| s.split("\n```").next())
            .collect();
        assert!(!examples.is_empty(), "{page}");
        for example in examples {
            let parsed = parse("example.toml", example, Path::new("/home/ann/flow"));
            assert!(parsed.is_ok(), "{page}: {}", draw(&parsed.unwrap_err()));
        }
    }
}
