//! `tarn reproduce`: experiments run one after the other, whatever becomes of one of them.

mod common;

use common::{Ran, Site};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

/// What an experiment of these tests says of itself, and then does.
fn experiment(site: &Site, name: &str, does: &str) {
    let about = r#"{"title": "A title", "source": "A paper", "needs": ["nothing"], "minutes": {"quick": 0.1, "full": 1}}"#;
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
    assert!(drawn.out.contains("not run: needs a GPU"));
    assert_eq!(site.read("again.html"), site.read("results.html"));
    let ran = reproduce(&site, &["a-good", "--quick", "--json"]).exits(0);
    let results: serde_json::Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(results["experiments"][0]["experiment"], "a-good");
}

#[test]
fn mistakes_are_said_before_anything_is_measured() {
    let site = Site::new("");
    experiment(&site, "a", "touch ../measured");
    reproduce(&site, &["b"]).exits(7).says("there are a");
    reproduce(&site, &["--report", "x.json"])
        .exits(2)
        .says("does not end in .json");
    reproduce(&site, &["--report", "no/x.html"])
        .exits(5)
        .says("--report");
    reproduce(&site, &["--render", "none.json"]).exits(7);
    site.write("other.json", "{}");
    reproduce(&site, &["--render", "other.json"])
        .exits(3)
        .says("docs/evidence");
    let nowhere = ["--experiments", "nowhere"];
    reproduce(&site, &nowhere)
        .exits(7)
        .says("bench/experiments");
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
    let verdicts = ran.out.lines().filter(|l| l.starts_with("  holds: "));
    assert_eq!(verdicts.count(), 2, "{}", ran.out);
    assert_eq!(site.read("results.html").matches("<figure>").count(), 2);
}
