//! `tarn reproduce`: experiments run one after the other, whatever becomes of one of them.

#[path = "../../tarn/tests/common/mod.rs"]
mod common;

use common::{Ran, Site};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

const ABOUT: &str = r#"{"title": "A title", "source": "A paper", "needs": ["nothing"], "minutes": {"quick": 0.1, "full": 1}"#;

/// Makes an experiment that describes itself, and then runs `does`.
fn experiment(site: &Site, name: &str, does: &str) {
    experiment_about(site, name, &format!("{ABOUT}}}"), does);
}

fn experiment_about(site: &Site, name: &str, about: &str, does: &str) {
    let text = format!("#!/bin/bash\nif [ $1 = about ]; then echo '{about}'; exit; fi\n{does}\n");
    fs::create_dir_all(site.path("experiments")).unwrap();
    let path = site.path(&format!("experiments/{name}.py"));
    fs::write(&path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

const GOOD: &str = r#"[ "$*" = "measure --tarn $3 --dir $5 --quick" ] && [ -x "$3" ] && touch "$5/file" && echo "it goes on" >&2 &&
echo '{"schema": 1, "experiment": "x", "title": "A title", "source": "A paper", "rounds": 3, "claims": [{"claim": "c", "paper": "1", "here": "2", "verdict": "fails"}]}'"#;

fn reproduce(site: &Site, words: &[&str]) -> Ran {
    let mut command = site.command(&[&["reproduce"], words].concat());
    command.env("TARN_EXPERIMENTS", site.path("experiments"));
    command.arg("--dir").arg(site.path(""));
    Ran::of(command.output().unwrap())
}

#[test]
fn the_others_go_on_when_one_cannot() {
    let site = Site::new("");
    experiment(&site, "a-good", GOOD);
    experiment(
        &site,
        "b-lacks",
        "echo 'needs a GPU: install one' >&2; exit 3",
    );
    experiment(&site, "c-fails", "exit 1");
    experiment(&site, "d-garbles", "echo nonsense");
    experiment(
        &site,
        "e-breaks-a-rule",
        r#"echo '{"schema": 1, "experiment": "x", "title": "", "source": "", "tables": [{"title": "", "columns": ["a"], "rows": [[]]}]}'"#,
    );
    experiment(&site, "f-good", GOOD);
    site.write("experiments/part.py", "no program");
    let listed = reproduce(&site, &["--list"]).exits(0).out;
    assert!(
        listed.contains("a-good: A title (A paper)") && !listed.contains("part"),
        "{listed}"
    );
    let ran = reproduce(&site, &["--quick"]).exits(1);
    assert!(ran.err.contains("it goes on"), "{}", ran.err);
    let results: serde_json::Value = serde_json::from_str(&site.read("results.json")).unwrap();
    let why: Vec<&str> = results["experiments"]
        .as_array()
        .unwrap()
        .iter()
        .map(|e| e["not_run"].as_str().unwrap_or("ran"))
        .collect();
    assert_eq!((why[0], why[5]), ("ran", "ran"), "{why:?}");
    assert_eq!(why[1], "needs a GPU: install one");
    assert!(why[2].contains("exit status: 1"), "{}", why[2]);
    assert!(why[3].contains("no results of experiments"), "{}", why[3]);
    assert!(why[4].contains("a row of 0 cells"), "{}", why[4]);
    assert!(site.read("results.html").contains("does not hold"));
    let left = fs::read_dir(site.path("")).unwrap().flatten();
    let left: Vec<_> = left
        .map(|e| e.file_name())
        .filter(|n| n.to_string_lossy().contains("reproduce-"))
        .collect();
    assert!(left.is_empty(), "{left:?}");

    // Drawn once more.
    let again = ["--render", "results.json", "--report", "again.html"];
    let drawn = reproduce(&site, &again).exits(0);
    assert!(drawn.out.contains("b-lacks: not run: needs a GPU"));
    // With `--report`, only the results to be known at once.
    assert!(
        drawn
            .out
            .contains("a-good: does not hold: c (paper: 1; here: 2)")
    );
    assert!(!drawn.out.contains("A title"), "{}", drawn.out);
    assert!(
        site.read("again.html")
            .contains("<a href=\"results.json\">")
    );
    assert_eq!(site.read("again.html"), site.read("results.html"));
    let ran = reproduce(&site, &["a-good", "--quick", "--json"]).exits(0);
    let results: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(results["experiments"][0]["experiment"], "a-good");
}

#[test]
fn one_on_request_runs_only_when_it_is_named_and_gets_its_options() {
    let site = Site::new("");
    experiment(&site, "a-usual", GOOD);
    let about = format!("{ABOUT}, \"on_request\": true}}");
    let does = r#"shift 5; [ "$*" = "--modes backfill,advise --quick" ] || { echo "options: $*" >&2; exit 1; }
echo '{"schema": 1, "experiment": "x", "title": "A title", "source": "A paper"}'"#;
    experiment_about(&site, "b-on-request", &about, does);
    let listed = reproduce(&site, &["--list"]).exits(0).out;
    let line = "    0.1 min with --quick, 1 min else; runs only when it is named; needs nothing";
    assert!(listed.lines().any(|l| l == line), "{listed}");
    assert!(
        listed.contains("all: 0.1 min with --quick, target"),
        "{listed}"
    );

    reproduce(&site, &["--quick"]).exits(0);
    let results: serde_json::Value = serde_json::from_str(&site.read("results.json")).unwrap();
    let ran = results["experiments"].as_array().unwrap();
    assert_eq!(ran.len(), 1);
    assert_eq!(ran[0]["experiment"], "a-usual");

    let named = |words: &[&str]| {
        let mut command = site.command(&["reproduce"]);
        command.env("TARN_EXPERIMENTS", site.path("experiments"));
        command.arg("--dir").arg(site.path("")).args(words);
        Ran::of(command.output().unwrap())
    };
    named(&[
        "b-on-request",
        "--",
        "--modes",
        "backfill,advise",
        "--quick",
    ])
    .exits(0);
    let other = named(&["b-on-request", "--", "--modes", "backfill"]).exits(1);
    assert!(
        other.err.contains("options: --modes backfill"),
        "{}",
        other.err
    );
    let two = named(&["a-usual", "b-on-request", "--", "--modes", "advise"]).exits(2);
    assert!(two.err.contains("name one"), "{}", two.err);
}

/// A file of results that a test provides: emulated parts, and an experiment that did not run.
const KEPT: &str = r#"{"schema": 1, "machine": {}, "tarn": "0.1.0", "date": 0, "quick": true, "experiments": [
    {"schema": 1, "experiment": "a", "title": "A", "source": "S", "emulated": ["a store"], "differs": ["smaller"], "rounds": 3, "seconds": 60,
     "claims": [{"claim": "c", "paper": "1", "here": "2", "verdict": "fails"}]},
    {"schema": 1, "experiment": "b", "title": "B", "source": "S", "not_run": "needs a GPU"}]}"#;

