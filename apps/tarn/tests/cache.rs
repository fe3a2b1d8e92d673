//! Data that no step reads any more stays as cache: a later run uses it, and anybody who needs its space gets it.

mod common;
use common::{Ran, Site, files, send, until};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

const MIB: u64 = 1 << 20;

/// Three steps, each of which reads what the one before made. Each notes that it ran.
const CHAIN: &str = r#"
name = "chain"
[data.raw]
source = "in"
[data.a]
[data.b]
[data.o]
dest = "out"
[[step]]
name = "first"
in = ["raw"]
out = ["a"]
run = "echo first >> $TARN_WORKFLOW_DIR/ran; cp $TARN_raw/f $TARN_a/f"
[[step]]
name = "second"
in = ["a"]
out = ["b"]
run = "echo second >> $TARN_WORKFLOW_DIR/ran; cp $TARN_a/f $TARN_b/f"
[[step]]
name = "third"
in = ["b"]
out = ["o"]
run = "echo third >> $TARN_WORKFLOW_DIR/ran; cp $TARN_b/f $TARN_o/f"
"#;

fn chain(bytes: usize) -> Site {
    let site = Site::new(CHAIN);
    std::fs::create_dir(site.path("in")).expect("mkdir");
    std::fs::write(site.path("in/f"), vec![7; bytes]).expect("write");
    site
}

/// The same on a tier that others use too.
fn on(mut site: Site, tier: &Path, size: u64) -> Site {
    site.options = vec!["--tier".into(), format!("fast={}:{size}B", tier.display())];
    site
}

/// `tarn` as users have it: the other tests switch the cache off.
fn command(site: &Site, arguments: &[&str]) -> Command {
    let mut command = site.command(arguments);
    command.env_remove("TARN_CACHE");
    command
}

fn tarn(site: &Site, arguments: &[&str]) -> Ran {
    Ran::of(command(site, arguments).output().expect("tarn starts"))
}

fn run(site: &Site) -> Ran {
    tarn(site, &site.run_arguments())
}

fn plan(site: &Site) -> Ran {
    let mut arguments = site.run_arguments();
    arguments[0] = "plan";
    tarn(site, &arguments)
}

/// The steps that have run since the last call.
fn ran(site: &Site) -> Vec<String> {
    let text = std::fs::read_to_string(site.path("ran")).unwrap_or_default();
    site.write("ran", "");
    text.lines().map(str::to_owned).collect()
}

fn change(site: &Site, from: &str, to: &str) {
    let text = site.read("workflow.toml");
    assert!(text.contains(from), "{text}");
    site.write("workflow.toml", &text.replace(from, to));
}

/// A change of the last step, and nothing else.
fn change_last(site: &Site) {
    change(site, "cp $TARN_b/f", "true; cp $TARN_b/f");
}

/// The rows of `tarn data ls`: datasets with their bytes, as far as they are cached.
fn cached(site: &Site) -> BTreeMap<String, u64> {
    let listed = tarn(site, &["data", "ls", "--json"]).exits(0);
    let rows = listed.out.lines().map(|line| {
        let row: serde_json::Value = serde_json::from_str(line).expect("JSON");
        let name = row["dataset"].as_str().expect("a name").to_owned();
        (name, row["cached"] == true, row["stored"].as_u64())
    });
    let cached = rows.filter(|(_, cached, _)| *cached);
    cached
        .map(|(name, _, stored)| (name, stored.expect("bytes")))
        .collect()
}

fn names(site: &Site) -> Vec<String> {
    cached(site).into_keys().collect()
}

/// The files below a tier, but for those of the ledger.
fn left(tier: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    files(tier, &mut all);
    all.retain(|p| !p.ends_with("ledger") && !p.ends_with("ledger.lock"));
    all
}

/// The sum of a key over all workspaces in the ledger of a tier.
fn ledger(tier: &Path, key: &str) -> u64 {
    let text = std::fs::read_to_string(tier.join("ledger")).unwrap_or_default();
    let page: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    let claims = page["entries"].as_array().cloned().unwrap_or_default();
    claims.iter().filter_map(|c| c[key].as_u64()).sum()
}

