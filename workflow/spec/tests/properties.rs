//! The parser answers to every text; and its result for a valid file is that of a simple model.

use miette::{GraphicalReportHandler, GraphicalTheme};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use tarn_spec::{FindingCode, MAX_FINDINGS, Parsed, SbatchScript, SpecError, parse, parse_scripts};
use tarn_types::bounds;
use tarn_types::workflow::{Distribution, Foreach, Role, VersionPartitioning};

/// Parses and, if it is refused, draws the refusal.
fn answer(text: &str) -> Result<Parsed, String> {
    parse("w.toml", text, Path::new("/home/ann/flow")).map_err(drawn)
}

fn drawn(rejected: SpecError) -> String {
    assert!(!rejected.problems().is_empty() && rejected.problems().len() <= MAX_FINDINGS);
    for problem in rejected.problems() {
        assert!(
            problem
                .position()
                .is_none_or(|(line, column)| line > 0 && column > 0)
        );
        assert!(problem.hint().is_some(), "no hint: {problem}");
    }
    let mut drawn = String::new();
    let handler =
        GraphicalReportHandler::new_themed(GraphicalTheme::unicode_nocolor()).with_width(100);
    handler.render_report(&mut drawn, &rejected).unwrap();
    assert!(!drawn.contains("Failed to read contents"), "{drawn}");
    drawn
}

/// The same for two scripts.
fn answer_scripts(texts: [&str; 2]) -> Result<Parsed, String> {
    let names = ["a.sh", "b.sh"];
    let scripts = [0, 1].map(|at| SbatchScript {
        name: names[at],
        text: texts[at],
    });
    parse_scripts(&scripts, Path::new("/home/ann/flow")).map_err(drawn)
}

/// Pieces of workflow files, to be put together at random.
const PIECES: &[&str] = &[
    "name = ",
    "\"w\"\n",
    "[[step]]\n",
    "[data.raw]\n",
    "[data.case]\n",
    "source = ",
    "dest = ",
    "\"raw\"\n",
    "\"/x\"\n",
    "run = ",
    "\"a.sh\"\n",
    "in = ",
    "out = ",
    "inout = ",
    "[\"raw\"]\n",
    "[\"case\"]\n",
    "[\"raw/{item}\"]\n",
    "[\"case:scatter\"]\n",
    "\"case:shared\"\n",
    "foreach = ",
    "\"raw/*\"\n",
    "[1, 2]\n",
    "max = ",
    "4\n",
    "nodes = ",
    "tasks = ",
    "2\n",
    "-1\n",
    "scatter = ",
    "\"p{rank}\"\n",
    "\"a/p{rank}\"\n",
    "size = ",
    "\"4 GiB\"\n",
    "time = ",
    "\"10m\"\n",
    "after = ",
    "[\"w\", \"a\"]\n",
    "env = ",
    "{ A = \"{item}\" }\n",
    "external = ",
    "\"~\"\n",
    "keep = ",
    "\"\\u0000\"\n",
    "\"\"\n",
    "=",
    "[",
    "]",
    "\"",
    "'''",
    "\n",
    "\r\n",
    "é",
    "# x\n",
    "true\n",
    "1.5\n",
    "2026-11-21\n",
];

