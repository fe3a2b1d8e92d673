//! Each verb of `tarn` has a sweep, or writes no files.

use crate::calls::{count, sweep};
use crate::common::Site;
use crate::controller::{Controller, ENDED, install_slurm, with_slurm, write_accounting};
use crate::plugins::with_plugins;
use crate::table::SWEPT;
use crate::verbs::{of, put, tree, with_tier};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

const READS: &str = "reads only, and changes locks at most: `what_only_reads_changes_nothing`";
const WRITES_NOTHING: &str = "writes nothing at all: `what_only_asks_writes_nothing`";
const BENCH: &str = "writes to folders of its own only, which it removes";
const IN_A_STEP: &str = "writes nothing at all: `commands_in_a_step_write_nothing`";

/// Verbs that have no sweep, and why.
const WITHOUT: &[(&str, &str)] = &[
    ("plan", READS),
    ("status", READS),
    ("why", READS),
    ("data ls", READS),
    ("data show", WRITES_NOTHING),
    ("data grant", WRITES_NOTHING),
    ("data revoke", WRITES_NOTHING),
    ("data keep", WRITES_NOTHING),
    ("data where", READS),
    ("data verify", READS),
    ("data objects", READS),
    ("data versions", READS),
    ("ckpt ls", READS),
    ("ckpt show", READS),
    ("ckpt verify", READS),
    ("ckpt model", WRITES_NOTHING),
    ("h5 ls", READS),
    ("h5 wait", READS),
    ("partition ls", READS),
    ("verbs exec", WRITES_NOTHING),
    ("verbs serve", WRITES_NOTHING),
    ("mode show", WRITES_NOTHING),
    ("mode plan", WRITES_NOTHING),
    ("usage", WRITES_NOTHING),
    ("slurm check", READS),
    ("slurm setup", WRITES_NOTHING),
    ("slurm data-in", WRITES_NOTHING),
    ("slurm pre-run", WRITES_NOTHING),
    ("slurm post-run", WRITES_NOTHING),
    ("slurm data-out", WRITES_NOTHING),
    ("slurm teardown", WRITES_NOTHING),
    ("slurm end", WRITES_NOTHING),
    ("slurm rotate-key", WRITES_NOTHING),
    ("slurm advise", WRITES_NOTHING),
    ("slurm audit", WRITES_NOTHING),
    ("slurm mode", WRITES_NOTHING),
    ("slurm status", WRITES_NOTHING),
    ("slurm plan", WRITES_NOTHING),
    ("slurm why", WRITES_NOTHING),
    ("nodes", READS),
    ("doctor", READS),
    ("bench stage", BENCH),
    ("bench workflow", BENCH),
    ("bench plan", BENCH),
    ("bench site-plan", BENCH),
    ("bench audit", BENCH),
    ("bench policies", BENCH),
    ("bench mixed", BENCH),
    ("bench crypt", BENCH),
    ("bench ckpt", BENCH),
    ("bench dsa", BENCH),
    ("bench block", BENCH),
    ("bench hdf5", BENCH),
    ("bench cluster", BENCH),
    ("bench reproduce", "is `reproduce`"),
    ("exec", IN_A_STEP),
    ("enter", IN_A_STEP),
];

/// Verbs that do not end with 0 here: the exit code, and their message when they have read all their arguments.
const NOT_0: &[(&str, i32, &str)] = &[
    // No writer changes the file.
    ("h5 wait", 5, "file was not changed in 1ms"),
];

/// The verb of a command line.
fn verb_of(words: &[&str]) -> String {
    let groups = ["data", "ckpt", "h5", "partition", "slurm", "mode", "verbs"];
    let is_group = groups.contains(&words[0]);
    words[..1 + usize::from(is_group)].join(" ")
}