/// The ledger says what the datasets take that are cached, and nothing else is there.
#[track_caller]
fn is_exact(tier: &Path, sites: &[&Site]) {
    let sum: u64 = sites.iter().flat_map(|s| cached(s).into_values()).sum();
    assert_eq!(ledger(tier, "used"), sum);
    assert_eq!(ledger(tier, "cached"), sum);
    assert_eq!(ledger(tier, "reserved"), 0);
}

#[test]
fn a_change_of_the_last_step_runs_that_step_alone() {
    let site = chain(1000);
    let planned = plan(&site).exits(0);
    assert!(planned.out.contains("cached: `a`, `b`"), "{}", planned.out);
    let first = run(&site).exits(0);
    let left = "cached    `a`, `b`: ";
    let line = first.out.lines().find(|l| l.starts_with(left));
    let line = line.unwrap_or_else(|| panic!("no {left} in {}", first.out));
    assert!(
        line.contains(" on the nodes for later runs, at least until 20"),
        "{line}"
    );
    assert_eq!(ran(&site), ["first", "second", "third"]);
    assert_eq!(names(&site), ["a", "b"]);
    is_exact(&site.path("tier"), &[&site]);
    tarn(&site, &["data", "ls"]).exits(0).prints("cache ");
    for _ in 0..2 {
        change_last(&site);
        let planned = plan(&site).exits(0);
        assert!(
            planned.out.contains("1 run, 2 unchanged"),
            "{}",
            planned.out
        );
        run(&site).exits(0);
        assert_eq!(ran(&site), ["third"]);
        assert_eq!(names(&site), ["a", "b"]);
        is_exact(&site.path("tier"), &[&site]);
    }
    // The old output of a step that has changed is of no use any more.
    change(&site, "cp $TARN_raw/f", "true; cp $TARN_raw/f");
    run(&site).exits(0);
    // `second` reads the same as before.
    assert_eq!(ran(&site), ["first"]);
    is_exact(&site.path("tier"), &[&site]);
    tarn(&site, &["data", "rm", "b"]).exits(0);
    assert_eq!(names(&site), ["a"]);
    is_exact(&site.path("tier"), &[&site]);
    tarn(&site, &["data", "rm", "a"]).exits(0);
    site.leaves_nothing_on_its_tier();
}

#[test]
fn what_was_changed_on_the_tier_is_not_used() {
    let site = chain(1000);
    run(&site).exits(0);
    ran(&site);
    let parts = left(&site.path("tier"));
    for file in parts.iter().filter(|p| p.ends_with("f")) {
        let mut mode = std::fs::metadata(file).expect("a file").permissions();
        std::os::unix::fs::PermissionsExt::set_mode(&mut mode, 0o644);
        std::fs::set_permissions(file, mode).expect("chmod");
        std::fs::write(file, vec![8; 1000]).expect("write");
    }
    change_last(&site);
    run(&site).exits(0);
    assert_eq!(ran(&site), ["first", "second", "third"]);
    assert_eq!(std::fs::read(site.path("out/f")).expect("it"), [7; 1000]);
}

#[test]
fn nothing_is_cached_where_that_is_asked() {
    let site = chain(1000).with(&["--cache", "0"]);
    let planned = plan(&site).exits(0);
    assert!(!planned.out.contains("cached"), "{}", planned.out);
    let ended = run(&site).exits(0);
    assert!(!ended.out.contains("cached "), "{}", ended.out);
    site.leaves_nothing_on_its_tier();
    ran(&site);
    change_last(&site);
    let expected = "`first`, `second` run again with the same command and inputs";
    plan(&site)
        .exits(0)
        .prints(expected)
        .prints("a larger `--cache`");
    run(&site).exits(0).prints(expected);
    assert_eq!(ran(&site), ["first", "second", "third"]);
    // Its variable does the same.
    let site = chain(1000);
    let mut run = command(&site, &site.run_arguments());
    Ran::of(run.env("TARN_CACHE", "0").output().expect("it runs")).exits(0);
    site.leaves_nothing_on_its_tier();
    // And on the nodes of a job nothing stays.
    let mut run = command(&site, &[&site.run_arguments()[..], &["--local"]].concat());
    change_last(&site);
    Ran::of(run.env("SLURM_JOB_ID", "1").output().expect("it runs")).exits(0);
    site.leaves_nothing_on_its_tier();
}