proptest! {
    #[test]
    fn answers_any_text(text in "\\PC{0,200}|[\\x00-\\x7f]{0,200}") {
        let _ = answer(&text);
    }

    #[test]
    fn answers_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = answer(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn answers_any_pieces(pieces in prop::collection::vec(prop::sample::select(PIECES), 0..60)) {
        let _ = answer(&pieces.concat());
    }

    #[test]
    fn answers_any_scripts(
        pieces in prop::collection::vec(prop::sample::select(PIECES), 0..40),
        lines in prop::collection::vec("#SBATCH [-a-z0-9=:,%'\" ]{0,30}|#TARN\\PC{0,9}", 0..6),
        split in 0usize..40,
    ) {
        let of = |pieces: &[&str]| {
            let ours = pieces.concat().lines().map(|line| format!("#TARN {line}\n")).collect::<String>();
            format!("#!/bin/sh\n{}\n{ours}hostname\n", lines.join("\n"))
        };
        let (one, other) = pieces.split_at(split.min(pieces.len()));
        let _ = answer_scripts([&of(one), &of(other)]);
        let _ = answer_scripts([&of(&pieces), ""]);
    }

    /// Scripts with one piece of them removed, doubled or replaced.
    #[test]
    fn answers_damaged_scripts(at in 0usize..600, length in 0usize..40, with in prop::sample::select(PIECES)) {
        let whole = include_str!("golden/scripts_of_a_workflow/1-decompose.sbatch");
        let other = include_str!("golden/scripts_of_a_workflow/2-solve.sbatch");
        let start = whole.floor_char_boundary(at.min(whole.len()));
        let end = whole.floor_char_boundary((start + length).min(whole.len()));
        let damaged = format!("{}{with}{}", &whole[..start], &whole[end..]);
        let _ = answer_scripts([&damaged, other]);
        let _ = answer_scripts([other, &damaged]);
    }

    /// A valid file with one piece of it removed, doubled or replaced.
    #[test]
    fn answers_damaged_files(at in 0usize..800, length in 0usize..40, with in prop::sample::select(PIECES)) {
        let whole = include_str!("golden/design_foam.toml");
        let start = whole.floor_char_boundary(at.min(whole.len()));
        let end = whole.floor_char_boundary((start + length).min(whole.len()));
        let _ = answer(&format!("{}{with}{}", &whole[..start], &whole[end..]));
    }
}

#[test]
fn a_script_means_what_a_file_means() {
    let keys = "name = \"w\"\nexternal = \"/x\"\ndata.raw = { source = \"raw\", copies = 2 }\n\
                data.sum = { dest = \"sum\", on_failure = \"drain\", size = \"4 GiB\" }\n[[step]]\nname = \"s\"\n\
                in = [\"raw:broadcast\"]\nout = [\"sum:single\"]\nretries = 2\nrestart = \"phx\"\ntier = \"pmem\"\n";
    let job = "nodes = 3\ntasks = 12\ncores = 8\nmemory = \"2 GiB\"\ngpus = 1\ntime = \"90m\"\n";
    let run = "run = 'cd \"$TARN_WORKFLOW_DIR\" && SLURM_SUBMIT_DIR=\"$TARN_WORKFLOW_DIR\" SLURM_JOB_NUM_NODES=3 \
               SLURM_NTASKS=12 SLURM_CPUS_PER_TASK=2 /bin/sh a.sh'\nenv = { SLURM_JOB_NAME = \"a.sh\" }\n";
    let file = answer(&format!("{keys}{job}{run}")).unwrap();
    let ours: String = keys.lines().map(|line| format!("#TARN {line}\n")).collect();
    let text = format!(
        "#!/bin/sh\n#SBATCH -N3 -n 12 --cpus-per-task=2\n{ours}#SBATCH --mem=2G --gres=gpu:1 -t 90\nhostname\n"
    );
    let script = SbatchScript {
        name: "a.sh",
        text: &text,
    };
    let script = parse_scripts(&[script], Path::new("/home/ann/flow")).unwrap();
    assert_eq!(script.workflow, file.workflow);
}

/// A dataset of the generator.
#[derive(Debug, Clone)]
struct ModelData {
    source: bool,
    rule: bool,
}

/// The uses of a step of the generator: of each dataset at most one.
#[derive(Debug, Clone)]
struct ModelStep {
    nodes: u32,
    more_tasks: u32,
    foreach: bool,
    picks: Vec<Pick>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Pick {
    Nothing,
    In,
    Entry,
    Scatter,
    Gather,
    /// `out` when nobody has made it yet, otherwise `inout`.
    Write,
    WriteScatter,
}

fn model() -> impl Strategy<Value = (Vec<ModelData>, Vec<ModelStep>)> {
    let data = prop::collection::vec((any::<bool>(), any::<bool>()), 1..6).prop_map(|all| {
        all.into_iter()
            .map(|(source, rule)| ModelData { source, rule })
            .collect::<Vec<_>>()
    });
    data.prop_flat_map(|data| {
        use Pick::*;
        let pick = prop::sample::select(vec![
            Nothing,
            Nothing,
            In,
            Entry,
            Scatter,
            Gather,
            Write,
            WriteScatter,
        ]);
        let step = (
            1u32..4,
            0u32..5,
            any::<bool>(),
            prop::collection::vec(pick, data.len()),
        )
            .prop_map(|(nodes, more_tasks, foreach, picks)| ModelStep {
                nodes,
                more_tasks,
                foreach,
                picks,
            });
        (Just(data), prop::collection::vec(step, 1..8))
    })
}

/// A use by the model: dataset, role, distribution, entry, versions.
type Expected = (
    u32,
    Role,
    Distribution,
    Option<&'static str>,
    Option<u32>,
    Option<u32>,
);

/// The file, the uses of each step sorted by dataset, and the divisions.
fn render(
    data: &[ModelData],
    steps: &[ModelStep],
) -> (
    String,
    Vec<Vec<Expected>>,
    BTreeMap<u32, VersionPartitioning>,
) {
    let mut text = String::from("name = \"w\"\n");
    for (i, d) in data.iter().enumerate() {
        writeln!(text, "[data.d{i}]").unwrap();
        if d.source {
            writeln!(text, "source = \"in/d{i}\"").unwrap();
        }
        if d.rule {
            text.push_str("scatter = \"p{rank}\"\n");
        }
    }
    // The latest version of each dataset; `None` while nobody has made it.
    let mut latest: Vec<Option<u32>> = data.iter().map(|d| d.source.then_some(0)).collect();
    let mut divisions: BTreeMap<u32, VersionPartitioning> = BTreeMap::new();
    let mut all = Vec::new();
    for (s, step) in steps.iter().enumerate() {
        let nodes = if step.foreach { 1 } else { step.nodes };
        writeln!(
            text,
            "[[step]]\nname = \"s{s}\"\nrun = \"s{s}.sh\"\nnodes = {nodes}\ntasks = {}",
            nodes + step.more_tasks
        )
        .unwrap();
        if step.foreach {
            text.push_str("foreach = [\"a\", \"b\"]\n");
        }
        let mut lists: [Vec<String>; 3] = Default::default();
        let mut uses: Vec<Expected> = Vec::new();
        for (i, pick) in step.picks.iter().enumerate() {
            let (id, name, rule) = (i as u32, format!("d{i}"), data[i].rule);
            let on = |many| {
                if nodes > 1 {
                    many
                } else {
                    Distribution::Single
                }
            };
            let scattered = matches!(pick, Pick::Scatter | Pick::WriteScatter) && rule;
            if let (Pick::Write | Pick::WriteScatter, made) = (pick, latest[i]) {
                if made.is_some() && step.foreach {
                    continue;
                }
                let version = made.map_or(1, |v| v + 1);
                let (role, list) = if made.is_some() {
                    (Role::Inout, 2)
                } else {
                    (Role::Out, 1)
                };
                lists[list].push(format!(
                    "{name}:{}",
                    if scattered { "scatter" } else { "broadcast" }
                ));
                let distribution = on(if scattered {
                    Distribution::Scatter
                } else {
                    Distribution::Broadcast
                });
                uses.push((id, role, distribution, None, made, Some(version)));
                latest[i] = Some(version);
            } else if let (true, Some(version)) = (*pick != Pick::Nothing, latest[i]) {
                let (suffix, entry, distribution) = match pick {
                    Pick::Entry => ("/one", Some("one"), Distribution::Broadcast),
                    Pick::Gather => (":gather", None, Distribution::Single),
                    Pick::Scatter if rule => (":scatter", None, Distribution::Scatter),
                    _ => ("", None, Distribution::Broadcast),
                };
                lists[0].push(format!("{name}{suffix}"));
                uses.push((id, Role::In, on(distribution), entry, Some(version), None));
                if entry.is_some() {
                    divisions.insert(id, VersionPartitioning::Entries);
                }
            }
            if uses
                .last()
                .is_some_and(|u| u.0 == id && u.2 == Distribution::Scatter)
            {
                divisions.entry(id).or_insert(VersionPartitioning::Ranks);
            }
        }
        for (key, list) in ["in", "out", "inout"].iter().zip(lists) {
            writeln!(text, "{key} = {list:?}").unwrap();
        }
        all.push(uses);
    }
    (text, all, divisions)
}

proptest! {
    #[test]
    fn valid_files_mean_what_the_model_says((data, steps) in model()) {
        let (text, expected, divisions) = render(&data, &steps);
        let parsed = answer(&text).unwrap_or_else(|drawn| panic!("{text}\n{drawn}"));
        let workflow = &parsed.workflow;
        prop_assert_eq!(workflow.data.len(), data.len());
        for (i, d) in workflow.data.iter().enumerate() {
            let division = divisions.get(&(i as u32)).copied().unwrap_or(VersionPartitioning::Whole);
            prop_assert_eq!(d.partition, division, "{}", text);
            prop_assert_eq!(d.source.is_some(), data[i].source);
        }
        prop_assert_eq!(workflow.steps.len(), steps.len());
        for ((step, expected), model) in workflow.steps.iter().zip(expected).zip(&steps) {
            let mut uses: Vec<_> = step
                .uses
                .iter()
                .map(|u| (u.data.0, u.role, u.distribution, u.entry.as_deref(), u.reads, u.makes))
                .collect();
            uses.sort_by_key(|u| u.0);
            prop_assert_eq!(uses, expected, "{}", text);
            let nodes = if model.foreach { 1 } else { model.nodes };
            prop_assert_eq!((step.nodes, step.tasks), (nodes, nodes + model.more_tasks));
            let foreach = model.foreach.then(|| Foreach::Values(vec!["a".into(), "b".into()]));
            prop_assert_eq!(&step.foreach, &foreach);
        }
    }
}

#[test]
fn a_file_over_the_bound_is_refused() {
    let text = format!("name = \"w\" #{}", " ".repeat(bounds::MAX_WORKFLOW_BYTES));
    let rejected = parse("w.toml", &text, Path::new("/w")).unwrap_err();
    assert_eq!(rejected.problems()[0].kind(), FindingCode::TooLarge);
}

#[test]
fn too_many_datasets_are_refused() {
    let mut text = String::from("name = \"w\"\n[[step]]\nname = \"a\"\nrun = \"a\"\n[data]\n");
    for i in 0..=bounds::MAX_DATASETS {
        writeln!(text, "d{i} = {{}}").unwrap();
    }
    let rejected = parse("w.toml", &text, Path::new("/w")).unwrap_err();
    assert_eq!(rejected.problems()[0].kind(), FindingCode::TooLarge);
}

/// A long chain: nothing in the check is recursive or quadratic, and the drawing of a mistake is not either.
#[test]
fn many_steps_are_checked_in_time() {
    let mut text = String::from("name = \"w\"\n[data.x]\nsource = \"x\"\n");
    for i in 0..5_000 {
        writeln!(
            text,
            "[[step]]\nname = \"s{i}\"\nrun = \"s.sh\"\ninout = [\"x\"]"
        )
        .unwrap();
    }
    let parsed = answer(&text).unwrap();
    assert_eq!(
        parsed.workflow.last_version(tarn_types::id::DataId(0)),
        5_000
    );
    text.push_str("[[step]]\nname = \"s0\"\nrun = \"again\"\n");
    let drawn = answer(&text).unwrap_err();
    assert!(
        drawn.contains("two steps are named `s0`") && drawn.lines().count() < 40,
        "{drawn}"
    );
}
