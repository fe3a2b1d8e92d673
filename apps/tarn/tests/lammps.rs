//! examples/lammps: LAMMPS is killed, and continues from its own restart files with the results that it would have had.

mod common;

use common::{Ran, Site, until};
use rustix::process::{Pid, Signal, kill_process};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

/// Steps after a restart in which all printed digits agree. LAMMPS sums in another order then, and so small a difference grows e-fold in
/// some thirty steps: in so many it is still a thousandth of the last digit.
const SAME: u64 = 300;
/// Relative difference that is allowed later.
const FAR_CLOSE: f64 = 1e-4;

/// The example in a folder of its own, if LAMMPS is here.
fn site() -> Option<Site> {
    if Command::new("lmp").arg("-help").output().is_err() {
        eprintln!("SKIPPED: no LAMMPS here: scripts/deps.sh test installs it");
        return None;
    }
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/lammps");
    let text = |name: &str| fs::read_to_string(example.join(name)).expect("a file of the example");
    let site = Site::new(&text("workflow.toml"));
    site.write("in.melt", &text("in.melt"));
    fs::copy(example.join("melt.sh"), site.path("melt.sh")).expect("a file of the example");
    Some(site)
}

/// The LAMMPS that a site runs.
fn running(site: &Site) -> Option<Pid> {
    let folder = format!("TARN_WORKFLOW_DIR={}\0", site.dir.path().display());
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let numbers = processes.filter_map(|p| p.file_name().to_str()?.parse::<i32>().ok());
    let mut own = numbers.filter(|pid| {
        let read = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let environment = read("environ");
        let mut windows = environment.windows(folder.len());
        read("comm") == b"lmp\n" && windows.any(|w| w == folder.as_bytes())
    });
    Pid::from_raw(own.next()?)
}

/// Thermodynamic output by time step, as printed: step, temperature, three energies, pressure. Of what was printed twice the later.
fn thermo(log: &str) -> BTreeMap<u64, Vec<String>> {
    let lines = log.lines().filter_map(|line| {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let step = words.first()?.parse().ok()?;
        (words.len() == 6).then_some((step, words))
    });
    lines.collect()
}

/// Whether numbers differ by no more than the round-off of so many steps.
fn close(one: &[String], other: &[String]) -> bool {
    let number = |text: &String| text.parse::<f64>().expect("a number");
    let mut pairs = one.iter().map(number).zip(other.iter().map(number));
    pairs.all(|(a, b)| (a - b).abs() <= FAR_CLOSE * a.abs())
}

#[test]
fn lammps_goes_on_from_its_restart_files_as_if_it_had_not_been_killed() {
    let (Some(plain), Some(site)) = (site(), site()) else {
        return;
    };
    plain.run().exits(0);
    let child = site.begin(&[]);
    let mut folders = Vec::new();
    until("two restart files are there", || {
        folders.clear();
        common::files(&site.path("tier"), &mut folders);
        folders.iter().any(|f| f.ends_with("restart_b"))
    });
    let lammps = running(&site).expect("LAMMPS runs");
    kill_process(lammps, Signal::KILL).expect("it was there");
    let ran = Ran::end(child).exits(0);
    ran.prints("melt: started again (1st restart; 1 of 5 retries used up)");
    let log = site.read("result/log.lammps");
    let again = log.split_once("Reading restart file").expect("it did").1;
    let from = *thermo(again).keys().next().expect("a line");
    assert!((100..1000).contains(&from), "{log}");
    let (expected, found) = (thermo(&plain.read("result/log.lammps")), thermo(&log));
    let steps: Vec<u64> = (0..=1000).step_by(50).collect();
    assert!(found.keys().eq(&steps), "{found:?}");
    for (step, words) in &expected {
        let agree = match *step <= from + SAME {
            true => *words == found[step],
            false => close(words, &found[step]),
        };
        assert!(agree, "{words:?} {:?}", found[step]);
    }
    site.leaves_nothing_on_its_tier();
}

/// A LAMMPS that reads every file but those that say `torn`, and prints the file from which it continues.
const STUB: &str = r#"#!/bin/sh
case $1 in
-restart2data) ! grep -q torn "$2" ;;
-in) echo "$5" > log.stub; : > state.data ;;
esac
"#;

#[test]
fn an_attempt_writes_first_over_the_file_that_it_does_not_go_on_from_and_removes_none() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/lammps/melt.sh");
    // The files that are there, older first; the file from which the attempt continues, and the files that are there then.
    let cases = [
        (vec![("b", "8"), ("a", "9")], "restart_b", "restart_b=9"),
        (
            vec![("a", "8"), ("b", "9")],
            "restart_b",
            "restart_a=8 restart_b=9",
        ),
        (
            vec![("b", "8"), ("a", "torn")],
            "restart_b",
            "restart_a=torn restart_b=8",
        ),
        (vec![("a", "8"), ("b", "torn")], "restart_b", "restart_b=8"),
        (
            vec![("a", "torn"), ("b", "torn")],
            "new",
            "restart_a=torn restart_b=torn",
        ),
        (vec![], "new", ""),
    ];
    for (there, from, left) in cases {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        for name in ["bin", "kept", "result"] {
            fs::create_dir(path(name)).expect("a folder");
        }
        fs::write(path("bin/lmp"), STUB).expect("a stub");
        let executable = fs::Permissions::from_mode(0o755);
        fs::set_permissions(path("bin/lmp"), executable).expect("its mode");
        for (age, (name, text)) in (1..).zip(&there) {
            let file = path(&format!("kept/restart_{name}"));
            fs::write(&file, text).expect("a restart file");
            let made = SystemTime::UNIX_EPOCH + Duration::from_hours(age);
            let file = fs::File::options().write(true).open(&file);
            file.and_then(|f| f.set_modified(made)).expect("its time");
        }
        let found = std::env::var("PATH").expect("PATH");
        let status = Command::new(&script)
            .arg(path("result"))
            .env("PATH", format!("{}:{found}", path("bin").display()))
            .env("TARN_CHECKPOINTS", path("kept"))
            .env("TARN_WORKFLOW_DIR", folder.path())
            .envs([("TARN_ATTEMPT", "2"), ("STEPS", "1000")])
            .status();
        assert!(status.expect("a shell").success());
        let read = |name: &str| fs::read_to_string(path(name)).ok();
        assert_eq!(
            read("kept/log.stub").as_deref(),
            Some(&*format!("{from}\n"))
        );
        let files = ["restart_a", "restart_b"].into_iter();
        let files = files.filter_map(|f| Some(format!("{f}={}", read(&format!("kept/{f}"))?)));
        assert_eq!(files.collect::<Vec<_>>().join(" "), left, "{there:?}");
    }
}