#[test]
fn a_small_tier_does_all_the_same() {
    // Two datasets at a time fit, and nothing beside them.
    let bytes = 2 * MIB as usize - 100_000;
    let mut site = chain(bytes);
    let tier = site.path("tier");
    let text = CHAIN
        .replace("[data.a]", "[data.a]\nsize = \"2 MiB\"")
        .replace("[data.b]", "[data.b]\nsize = \"2 MiB\"")
        .replace("[data.o]", "[data.o]\nsize = \"2 MiB\"");
    site.write("workflow.toml", &text);
    site = on(site, &tier, 4 * MIB).with(&["--cache", "100"]);
    run(&site).exits(0);
    assert_eq!(names(&site), ["b"]);
    is_exact(&tier, &[&site]);
    let log = site.log();
    let actions = log.iter().flat_map(|r| r["actions"].as_array().unwrap());
    let count = |what: &str| actions.clone().filter(|a| a["do"] == what).count();
    assert_eq!(count("cache"), 2, "`a` was, too, and made way");
    change_last(&site);
    ran(&site);
    run(&site).exits(0);
    assert_eq!(ran(&site), ["third"]);
    is_exact(&tier, &[&site]);
}

#[test]
fn cached_data_keeps_within_its_share() {
    let site = chain(MIB as usize);
    let tier = site.path("tier");
    // One of the two fits into a quarter of it.
    let site = on(site, &tier, 6 * MIB);
    run(&site).exits(0);
    assert_eq!(names(&site), ["b"]);
    is_exact(&tier, &[&site]);
    // Of two workflows as well: the older one's goes.
    let other = on(chain(MIB as usize), &tier, 6 * MIB);
    run(&other).exits(0);
    assert_eq!(names(&other), ["b"]);
    assert!(names(&site).is_empty());
    is_exact(&tier, &[&site, &other]);
}

#[test]
fn what_an_ended_run_has_cached_makes_way_for_another_workflow() {
    let tier = TempDir::new().expect("a tier");
    let first = on(chain(2 * MIB as usize), tier.path(), 16 * MIB);
    run(&first).exits(0);
    assert_eq!(names(&first), ["b"]);
    is_exact(tier.path(), &[&first]);
    let text = "name = \"large\"\n[data.big]\nsize = \"15 MiB\"\ndest = \"big\"\n[[step]]\nname = \"fill\"\nout = [\"big\"]\n\
                run = \"head -c 15000000 /dev/zero > $TARN_big/f\"\n";
    let second = on(Site::new(text), tier.path(), 16 * MIB);
    let done = run(&second).exits(0);
    assert!(!done.err.contains("wait"), "{}", done.err);
    tarn(&first, &["data", "get", "b", "got"])
        .exits(7)
        .prints("to step `second` (another value");
    assert!(names(&first).is_empty());
    is_exact(tier.path(), &[&first, &second]);
    assert!(left(tier.path()).is_empty(), "{:?}", left(tier.path()));
    // It is made again, and no message says that something was lost.
    ran(&first);
    change_last(&first);
    let done = run(&first).exits(0);
    assert!(!done.err.contains("warning"), "{}", done.err);
    assert_eq!(ran(&first), ["first", "second", "third"]);
}

