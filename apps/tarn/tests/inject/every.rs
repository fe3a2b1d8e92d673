//! Each verb of `tarn` has a sweep, or writes no files.

use crate::calls::{count, sweep};
use crate::common::Site;
use crate::verbs::{of, put, tree, with_tier};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

/// The sources that have sweeps.
const SWEEPS: [&str; 6] = [
    include_str!("ckpt.rs"),
    include_str!("data.rs"),
    include_str!("pages.rs"),
    include_str!("slurm.rs"),
    include_str!("storage.rs"),
    include_str!("verbs.rs"),
];

const READS: &str = "reads only, and changes locks at most: `what_only_reads_changes_nothing`";
const ASKS: &str = "asks the site's controller or tarnd, and writes nothing itself";
const BENCH: &str = "writes to folders of its own only, which it removes";
const BECOMES: &str = "runs another program, and writes nothing itself";

/// Verbs that have no sweep, and why.
const WITHOUT: &[(&str, &str)] = &[
    ("plan", READS),
    ("status", READS),
    ("why", READS),
    (
        "cancel",
        "sends a signal, or makes one empty file that the run looks for",
    ),
    ("data ls", READS),
    ("data show", ASKS),
    ("data grant", ASKS),
    ("data revoke", ASKS),
    ("data keep", ASKS),
    ("data where", READS),
    ("data verify", READS),
    ("data objects", READS),
    ("data versions", READS),
    ("ckpt ls", READS),
    ("ckpt show", READS),
    ("ckpt verify", READS),
    ("ckpt model", "computes"),
    ("h5 exec", BECOMES),
    ("h5 ls", READS),
    ("h5 wait", READS),
    ("partition ls", READS),
    ("verbs exec", BECOMES),
    ("verbs serve", BECOMES),
    (
        "block serve",
        "makes a socket in a folder of its own; what clients write is of partitions (`programs.rs`)",
    ),
    ("mode show", "reads what the kernel and tools say"),
    ("mode plan", "reads what the kernel and tools say"),
    (
        "mode set",
        "changes devices by the tools of their makers, and no files",
    ),
    ("usage", ASKS),
    ("submit", "hands scripts to sbatch"),
    ("slurm check", READS),
    ("slurm setup", ASKS),
    ("slurm data-in", ASKS),
    ("slurm pre-run", ASKS),
    ("slurm post-run", ASKS),
    ("slurm data-out", ASKS),
    ("slurm teardown", ASKS),
    ("slurm whole", "releases a job of Slurm"),
    ("slurm end", ASKS),
    ("slurm rotate-key", ASKS),
    ("slurm status", ASKS),
    ("slurm why", ASKS),
    ("nodes", READS),
    ("doctor", READS),
    ("bench stage", BENCH),
    ("bench workflow", BENCH),
    ("bench plan", BENCH),
    ("bench policies", BENCH),
    ("bench mixed", BENCH),
    ("bench crypt", BENCH),
    ("bench ckpt", BENCH),
    ("bench dsa", BENCH),
    ("bench block", BENCH),
    ("bench hdf5", BENCH),
    ("bench cluster", BENCH),
    ("bench reproduce", "is `reproduce`"),
    ("exec", BECOMES),
    ("enter", BECOMES),
];

/// Verbs that do not end with 0 here: the exit code, and what they say when they have read all that they were given.
const NOT_0: &[(&str, i32, &str)] = &[
    // No writer changes the file.
    (
        "h5 wait",
        5,
        "file was not changed more than 0 times in 1ms",
    ),
];

/// The verb of a command line.
fn verb_of(words: &[&str]) -> String {
    let is_group = ["data", "ckpt", "h5", "partition", "slurm"].contains(&words[0]);
    words[..1 + usize::from(is_group)].join(" ")
}

/// The verbs below one, or all of them: what `--help` lists, down to those that have none below them.
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

/// The names of sweeps over `tarn`: what is between the first quotes behind a call of `sweep`, or of what names it before.
fn swept() -> BTreeSet<&'static str> {
    let mut all = BTreeSet::new();
    for source in SWEEPS {
        for call in source.split("sweep(").skip(1) {
            let mut quoted = call.split('"').skip(1).step_by(2);
            all.extend(quoted.next());
        }
        for named in source.split("let name = \"").skip(1) {
            all.extend(named.split('"').next());
        }
    }
    all
}

#[test]
fn every_verb_has_a_sweep_or_writes_nothing() {
    let site = Site::new("");
    let mut all = BTreeSet::new();
    verbs(&site, &[], &mut all);
    assert!(all.len() > 70, "{all:?}");
    let without: BTreeSet<_> = WITHOUT.iter().map(|(verb, _)| *verb).collect();
    let swept = swept();
    let has_sweep = |verb: &str| {
        swept.iter().any(|name| {
            let rest = name.strip_prefix(verb);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
        })
    };
    for verb in &all {
        let listed = without.contains(verb.as_str());
        assert!(
            listed != has_sweep(verb),
            "`tarn {verb}`: write a sweep, or name it in WITHOUT with the reason; not both"
        );
    }
    let gone: Vec<_> = without.iter().filter(|v| !all.contains(**v)).collect();
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
            "--patience",
            "1ms",
        ],
        vec!["partition", "ls", "./tier"],
        vec!["slurm", "check", "job.sh", "--conf", "."],
        with_tier(&site, &["nodes"]),
        with_tier(&site, &["doctor"]),
    ];
    let listed: BTreeSet<_> = read_only.iter().map(|words| verb_of(words)).collect();
    let reads = WITHOUT.iter().filter(|(_, why)| *why == READS);
    let reads: BTreeSet<_> = reads.map(|(verb, _)| (*verb).to_owned()).collect();
    assert_eq!(
        listed, reads,
        "those that only read, and those that run here"
    );
    let seen = || [&site, &checkpoints].map(seen);
    let before = seen();
    for words in read_only {
        let verb = verb_of(&words);
        let Some((ran, calls)) = count(of(&site, &words)) else {
            return;
        };
        let other = NOT_0.iter().find(|(of, ..)| *of == verb);
        let (code, says) = other.map_or((0, ""), |(_, code, says)| (*code, *says));
        let is_expected = ran.code == Some(code) && ran.err.contains(says);
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
        // Locks, and what is tried out in folders.
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

/// All files but locks.
fn seen(site: &Site) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = tree(site.dir.path());
    all.retain(|path, _| path.extension().is_none_or(|e| e != "lock"));
    all
}