/// The verbs below one, or all of them: those that `--help` lists, down to those that have none below them.
fn verbs(site: &Site, above: &[String], all: &mut BTreeSet<String>) {
    let words = above.iter().map(String::as_str).chain(["--help"]);
    let help = site.tarn(&words.collect::<Vec<_>>()).exits(0).out;
    let mut below = help.lines().skip_while(|line| *line != "Commands:");
    if below.next().is_none() {
        assert!(!above.is_empty(), "{help}");
        all.insert(above.join(" "));
        return;
    }
    for line in below.take_while(|line| !line.is_empty()) {
        let name = line.strip_prefix("  ").filter(|l| !l.starts_with(' '));
        let Some(name) = name.and_then(|line| line.split(' ').next()) else {
            continue;
        };
        if name != "help" {
            verbs(site, &[above, &[name.to_owned()]].concat(), all);
        }
    }
}

#[test]
fn every_verb_has_a_sweep_or_writes_nothing() {
    let site = Site::new("");
    let mut all = BTreeSet::new();
    verbs(&site, &[], &mut all);
    assert!(all.len() > 70, "{all:?}");
    let without: BTreeSet<_> = WITHOUT.iter().map(|(verb, _)| *verb).collect();
    for verb in &all {
        let listed = without.contains(verb.as_str());
        assert!(
            listed != SWEPT.contains(&verb.as_str()),
            "`tarn {verb}`: write a sweep (`table.rs`), or name it in WITHOUT with the reason; not both"
        );
    }
    let named = without.iter().chain(SWEPT);
    let gone: Vec<_> = named.filter(|verb| !all.contains(**verb)).collect();
    assert!(gone.is_empty(), "{gone:?} are no verbs");
}

/// Of those of which the list says so, as far as one machine without a site can run them.
#[test]
fn what_only_reads_changes_nothing() {
    let site = put();
    site.write("a", "one\n");
    site.write("job.sh", "#!/bin/bash\n#TARN name = \"w\"\ntrue\n");
    fs::create_dir(site.path("store")).unwrap();
    let objects = site.path("store").display().to_string();
    site.tarn(&["data", "put", "a", "k", "--object", "--store", &objects])
        .exits(0);
    site.run().exits(0);
    fs::write(site.path("f.h5"), b"\x89HDF\r\n\x1a\n and more").unwrap();
    site.tarn(&["h5", "import", "f.h5", "./tier/file"]).exits(0);
    let with_store = |verb| vec!["data", verb, "--store", objects.as_str()];
    // A tier with a checkpoint, and memory with a newer one.
    let checkpoints = crate::ckpt::two();
    let places = ["tier", "memory"].map(|name| checkpoints.path(name).display().to_string());
    let ckpt = |words: &[&'static str]| {
        let [tier, memory] = places.each_ref().map(String::as_str);
        [&["ckpt"], words, &["--tier", tier, "--memory", memory]].concat()
    };
    let read_only = [
        with_tier(&site, &["plan", "workflow.toml"]),
        vec!["status"],
        vec!["why"],
        vec!["data", "ls"],
        vec!["data", "where", "kept"],
        vec!["data", "verify", "kept"],
        with_store("objects"),
        [&with_store("versions")[..], &["k"]].concat(),
        ckpt(&["ls"]),
        ckpt(&["show", "heat"]),
        ckpt(&["verify", "heat"]),
        vec!["h5", "ls", "./tier"],
        vec![
            "h5",
            "wait",
            "./tier/file",
            "--newer-than",
            "0",
            "--timeout",
            "1ms",
        ],
        vec!["partition", "ls", "./tier"],
        vec!["slurm", "check", "job.sh", "--conf", "."],
        with_tier(&site, &["nodes"]),
        with_tier(&site, &["doctor"]),
    ];
    are_all(READS, &read_only);
    let seen = || [&site, &checkpoints].map(seen);
    let before = seen();
    for words in read_only {
        let verb = verb_of(&words);
        let Some((ran, calls)) = count(of(&site, &words)) else {
            return;
        };
        let other = NOT_0.iter().find(|(of, ..)| *of == verb);
        let (code, expected) = other.map_or((0, ""), |(_, code, expected)| (*code, *expected));
        let is_expected = ran.code == Some(code) && ran.err.contains(expected);
        assert!(
            is_expected,
            "{words:?}: {:?}: {}{}",
            ran.code, ran.out, ran.err
        );
        let is_blind = words[0] == "ckpt" && !ran.out.contains("2.1");
        assert!(!is_blind, "{words:?} shows no version: {}", ran.out);
        assert!(seen() == before, "{words:?} has changed something");
        if calls == 0 {
            continue;
        }
        // Locks, and files that are tried out in folders.
        let command = |site: &&Site| of(site, &words);
        sweep(
            &verb,
            "tarn",
            || &site,
            command,
            |site, hit| {
                let again = site.tarn(&words);
                assert_eq!(again.code, ran.code, "{}: {}", hit.what, again.err);
                assert!(seen() == before, "{}", hit.what);
            },
        );
    }
}

