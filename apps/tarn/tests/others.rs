//! Datasets of other workflows (`of`): read where they are stored, held meanwhile, and noticed when they change.

mod common;

use common::{Ran, Site};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Reads the dataset and says which file it was, where `$MORE` is done before.
fn reads(of: &str, more: &str) -> String {
    format!(
        "name = \"use\"\n[data.genome]\nof = \"{of}\"\n[data.out]\ndest = \"res\"\n[[step]]\nname = \"a\"\nin = [\"genome\"]\nout = [\"out\"]\n\
         run = '''\n{more}\ncat $TARN_genome/genome > $TARN_out/text\nstat -c %i $TARN_genome/genome > $TARN_out/inode\n'''\n"
    )
}

/// A step that has begun and waits.
const WAITS: &str =
    "cd $TARN_WORKFLOW_DIR; touch began; while ! [ -e go ]; do sleep 0.05; done; cd - > /dev/null";

/// Waits for something that comes.
fn until(there: impl Fn() -> bool) {
    let since = Instant::now();
    while !there() {
        assert!(since.elapsed() < Duration::from_secs(100), "it never comes");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn site(of: &str, more: &str) -> Site {
    let site = Site::new(&reads(of, more));
    site.write("ref/genome", "ACGT\n");
    site
}

fn put(site: &Site, name: &str) -> Ran {
    site.tarn(&["data", "put", "ref", name, "--tier", &site.options[1]])
}

fn plan(site: &Site) -> Ran {
    site.tarn(&["plan", "workflow.toml", "--tier", &site.options[1]])
}

/// The only file of the only replica.
fn replica(site: &Site, name: &str) -> PathBuf {
    let place = site.tarn(&["data", "where", name, "--json"]).exits(0);
    let place: serde_json::Value = serde_json::from_str(place.out.trim()).expect("one line");
    PathBuf::from(place["path"].as_str().expect("a path")).join("genome")
}

#[test]
fn it_is_read_where_it_is_stored_and_stays() {
    for of in ["genome", "put-genome/genome"] {
        let site = site(of, "");
        put(&site, "genome").exits(0);
        let file = replica(&site, "genome");
        let inode = fs::metadata(&file).expect("there").ino();
        plan(&site).exits(0).prints("1 run");
        site.run().exits(0);
        assert_eq!(site.read("res/text"), "ACGT\n");
        assert_eq!(
            site.read("res/inode"),
            format!("{inode}\n"),
            "it is the file itself"
        );
        assert_eq!(
            site.moved()
                .keys()
                .filter(|(kind, _)| kind != "external-out")
                .count(),
            0
        );
        assert_eq!(fs::metadata(&file).expect("there still").ino(), inode);
        site.tarn(&["data", "verify", "genome"])
            .exits(0)
            .prints("whole");
        // Nothing has changed.
        plan(&site).exits(0).prints("1 unchanged");
        site.run().exits(0).prints("1 unchanged");
        site.tarn(&["data", "rm", "genome"]).exits(0);
        site.leaves_nothing_on_its_tier();
    }
}

#[test]
fn its_tier_need_not_hold_it_twice() {
    let site = Site::new(&reads("genome", "").replace("cat $TARN_genome", "cksum < $TARN_genome"));
    // More than half of the tier.
    site.write("ref/genome", &"forty megabytes\n".repeat(40 * 65536));
    put(&site, "genome").exits(0);
    plan(&site).exits(0);
    site.run().exits(0);
    assert!(site.read("res/text").ends_with(" 41943040\n"));
}

#[test]
fn a_changed_version_is_noticed_and_an_equal_one_is_not() {
    let site = site("genome", "");
    put(&site, "genome").exits(0);
    site.run().exits(0);
    site.write("ref/genome", "TTTT\n");
    put(&site, "genome").exits(0);
    plan(&site)
        .exits(0)
        .prints("1 run")
        .prints("`genome` of workflow put-genome has changed");
    site.run().exits(0);
    assert_eq!(site.read("res/text"), "TTTT\n");
    site.tarn(&["data", "rm", "genome"]).exits(0);
    put(&site, "genome").exits(0);
    site.run().exits(0).prints("1 unchanged");
}

#[test]
fn nobody_removes_or_replaces_it_while_a_run_reads_it() {
    let site = site("genome", WAITS);
    put(&site, "genome").exits(0);
    let run = site.begin(&[]);
    until(|| site.path("began").exists());
    for refused in ["rm", "release"] {
        site.tarn(&["data", refused, "genome"])
            .exits(6)
            .prints("a run of another workflow reads data of workflow put-genome");
    }
    site.write("ref/genome", "TTTT\n");
    put(&site, "genome").exits(6);
    // Commands that do not change the dataset are not refused.
    site.tarn(&["data", "where", "genome"]).exits(0);
    site.tarn(&["data", "get", "genome", "got"]).exits(0);
    site.tarn(&["data", "rm", "--orphans"]).exits(0);
    assert_eq!(site.read("got/genome"), "ACGT\n");
    // `plan` refuses the same as `run`.
    plan(&site)
        .exits(6)
        .prints("a run of workflow use is active");
    site.write("go", "");
    Ran::end(run).exits(0);
    assert_eq!(site.read("res/text"), "ACGT\n");
    put(&site, "genome").exits(0);
}

#[test]
fn what_is_kept_no_longer_is_not_used() {
    let site = site("genome", "");
    put(&site, "genome").exits(0);
    let with = ["data", "put", "ref", "genome", "--tier", &site.options[1]];
    site.tarn(&[&with[..], &["--keep", "1s"]].concat())
        .exits(0)
        .prints("already");
    until(|| site.tarn(&["data", "ls"]).out.contains("no longer"));
    site.run().exits(7).prints("is not kept");
    site.tarn(&["data", "pin", "genome"]).exits(0);
    site.run().exits(0);
}

#[test]
fn what_is_not_there_or_not_clear_or_not_ones_own_is_named() {
    let mut cases = vec![
        (
            "nothing",
            7,
            "`nothing` is not stored anywhere that tarn knows",
        ),
        (
            "other/genome",
            7,
            "`genome` of workflow other is not stored anywhere that tarn knows",
        ),
        ("use/genome", 3, "it is this workflow's own"),
        (
            "alice/foam/genome",
            4,
            "a dataset of your own is named without the user",
        ),
        ("@climate/genome", 4, "a project's dataset"),
    ];
    cases.push(("../x", 3, "names no dataset"));
    for (of, exit, text) in cases {
        let site = site(of, "");
        put(&site, "genome").exits(0);
        for refused in [plan(&site), site.run()] {
            let refused = refused.exits(exit);
            let message = refused.err.split_whitespace().collect::<Vec<_>>().join(" ");
            assert!(message.contains(text), "{of}: {}", refused.err);
        }
        assert!(!site.path("res").exists());
    }
}

#[test]
fn one_of_several_is_named_by_its_workflow() {
    let site = site("genome", "");
    put(&site, "genome").exits(0);
    let other = "name = \"other\"\n[data.genome]\nkeep = \"forever\"\n[[step]]\nname = \"m\"\nout = [\"genome\"]\nrun = \"echo TTTT > $TARN_genome/genome\"\n";
    site.write("other.toml", other);
    let all = ["run", "other.toml", "--tier", &site.options[1]];
    site.tarn(&all).exits(0);
    site.run().exits(2).prints("both other and put-genome");
    let named = |name: &str| site.tarn(&["data", "where", name]);
    named("genome")
        .exits(2)
        .prints("both other and put-genome")
        .prints("other/genome");
    let (others, puts) = (
        named("other/genome").exits(0),
        named("put-genome/genome").exits(0),
    );
    assert_ne!(others.out, puts.out);
    named("put-genome/genmoe")
        .exits(7)
        .prints("; did you mean `genome`? Datasets here: other/genome, put-genome/genome");
    site.write("workflow.toml", &reads("other/genome", ""));
    site.run().exits(0);
    assert_eq!(site.read("res/text"), "TTTT\n");
    site.write("workflow.toml", &reads("put-genome/genome", ""));
    site.run().exits(0);
    assert_eq!(site.read("res/text"), "ACGT\n");
    site.tarn(&["data", "verify", "other/genome"]).exits(0);
    site.tarn(&["data", "get", "other/genome", "theirs"])
        .exits(0);
    assert_eq!(site.read("theirs/genome"), "TTTT\n");
    for removed in [
        ["data", "rm", "other/genome"],
        ["data", "release", "put-genome/genome"],
    ] {
        site.tarn(&removed).exits(0);
    }
    site.tarn(&["data", "where", "genome"]).exits(7);
}

#[test]
fn a_damaged_one_is_not_used() {
    let site = site("genome", "");
    put(&site, "genome").exits(0);
    let file = replica(&site, "genome");
    // Of the same size: its time differs.
    fs::write(&file, "XXXX\n").expect("its owner may");
    site.run()
        .exits(5)
        .prints("`genome` of workflow put-genome is damaged");
    assert!(file.exists() && !site.path("res").exists());
    fs::remove_dir_all(file.parent().expect("a folder")).expect("its owner may");
    site.run().exits(7).prints("somebody has removed it");
    put(&site, "genome").exits(0);
    site.run().exits(0);
}

#[test]
fn a_run_that_was_killed_goes_on_with_what_it_read() {
    let site = site("genome", WAITS);
    put(&site, "genome").exits(0);
    let mut run = site.begin(&[]);
    until(|| site.path("began").exists());
    run.kill().expect("killed");
    run.wait().expect("it has ended");
    site.write("go", "");
    site.tarn(&["resume"]).exits(0);
    assert_eq!(site.read("res/text"), "ACGT\n");
    site.tarn(&["data", "verify", "genome"])
        .exits(0)
        .prints("whole");
}

#[test]
fn a_resumed_run_refuses_what_was_replaced_meanwhile() {
    let site = site("genome", "test -e $TARN_WORKFLOW_DIR/go");
    put(&site, "genome").exits(0);
    site.run().exits(1);
    site.write("ref/genome", "TTTT\n");
    put(&site, "genome").exits(0);
    site.write("go", "");
    site.tarn(&["resume", "use-1"])
        .exits(5)
        .prints("was changed since");
    site.run().exits(0);
    assert_eq!(site.read("res/text"), "TTTT\n");
}

#[test]
fn other_nodes_are_brought_a_copy_of_their_own() {
    let text = "name = \"use\"\n[data.genome]\nof = \"genome\"\n[data.out]\ndest = \"res\"\n[[step]]\nname = \"a\"\nnodes = 2\nin = [\"genome:broadcast\"]\n\
                out = [\"out:single\"]\nrun = \"cat $TARN_genome/genome > $TARN_out/text\"\n";
    let site = Site::new(text).with(&["--nodes", "2"]);
    site.write("ref/genome", "ACGT\n");
    put(&site, "genome").exits(0);
    let run = site.run();
    if run.err.contains("namespaces") {
        return;
    }
    run.exits(0);
    assert_eq!(site.read("res/text"), "ACGT\n");
    let peers: Vec<_> = site
        .moved()
        .into_iter()
        .filter(|((kind, _), _)| kind == "peer")
        .collect();
    assert_eq!(
        peers.iter().map(|(_, bytes)| bytes).sum::<u64>(),
        5,
        "{peers:?}"
    );
    site.tarn(&["data", "rm", "genome"]).exits(0);
    site.leaves_nothing_on_its_tier();
}

#[test]
fn a_copy_that_a_failed_run_was_brought_is_no_dataset_of_its_own() {
    let text = "name = \"use\"\n[data.genome]\nof = \"genome\"\n[data.out]\ndest = \"res\"\n[[step]]\nname = \"a\"\nnodes = 2\nin = [\"genome:broadcast\"]\n\
                out = [\"out:single\"]\nrun = \"false\"\n";
    let site = Site::new(text).with(&["--nodes", "2"]);
    site.write("ref/genome", "ACGT\n");
    put(&site, "genome").exits(0);
    let run = site.run();
    if run.err.contains("namespaces") {
        return;
    }
    run.exits(1);
    let listed = site.tarn(&["data", "ls"]).exits(0).out;
    let of = |name: &str| listed.lines().filter(|l| l.starts_with(name)).count();
    assert_eq!((of("put-genome "), of("use ")), (1, 0), "{listed}");
    site.tarn(&["data", "verify", "genome"])
        .exits(0)
        .prints("whole");
    // It is clear which is meant.
    site.tarn(&["data", "rm", "genome"]).exits(0);
}

#[test]
fn a_resumed_run_refuses_what_is_kept_no_longer() {
    let site = site("other/genome", "test -e $TARN_WORKFLOW_DIR/go");
    let other = "name = \"other\"\n[data.genome]\nkeep = \"forever\"\n[data.n]\ndest = \"n\"\n[[step]]\nname = \"m\"\nout = [\"genome\"]\n\
                 run = \"echo TTTT > $TARN_genome/genome\"\n[[step]]\nname = \"c\"\nin = [\"genome\"]\nout = [\"n\"]\n\
                 run = \"cp $TARN_genome/genome $TARN_n/n\"\n";
    let run_other = |text: &str| {
        site.write("other.toml", text);
        let tier = ["--tier", &site.options[1], "--cache", "25"];
        site.tarn(&[&["run", "other.toml"][..], &tier].concat())
            .exits(0)
    };
    run_other(other);
    site.run().exits(1);
    // Its owner keeps it no longer, and has only cached it now.
    let dropped = other.replace("keep = \"forever\"\n", "");
    run_other(&dropped.replace("cp $TARN_genome", "true; cp $TARN_genome"));
    assert!(replica(&site, "genome").exists());
    site.write("go", "");
    for refused in [site.tarn(&["resume", "use-1"]), site.run()] {
        refused.exits(7).prints("is not kept");
    }
    run_other(other);
    site.tarn(&["resume", "use-1"]).exits(0);
    assert_eq!(site.read("res/text"), "TTTT\n");
}

#[test]
fn nobody_takes_what_a_run_reads_for_space() {
    let site = site("genome", WAITS);
    put(&site, "genome").exits(0);
    // As an earlier version has left it: kept, and marked as cache all the same.
    let file = replica(&site, "genome");
    let part = file.parent().expect("a folder");
    let node = part.parent().and_then(|p| p.parent()).expect("a folder");
    let key = part.file_name().expect("a key").to_string_lossy();
    let mark = node.join("cached").join(format!("5.{key}"));
    fs::create_dir_all(node.join("cached")).expect("mkdir");
    fs::write(&mark, "").expect("write");
    let run = site.begin(&[]);
    until(|| site.path("began").exists());
    assert!(!mark.exists());
    site.write("go", "");
    Ran::end(run).exits(0);
}

/// A workflow that keeps `y` of 25 MB, and makes `x` of so many KiB.
fn owner(kib: u32) -> String {
    format!(
        "name = \"owner\"\n[data.x]\n[data.y]\nkeep = \"forever\"\n[[step]]\nname = \"m\"\nout = [\"x\", \"y\"]\n\
         run = \"head -c {kib}K /dev/zero > $TARN_x/f; head -c 25000000 /dev/zero > $TARN_y/genome\"\n"
    )
}

/// Reads `y` and writes 30 MiB, if `test` is true.
fn writes_beside(test: &str) -> Site {
    Site::new(&format!(
        "name = \"use\"\n[data.genome]\nof = \"y\"\n[data.b]\nsize = \"30MiB\"\n[data.out]\ndest = \"res\"\n[[step]]\nname = \"a\"\nin = [\"genome\"]\n\
         out = [\"b\"]\nrun = \"{test} && head -c 30M /dev/zero > $TARN_b/f\"\n[[step]]\nname = \"c\"\n\
         in = [\"b\"]\nout = [\"out\"]\nrun = \"cksum < $TARN_b/f > $TARN_out/text\"\n"
    ))
}

#[test]
fn a_resumed_run_has_as_much_space_as_before() {
    let site = writes_beside("test -e $TARN_WORKFLOW_DIR/go");
    site.write("owner.toml", &owner(1));
    site.tarn(&["run", "owner.toml", "--tier", &site.options[1]])
        .exits(0);
    site.run().exits(1);
    site.tarn(&["resume", "use-1"]).exits(1);
    site.write("go", "");
    site.tarn(&["resume", "use-1"]).exits(0);
    assert!(site.read("res/text").ends_with(" 31457280\n"));
}

#[test]
fn what_its_workflow_has_cached_makes_way() {
    let site = writes_beside("true");
    site.write("owner.toml", &owner(30 * 1024));
    // Here, as users have it, data that nobody keeps stays as cache.
    let with_cache = |arguments: &[&str]| {
        let mut command = site.command(arguments);
        command.env("TARN_CACHE", "100");
        Ran::of(command.output().expect("tarn starts"))
    };
    with_cache(&["run", "owner.toml", "--tier", &site.options[1]]).exits(0);
    site.tarn(&["data", "ls"]).exits(0).prints("cache ");
    plan(&site).exits(0);
    site.run().exits(0);
    assert!(site.read("res/text").ends_with(" 31457280\n"));
    assert!(!site.tarn(&["data", "ls"]).exits(0).out.contains("cache "));
}

#[test]
fn a_resumed_run_reads_none_that_was_removed_meanwhile() {
    let more =
        "stat -c %i $TARN_genome/genome > $TARN_WORKFLOW_DIR/was; test -e $TARN_WORKFLOW_DIR/go";
    let site = Site::new(&reads("genome", more)).with(&["--nodes", "2"]);
    let text = "name = \"owner\"\n[data.genome]\nkeep = \"forever\"\ncopies = 2\n[[step]]\nname = \"m\"\nout = [\"genome\"]\n\
                run = \"echo ACGT > $TARN_genome/genome\"\n";
    site.write("owner.toml", text);
    let mut all = site.run_arguments();
    all[1] = "owner.toml";
    site.tarn(&all).exits(0);
    site.run().exits(1);
    let is_read = |file: &PathBuf| {
        let inode = fs::metadata(file).expect("there").ino();
        site.read("was") == format!("{inode}\n")
    };
    let rows = site
        .tarn(&["data", "where", "genome", "--json"])
        .exits(0)
        .out;
    let rows = rows.lines().map(|l| serde_json::from_str(l).expect("JSON"));
    let files = rows.map(|r: serde_json::Value| {
        PathBuf::from(r["path"].as_str().expect("a path")).join("genome")
    });
    let files: Vec<PathBuf> = files.collect();
    assert_eq!(files.len(), 2);
    let read = files
        .iter()
        .find(|file| is_read(file))
        .expect("one of them");
    fs::remove_dir_all(read.parent().expect("a folder")).expect("its owner may");
    site.write("go", "");
    site.tarn(&["resume", "use-1"])
        .exits(0)
        .prints("was changed or damaged and is not used");
    assert_eq!(site.read("res/text"), "ACGT\n");
    let log = site.log();
    let resumed = log.iter().position(|r| r["event"] == "resumed");
    let since = &log[resumed.expect("it was resumed")..];
    let ended: Vec<_> = since.iter().filter(|r| r["event"] == "ended").collect();
    assert_eq!(ended.len(), 1, "nothing has failed: {ended:?}");
}

#[test]
fn what_others_have_only_left_is_not_meant() {
    let site = site("genome", "");
    // It fails after it has made one.
    let left = "name = \"a\"\n[data.genome]\n[data.o]\n[[step]]\nname = \"m\"\nout = [\"genome\"]\nrun = \"echo TTTT > $TARN_genome/genome\"\n\
                [[step]]\nname = \"n\"\nin = [\"genome\"]\nout = [\"o\"]\nrun = \"false\"\n";
    site.write("a.toml", left);
    site.tarn(&["run", "a.toml", "--tier", &site.options[1]])
        .exits(1);
    site.run().exits(7).prints("is not kept");
    put(&site, "genome").exits(0);
    site.tarn(&["data", "ls"]).exits(0).prints("next run");
    plan(&site).exits(0);
    site.run().exits(0);
    assert_eq!(site.read("res/text"), "ACGT\n");
    site.tarn(&["data", "verify", "genome"])
        .exits(0)
        .prints("whole");
    site.tarn(&["data", "get", "genome", "got"]).exits(0);
    assert_eq!(site.read("got/genome"), "ACGT\n");
    // Which is to be removed must be clear.
    site.tarn(&["data", "rm", "genome"])
        .exits(2)
        .prints("both a and put-genome");
}