#[test]
fn what_a_live_run_has_cached_makes_way_for_another_workflow() {
    let tier = TempDir::new().expect("a tier");
    let first = on(chain(2 * MIB as usize), tier.path(), 16 * MIB);
    let hangs = "touch $TARN_WORKFLOW_DIR/hangs; \
                 while ! test -e $TARN_WORKFLOW_DIR/go; do sleep 0.05; done; cp $TARN_b/f $TARN_o/f";
    let text = CHAIN
        .replace("cp $TARN_b/f $TARN_o/f", hangs)
        .replace("[data.b]", "[data.b]\nsize = \"2 MiB\"")
        .replace("[data.o]", "[data.o]\nsize = \"2 MiB\"");
    first.write("workflow.toml", &text);
    let mut begun = command(&first, &first.run_arguments());
    let child = begun.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let child = child.expect("tarn starts");
    // Space is claimed for the third step at any time before it runs.
    until("a is cached, and `o` has its space", || {
        ledger(tier.path(), "cached") >= 2 * MIB && first.path("hangs").exists()
    });
    // The space beside `b`, `o` and the cached data would not be enough.
    let text = "name = \"large\"\n[data.big]\nsize = \"11 MiB\"\ndest = \"big\"\n[[step]]\nname = \"fill\"\nout = [\"big\"]\n\
                run = \"head -c 11000000 /dev/zero > $TARN_big/f\"\n";
    let second = on(Site::new(text), tier.path(), 16 * MIB);
    run(&second).exits(0);
    assert_eq!(ledger(tier.path(), "cached"), 0);
    first.write("go", "");
    Ran::end(child).exits(0);
    assert_eq!(names(&first), ["b"]);
    is_exact(tier.path(), &[&first, &second]);
}

#[test]
fn what_is_erased_or_needed_no_more_after_a_week_is_not_left() {
    let site = chain(1000);
    site.write("workflow.toml", &format!("erase = true\n{CHAIN}"));
    run(&site).exits(0);
    assert!(names(&site).is_empty());
    site.leaves_nothing_on_its_tier();
    // A week is over.
    let site = chain(1000);
    run(&site).exits(0);
    ran(&site);
    let week = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); \
                c.execute('UPDATE replicas SET kept_until = kept_until - 604801'); c.commit()";
    let index = site.path(".tarn/catalogue.sqlite");
    let passed = Command::new("python3")
        .args(["-c", week])
        .arg(index)
        .status();
    assert!(passed.expect("python3 starts").success());
    tarn(&site, &["data", "ls"]).exits(0).prints("no longer");
    change_last(&site);
    run(&site).exits(0).prints("kept no longer");
    assert_eq!(ran(&site), ["first", "second", "third"]);
}

#[test]
fn what_is_cached_can_be_kept_without_being_made_again() {
    let tier = TempDir::new().expect("a tier");
    let site = on(chain(2 * MIB as usize), tier.path(), 16 * MIB);
    run(&site).exits(0);
    tarn(&site, &["data", "pin", "b"])
        .exits(2)
        .prints("is only cached");
    change(&site, "[data.b]", "[data.b]\nkeep = \"forever\"");
    change_last(&site);
    ran(&site);
    run(&site).exits(0);
    assert_eq!(ran(&site), ["third"]);
    assert!(!names(&site).contains(&"b".to_owned()));
    tarn(&site, &["data", "ls"]).exits(0).prints("forever");
    assert!(ledger(tier.path(), "used") >= 2 * MIB + ledger(tier.path(), "cached"));
    tarn(&site, &["data", "rm", "b"]).exits(0);
    is_exact(tier.path(), &[&site]);
}

#[test]
fn whatever_is_cached_when_a_run_is_killed_nothing_is_lost_or_left() {
    // Before and after records and actions, from the first to the end.
    for at in (1..).step_by(5) {
        let site = chain(1000);
        let mut run_it = command(&site, &site.run_arguments());
        let ran_it = run_it.env("TARN_CRASH_AT", at.to_string()).output();
        let crashed = ran_it.expect("tarn starts").status.code().is_none();
        let resumed = tarn(&site, &["resume"]);
        match resumed.code {
            Some(7) => run(&site).exits(0),
            _ => resumed.exits(0),
        };
        assert_eq!(names(&site), ["a", "b"], "{at}");
        assert_eq!(ledger(&site.path("tier"), "reserved"), 0, "{at}");
        change_last(&site);
        ran(&site);
        run(&site).exits(0);
        assert_eq!(ran(&site), ["third"], "{at}");
        is_exact(&site.path("tier"), &[&site]);
        for name in ["a", "b"] {
            tarn(&site, &["data", "rm", name]).exits(0);
        }
        site.leaves_nothing_on_its_tier();
        if !crashed {
            assert!(at > 20, "{at}");
            break;
        }
    }
}