#[test]
fn what_was_kept_is_printed_as_the_documents_table() {
    let site = Site::new("");
    site.write("kept.json", KEPT);
    let table = "| experiment | claim | paper | here | verdict |\n| --- | --- | --- | --- | --- |\n\
                 | [a](evidence/a.md) | c | 1 | 2 (emulated) | does not hold |\n\
                 | [b](evidence/b.md) |  |  |  | not run: needs a GPU |\n";
    let words = ["--render", "kept.json", "--markdown"];
    let printed = reproduce(&site, &words).exits(0);
    assert_eq!(printed.out, table);
    assert!(
        !site.path("results.html").exists(),
        "nobody asked for a page"
    );
    let both = [&words[..], &["--report", "page.html"]].concat();
    assert_eq!(reproduce(&site, &both).exits(0).out, table);
    assert!(site.read("page.html").contains("needs a GPU"));
    let output = reproduce(&site, &["--render", "kept.json"]).exits(0).out;
    for expected in [
        "here, emulated: 2",
        "differs from the paper: smaller",
        "medians of 3 repetitions",
        "2 experiments took 1.0 min",
    ] {
        assert!(output.contains(expected), "{expected}: {output}");
    }
    reproduce(&site, &["--markdown"])
        .exits(2)
        .prints("--render");
    reproduce(&site, &[&words[..], &["--json"]].concat()).exits(2);
}