/// Of all verbs that the list gives a reason there is a command line.
#[track_caller]
fn are_all(reason: &str, run: &[Vec<&str>]) {
    let run: BTreeSet<_> = run.iter().map(|words| verb_of(words)).collect();
    let listed = WITHOUT.iter().filter(|(_, why)| *why == reason);
    let listed: BTreeSet<_> = listed.map(|(verb, _)| (*verb).to_owned()).collect();
    assert_eq!(
        run, listed,
        "those that run here, and those that are listed"
    );
}

/// They do their work with a controller and a Slurm that answer, and make none of the calls, on any file of the machine.
#[test]
fn what_only_asks_writes_nothing() {
    let site = crate::modes::node();
    let controller = Controller::start(&site);
    install_slurm(&site);
    crate::plugins::install(&site);
    site.write(
        "job.sh",
        "#!/bin/bash\n#TARN name = \"w\"\n#TARN [[step]]\n#TARN out = [\"kept\"]\ntrue\n",
    );
    let script = site.path("job.sh").display().to_string();
    // It has ended well: what comes before an end does not depend on it.
    site.write("slurm/jobs/1", &format!("ended\n/\njob.sh\n{script}\n\n"));
    write_accounting(&site);
    let lines = [
        "data show w/kept",
        "data grant w/kept 1",
        "data revoke w/kept 1",
        "data keep w/kept 1d",
        "ckpt model",
        "verbs exec true",
        "verbs serve --socket s ./tier/p",
        "mode show",
        "mode plan 2lm --destroy namespace0.0",
        "usage",
        "usage --workflows",
        &format!("slurm setup 1 --user 0 --group 0 --script {script}"),
        "slurm data-in 1",
        "slurm pre-run 1",
        "slurm post-run 1",
        "slurm data-out 1",
        "slurm teardown 1",
        "slurm end w",
        "slurm rotate-key",
        &format!("slurm advise --since {ENDED}"),
        &format!("slurm audit --since {ENDED}"),
        "slurm mode advise",
        "slurm status",
        "slurm plan",
        "slurm why 1",
    ];
    let lines = lines.map(|line| line.split(' ').collect::<Vec<_>>());
    are_all(WRITES_NOTHING, &lines);
    for words in &lines {
        let (_, mut command) = of(&site, words);
        with_slurm(&site, &mut command);
        with_plugins(&site, &mut command);
        command.env("PLAYED_MODES", site.path("state"));
        let Some((ran, calls)) = count(("/".into(), command)) else {
            return;
        };
        assert_eq!(ran.code, Some(0), "{words:?}: {}{}", ran.out, ran.err);
        assert_eq!(calls, 0, "{words:?}");
    }
    // One that writes is seen.
    let create = of(&site, &["partition", "create", "./tier/new", "1 MiB"]);
    let seen = count(("/".into(), create.1)).map(|(_, calls)| calls > 0);
    assert_eq!(seen, Some(true));
    // Their questions came to somebody.
    let call_log = site.read("calls");
    for called in ["squeue", "scontrol", "sinfo", "sacct", "ipmctl", "ndctl"] {
        assert!(call_log.contains(called), "{called}: {call_log}");
    }
    // The job's end was seen, and that nobody has put it back into the queue.
    let stages = controller.stages();
    for stage in ["PostRun { ok: true }", "Teardown { hurry: false }"] {
        assert!(stages.iter().any(|reached| reached == stage), "{stages:?}");
    }
}

/// All files but locks.
fn seen(site: &Site) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = tree(site.dir.path());
    all.retain(|path, _| path.extension().is_none_or(|e| e != "lock"));
    all
}