#[test]
fn a_killed_run_leaves_what_it_has_cached_to_others() {
    let tier = TempDir::new().expect("a tier");
    let first = on(chain(2 * MIB as usize), tier.path(), 16 * MIB);
    let hangs = "touch $TARN_WORKFLOW_DIR/hangs; sleep 1000";
    change(&first, "cp $TARN_b/f $TARN_o/f", hangs);
    let mut begun = command(&first, &first.run_arguments());
    let child = begun.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
    let child = child.expect("tarn starts");
    until("the last step hangs", || first.path("hangs").exists());
    until("a is cached", || ledger(tier.path(), "cached") >= 2 * MIB);
    send(Signal::KILL, &child);
    Ran::end(child);
    let text = "name = \"large\"\n[data.big]\nsize = \"13 MiB\"\ndest = \"big\"\n[[step]]\nname = \"fill\"\nout = [\"big\"]\n\
                run = \"head -c 13000000 /dev/zero > $TARN_big/f\"\n";
    let second = on(Site::new(text), tier.path(), 16 * MIB);
    run(&second).exits(0);
    assert_eq!(ledger(tier.path(), "cached"), 0);
    change(&first, hangs, "cp $TARN_b/f $TARN_o/f");
    run(&first).exits(0);
    is_exact(tier.path(), &[&first, &second]);
}

/// The second step reads `x` and keeps what it makes; the third fails until there is a file `go`.
const FAILS: &str = r#"
name = "a"
[data.x]
[data.y]
keep = "forever"
[data.z]
[[step]]
name = "mk"
out = ["x"]
run = "head -c 1000000 /dev/zero > $TARN_x/f"
[[step]]
name = "mid"
in = ["x"]
out = ["y"]
run = "cp $TARN_x/f $TARN_y/f"
[[step]]
name = "bad"
in = ["y"]
out = ["z"]
run = "test -e $TARN_WORKFLOW_DIR/go && touch $TARN_z/f"
"#;

/// A run of another workflow that needs all of a tier of 16 MiB but for `left` bytes.
fn fill(tier: &Path, left: u64) -> Site {
    let bytes = 16 * MIB - left;
    let text = format!(
        "name = \"c\"\n[data.big]\nsize = \"{bytes} B\"\ndest = \"big\"\n[[step]]\nname = \"fill\"\nout = [\"big\"]\n\
         run = \"head -c 1000 /dev/zero > $TARN_big/f\"\n"
    );
    on(Site::new(&text), tier, 16 * MIB)
}

#[test]
fn what_a_failed_run_has_cached_is_pinned_for_good() {
    let tier = TempDir::new().expect("a tier");
    let site = on(Site::new(FAILS), tier.path(), 16 * MIB);
    run(&site).exits(1);
    let x = ledger(tier.path(), "cached");
    assert!(x >= 1_000_000, "the failed run has cached `x`");
    tarn(&site, &["data", "pin", "x"]).exits(0);
    assert_eq!(ledger(tier.path(), "cached"), 0);
    // Another workflow needs its space, and does not get it.
    let kept = ledger(tier.path(), "used");
    let other = fill(tier.path(), kept - x);
    run(&other)
        .exits(1)
        .prints("held by what dead runs have left");
    tarn(&site, &["data", "verify", "x"])
        .exits(0)
        .prints("whole");
    // Runs of its own workflow do not mark it again.
    tarn(&site, &["resume", "a-1"]).exits(1);
    assert_eq!(ledger(tier.path(), "cached"), 0);
    site.write("go", "");
    run(&site).exits(0);
    assert_eq!(names(&site), ["z"]);
    assert!(ledger(tier.path(), "cached") < x);
    tarn(&site, &["data", "verify", "x"])
        .exits(0)
        .prints("whole");
}