#[test]
fn times_are_listed_and_summed_and_results_kept_where_told() {
    let site = Site::new("");
    experiment(&site, "a", GOOD);
    experiment(&site, "b", GOOD);
    let listed = reproduce(&site, &["--list"]).exits(0).out;
    let sums = "all: 0.2 min with --quick, target at most 15; 2.0 min without, target at most 90\n";
    assert!(listed.ends_with(sums), "{listed}");
    assert!(
        listed.contains("    0.1 min with --quick, 1 min else"),
        "{listed}"
    );
    let words = ["a", "--quick", "--results", "kept.json", "--report", "page"];
    let ran = reproduce(&site, &words).exits(0);
    assert!(ran.out.contains("1 experiment took 0.0 min"), "{}", ran.out);
    assert!(ran.out.contains("is at most 15 min"), "{}", ran.out);
    let kept: serde_json::Value = serde_json::from_str(&site.read("kept.json")).unwrap();
    assert_eq!(kept["experiments"][0]["rounds"], 3);
    assert!(site.path("page").exists() && !site.path("page.json").exists());
    let same = ["--results", "page", "--report", "page"];
    reproduce(&site, &same).exits(2).prints("--results");
    let nowhere = ["a", "--results", "no/kept.json"];
    reproduce(&site, &nowhere).exits(5).prints("--results");
}

/// The reason why each experiment was not run, or none.
fn reasons(site: &Site) -> Vec<Option<String>> {
    let results: serde_json::Value = serde_json::from_str(&site.read("results.json")).unwrap();
    let all = results["experiments"].as_array().unwrap();
    all.iter()
        .map(|e| e["not_run"].as_str().map(str::to_owned))
        .collect()
}

#[test]
fn no_folder_for_its_files_is_one_experiments_trouble() {
    let site = Site::new("");
    fs::create_dir(site.path("files")).unwrap();
    experiment(&site, "a-good", GOOD);
    let takes_away = "mv files away; rm -r away/*; exit 1";
    experiment(&site, "b-takes-it-away", takes_away);
    experiment(&site, "c-has-none", GOOD);
    experiment(&site, "d-good", GOOD);
    // It describes itself before its folder is made.
    let path = site.path("experiments/d-good.py");
    let text = fs::read_to_string(&path).unwrap();
    let text = text.replace("= about ]; then ", "= about ]; then mv away files; ");
    fs::write(&path, text).unwrap();
    let mut command = site.command(&["reproduce", "--quick", "--dir", "files"]);
    command.env("TARN_EXPERIMENTS", site.path("experiments"));
    Ran::of(command.output().unwrap()).exits(1);
    let why = reasons(&site);
    assert_eq!((&why[0], &why[3]), (&None, &None), "{why:?}");
    let why = why[2].as_deref().unwrap();
    for expected in [
        "needs a folder",
        "files/tarn-reproduce-",
        "No such file",
        "--dir",
    ] {
        assert!(why.contains(expected), "{expected}: {why}");
    }
}

/// As the real experiments report it, on a disk of 64 KiB.
#[test]
fn a_full_disk_is_one_experiments_trouble() {
    let site = Site::new("");
    let part = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../research/experiments/experiment.py"
    );
    let fills = [
        (
            "a-fills",
            "open(f'{bench.folder}/x', 'wb').write(bytes(1 << 20))",
        ),
        (
            "b-child",
            "run(['dd', 'if=/dev/zero', f'of={bench.folder}/x', 'bs=1M', 'count=1'])",
        ),
        (
            "c-good",
            "open(f'{bench.folder}/x', 'wb').write(bytes(1 << 12))",
        ),
    ];
    for (name, does) in fills {
        let text = format!(
            "#!/usr/bin/python3\nfrom experiment import main, run\n\ndef measure(bench):\n    {does}\n    return {{}}\n\n\
             main({{'title': '', 'source': '', 'needs': [], 'minutes': {{'quick': 1, 'full': 1}}}}, measure)\n"
        );
        experiment(&site, name, "");
        fs::write(site.path(&format!("experiments/{name}.py")), text).unwrap();
    }
    fs::copy(part, site.path("experiments/experiment.py")).unwrap();
    fs::create_dir(site.path("files")).unwrap();
    let script = "mount -t tmpfs -o size=64k none files || exit 99; exec \"$0\" reproduce --quick --dir files";
    let ran = std::process::Command::new("unshare")
        .args(["-Urm", "sh", "-c", script])
        .arg(common::tarn())
        .env("TARN_EXPERIMENTS", site.path("experiments"))
        .env("LC_ALL", "C")
        .current_dir(site.path(""))
        .output();
    let Some(ran) = ran
        .ok()
        .map(Ran::of)
        .filter(|r| r.code != Some(99) && !r.err.starts_with("unshare:"))
    else {
        eprintln!("skipped: a tmpfs cannot be mounted in a namespace here");
        return;
    };
    ran.exits(1);
    let why = reasons(&site);
    assert_eq!((why.len(), &why[2]), (3, &None), "{why:?}");
    for why in &why[..2] {
        let why = why.as_deref().unwrap();
        assert!(
            why.starts_with("needs more room") && why.contains("--dir"),
            "{why}"
        );
    }
}

#[test]
fn mistakes_are_said_before_anything_is_measured() {
    let site = Site::new("");
    experiment(&site, "a", "touch ../measured");
    reproduce(&site, &["b"]).exits(7).prints("there are a");
    reproduce(&site, &["--report", "x.json"])
        .exits(2)
        .prints("does not end in .json");
    reproduce(&site, &["--report", "no/x.html"])
        .exits(5)
        .prints("--report");
    reproduce(&site, &["--render", "none.json"]).exits(7);
    site.write("other.json", "{}");
    reproduce(&site, &["--render", "other.json"])
        .exits(3)
        .prints("research/evidence");
    let nowhere = ["--experiments", "nowhere"];
    reproduce(&site, &nowhere)
        .exits(7)
        .prints("research/experiments");
    assert!(!site.path("measured").exists());
}

#[test]
fn an_interrupted_one_is_ended_and_what_there_is_is_kept() {
    let site = Site::new("");
    experiment(&site, "a", GOOD);
    experiment(&site, "b", "echo $$ > \"$5/../pid\"; sleep 300 & wait");
    let mut command = site.command(&["reproduce", "--quick"]);
    command.env("TARN_EXPERIMENTS", site.path("experiments"));
    command.arg("--dir").arg(site.path(""));
    let mut running = command.spawn().unwrap();
    while fs::read_to_string(site.path("pid"))
        .unwrap_or_default()
        .is_empty()
    {
        assert!(running.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(10));
    }
    let process = i32::try_from(running.id()).unwrap();
    let process = rustix::process::Pid::from_raw(process).unwrap();
    rustix::process::kill_process(process, rustix::process::Signal::INT).unwrap();
    assert_eq!(running.wait().unwrap().code(), Some(130));
    let pid = site.read("pid");
    assert!(!fs::exists(format!("/proc/{}", pid.trim())).unwrap());
    let results: serde_json::Value = serde_json::from_str(&site.read("results.json")).unwrap();
    assert_eq!(results["experiments"][0]["rounds"], 3);
    assert_eq!(results["experiments"][1]["not_run"], "interrupted");
}

/// Those that need nothing and take no time, of this source tree.
#[test]
fn what_the_papers_compute_is_computed() {
    let site = Site::new("");
    let mut command = site.command(&["reproduce", "fernando-loss", "fernando-figure2"]);
    command.arg("--dir").arg(site.path(""));
    let ran = Ran::of(command.output().unwrap()).exits(0);
    let count = |begin: &str| ran.out.lines().filter(|l| l.starts_with(begin)).count();
    assert_eq!(count("  holds: "), 1, "{}", ran.out);
    // A value that was fitted to the published ones proves nothing.
    assert_eq!(count("  undecided: "), 2, "{}", ran.out);
    assert!(ran.out.contains("0.98960271 to 0.00000003"), "{}", ran.out);
    assert_eq!(site.read("results.html").matches("<figure ").count(), 2);
}