#[test]
fn what_a_failed_run_has_cached_is_not_listed_once_it_is_gone() {
    let tier = TempDir::new().expect("a tier");
    let site = on(Site::new(FAILS), tier.path(), 16 * MIB);
    run(&site).exits(1);
    let listed = |site: &Site| {
        let listed = tarn(site, &["data", "ls", "--json"]).exits(0).out;
        listed.contains(r#""dataset":"x""#)
    };
    assert!(listed(&site));
    let kept = ledger(tier.path(), "used") - ledger(tier.path(), "cached");
    run(&fill(tier.path(), kept)).exits(0);
    assert!(!listed(&site));
    let again = "To make `x` again: set `keep = \"7d\"` in [data.x], add `env = { AGAIN = \"1\" }` to step `mk`";
    tarn(&site, &["data", "pin", "x"])
        .exits(7)
        .prints("is gone")
        .prints(again);
    tarn(&site, &["data", "get", "x", "got"])
        .exits(7)
        .prints("`x` is not stored anywhere that tarn knows")
        .prints(again);
}

/// A chain whose last step fails, and whose first dataset is to be copied out then.
fn failing(bytes: usize) -> Site {
    let site = chain(bytes);
    let drains = "[data.a]\non_failure = \"drain\"";
    change(&site, "[data.a]", drains);
    change(
        &site,
        "name = \"chain\"",
        "name = \"chain\"\nexternal = \"ext\"",
    );
    change(&site, "cp $TARN_b/f", "false; cp $TARN_b/f");
    site
}

#[test]
fn what_was_consumed_before_a_failure_is_rescued_from_the_cache() {
    let site = failing(1000);
    let ran = run(&site).exits(1).prints("copied `a` to");
    let rescued = site.path("ext/rescued-chain-1/a/f");
    assert_eq!(std::fs::read(rescued).expect("it"), [7; 1000]);
    assert!(!ran.out.contains("not rescued"), "{}", ran.out);
    // It stays where it was, for the next run.
    self::ran(&site);
    change(&site, "false; cp $TARN_b/f", "cp $TARN_b/f");
    run(&site).exits(0);
    assert_eq!(self::ran(&site), ["third"]);
    assert_eq!(names(&site), ["a", "b"]);
    is_exact(&site.path("tier"), &[&site]);
}

#[test]
fn what_was_dropped_before_a_failure_is_named() {
    let mut site = failing(1000);
    site.options.extend(["--cache", "0"].map(str::to_owned));
    let ran = run(&site).exits(1);
    let expected = "`a` was not rescued: no node holds it any more. tarn may remove data once its last reader has ended";
    assert!(ran.out.contains(expected), "{}", ran.out);
    assert!(!site.path("ext/rescued-chain-1").exists());
    let why = "not rescued: no node holds it any more. tarn may remove data once its last reader has ended";
    tarn(&site, &["why", "a"]).exits(0).prints(why);
    tarn(&site, &["why"]).exits(0).prints(why);
    tarn(&site, &["status"]).exits(0).prints(expected);
    let page = site.read(".tarn/runs/chain-1/report.html");
    assert!(page.contains("a was not rescued"));
    // As it says there.
    change(&site, "cp $TARN_raw/f", "true; cp $TARN_raw/f");
    change(
        &site,
        "on_failure = \"drain\"",
        "on_failure = \"drain\"\nkeep = \"workflow\"",
    );
    run(&site).exits(1).prints("copied `a` to");
    let rescued = site.path("ext/rescued-chain-2/a");
    assert!(rescued.join("f").exists());
    // It has no `dest`: the copy is named as a copy outside.
    tarn(&site, &["data", "rm", "a"]).exits(0);
    let there = format!("chain/a (only outside, in {})", rescued.display());
    tarn(&site, &["data", "get", "none", "got"])
        .exits(7)
        .prints(&there);
}

#[test]
fn what_is_left_of_a_consumed_version_is_rescued_and_the_rest_is_named() {
    // `use[e2]` fails once `e1` has been consumed; the others wait for that.
    let log = "$TARN_WORKFLOW_DIR/.tarn/runs/w-1/events.log";
    let site = Site::new(&format!(
        "name = \"w\"\nexternal = \"ext\"\n[data.a]\non_failure = \"drain\"\n[data.o]\n\
         [[step]]\nname = \"make\"\nout = [\"a\"]\nrun = \"for i in 1 2 3 4; do echo $i > $TARN_a/e$i; done\"\n\
         [[step]]\nname = \"use\"\nforeach = \"a/e*\"\nmax = 4\nin = [\"a/{{item}}\"]\nout = [\"o\"]\nrun = \"\"\"\n\
         if [ $TARN_ITEM = e2 ]; then\n\
         n=0; until grep -qF '\"do\":\"evict\"' {log}; do sleep 0.05; n=$((n + 1)); [ $n -lt 2400 ] || exit 9; done; exit 3\nfi\n\
         if [ $TARN_ITEM != e1 ]; then\n\
         n=0; until grep -qF '\"gave-up\"' {log}; do sleep 0.05; n=$((n + 1)); [ $n -lt 2400 ] || exit 9; done\nfi\n\
         cp $TARN_a/$TARN_ITEM $TARN_o/$TARN_ITEM\n\"\"\"\n"
    ))
    .with(&["--cache", "0"]);
    std::fs::create_dir(site.path("ext")).expect("mkdir");
    let gone = "`a/e1` is gone";
    run(&site)
        .exits(1)
        .prints("copied what is left of `a` to")
        .prints(gone)
        .prints("`a` was rescued only in part: 3 of its 4 parts were copied; no node holds the other 1 any more");
    for (item, text) in [("e2", "2\n"), ("e3", "3\n"), ("e4", "4\n")] {
        assert_eq!(site.read(&format!("ext/rescued-w-1/a/{item}")), text);
    }
    assert!(!site.path("ext/rescued-w-1/a/e1").exists());
    let expected = "rescued only in part: 3 of its 4 parts";
    tarn(&site, &["status"]).exits(0).prints(expected);
    let expected = "because only some of its parts could be copied: 3 of its 4 parts";
    tarn(&site, &["why", "a"]).exits(0).prints(expected);
    tarn(&site, &["why"]).exits(0).prints(expected);
    let page = site.read(".tarn/runs/w-1/report.html");
    assert!(page.contains("a was rescued only in part"));
    // So does the command.
    tarn(&site, &["data", "get", "a", "got"])
        .exits(1)
        .prints(
            "`a` (version 1, made by w-1) is incomplete: 1 of its 4 parts is gone, that of `a/e1`",
        )
        .prints("the other 3 parts were copied. To make `a` again: set `keep");
    assert_eq!(site.read("got/e4"), "4\n");
    tarn(&site, &["data", "verify", "a"])
        .exits(1)
        .prints("that of `a/e1`. To make `a` again: ");
    tarn(&site, &["data", "drain", "a", "drained"])
        .exits(1)
        .prints("nothing was copied");
}

#[test]
fn what_is_to_be_kept_only_after_it_has_gone_is_named_with_its_remedy() {
    let site = chain(1000).with(&["--cache", "0"]);
    run(&site).exits(0);
    ran(&site);
    change(&site, "[data.a]", "[data.a]\nkeep = \"forever\"");
    let gone = "note: [data.a] has `keep`, but no node holds `a` any more. `tarn run` does not make it again, because nothing that step \
                `first` depends on has changed. To make `a` again: add `env";
    let remedy = "add `env = { AGAIN = \"1\" }` to step `first` (another value if it is there already; in a script: a line `export \
                  AGAIN=1`), then `tarn run`";
    plan(&site).exits(0).prints(&gone[6..]).prints(remedy);
    run(&site).exits(0).prints(gone).prints(remedy);
    assert!(ran(&site).is_empty());
    tarn(&site, &["data", "get", "a", "got"])
        .exits(7)
        .prints("`a` is not stored anywhere that tarn knows. Datasets here: chain/o (in its `dest`")
        .prints(remedy);
    // Of one without `keep` that is named as well: it would only be consumed again.
    tarn(&site, &["data", "get", "b", "got"])
        .exits(7)
        .prints("To make `b` again: set `keep = \"7d\"` in [data.b], add `env = { AGAIN = \"1\" }` to step `second`");
    // A dataset that is only in its `dest` is named so.
    let there = format!(
        "Datasets here: chain/o (in its `dest` {})",
        site.path("out").display()
    );
    tarn(&site, &["data", "get", "none", "got"])
        .exits(7)
        .prints(&there);
    // As it says.
    let env = "name = \"first\"\nenv = { AGAIN = \"1\" }";
    change(&site, "name = \"first\"", env);
    let planned = plan(&site).exits(0);
    assert!(!planned.out.contains(gone), "{}", planned.out);
    let again = run(&site).exits(0);
    assert!(!again.err.contains(gone), "{}", again.err);
    assert_eq!(ran(&site), ["first"]);
    tarn(&site, &["data", "get", "a", "got"]).exits(0);
    assert_eq!(std::fs::read(site.path("got/f")).expect("it"), [7; 1000]);
    let unchanged = run(&site).exits(0);
    assert!(!unchanged.err.contains(gone), "{}", unchanged.err);
}

/// The note of `tarn run` on a dataset that is to be kept and is gone.
const KEPT_AND_GONE: &str = "[data.a] has `keep`";

#[test]
fn what_was_kept_as_long_as_was_asked_is_not_missed() {
    // Its time is over, and it was kept by the run that made it.
    let site = chain(1000).with(&["--cache", "0"]);
    change(&site, "[data.a]", "[data.a]\nkeep = \"1s\"");
    run(&site).exits(0);
    common::until("its time is over", || {
        run(&site).exits(0);
        let got = tarn(&site, &["data", "get", "a", "got"]);
        let _ = std::fs::remove_dir_all(site.path("got"));
        got.code == Some(7)
    });
    let after = run(&site).exits(0);
    assert!(!after.err.contains(KEPT_AND_GONE), "{}", after.err);
    let planned = plan(&site).exits(0);
    assert!(!planned.out.contains(KEPT_AND_GONE), "{}", planned.out);
    // It is to stay longer only now.
    change(&site, "keep = \"1s\"", "keep = \"7d\"");
    run(&site).exits(0).prints(KEPT_AND_GONE);
    // Somebody has removed it.
    let site = chain(1000).with(&["--cache", "0"]);
    change(&site, "[data.a]", "[data.a]\nkeep = \"7d\"");
    run(&site).exits(0);
    tarn(&site, &["data", "rm", "a"]).exits(0);
    let after = run(&site).exits(0);
    assert!(!after.err.contains(KEPT_AND_GONE), "{}", after.err);
    // It is where it was delivered to.
    let site = chain(1000).with(&["--cache", "0"]);
    change(&site, "[data.a]", "[data.a]\ndest = \"a-out\"");
    run(&site).exits(0);
    change(&site, "dest = \"a-out\"", "dest = \"a-out\"\nkeep = \"7d\"");
    let after = run(&site).exits(0);
    assert!(!after.err.contains(KEPT_AND_GONE), "{}", after.err);
}

#[test]
fn a_script_makes_what_is_gone_again_as_is_said() {
    let mut site = Site::new("");
    site.write(
        "words.sh",
        "#!/bin/bash\n#TARN name = \"words\"\n#TARN [data.counts]\n#TARN [[step]]\n#TARN out = [\"counts\"]\necho 1 > $TARN_counts/n\n",
    );
    site.options.extend(["--cache", "0"].map(str::to_owned));
    let run = || {
        let mut arguments = site.run_arguments();
        arguments[1] = "words.sh";
        tarn(&site, &arguments)
    };
    run().exits(0);
    tarn(&site, &["data", "get", "counts", "got"])
        .exits(7)
        .prints("in a script: a line `export AGAIN=1`");
    for value in 1..=2 {
        let again = format!(
            "#!/bin/bash\n#TARN name = \"words\"\n#TARN [data.counts]\n#TARN keep = \"7d\"\n#TARN [[step]]\n#TARN out = [\"counts\"]\nexport AGAIN={value}\necho 1 > $TARN_counts/n\n"
        );
        site.write("words.sh", &again);
        run().exits(0).prints("1 run");
        let got = format!("got{value}");
        tarn(&site, &["data", "get", "counts", &got]).exits(0);
        tarn(&site, &["data", "rm", "counts"]).exits(0);
    }
}
