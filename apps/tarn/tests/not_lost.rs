//! Data that was put, kept or delivered is there afterwards, whatever is requested next.

mod common;

use common::Site;
use std::fs;

/// A site with a folder that fits on its tier once only.
fn folder() -> Site {
    let site = Site::new("");
    site.write("in/f", &"forty megabytes\n".repeat(40 * 65536));
    site
}

fn put(site: &Site) -> common::Ran {
    site.tarn(&["data", "put", "in", "one", "--tier", &site.options[1]])
}

#[test]
fn what_is_put_twice_is_there_and_takes_its_space_once() {
    let site = folder();
    put(&site).exits(0);
    for _ in 0..2 {
        put(&site).exits(0).prints(", unchanged");
    }
    site.tarn(&["data", "get", "one", "out"]).exits(0);
    assert!(site.read("out/f") == site.read("in/f"));
    site.tarn(&["data", "release", "one"]).exits(0);
    site.leaves_nothing_on_its_tier();
}

#[test]
fn what_is_put_again_is_what_the_folder_holds_now() {
    let site = Site::new("");
    site.write("in/f", "one\n");
    put(&site).exits(0);
    // Of the same size and time: only its content differs.
    let time = fs::metadata(site.path("in/f")).and_then(|m| m.modified());
    site.write("in/f", "two\n");
    let file = fs::File::options().write(true).open(site.path("in/f"));
    file.and_then(|f| f.set_modified(time.expect("a time")))
        .expect("as it was");
    put(&site).exits(0);
    site.tarn(&["data", "get", "one", "new"]).exits(0);
    assert_eq!(site.read("new/f"), "two\n");
    // And back.
    site.write("in/f", "one\n");
    put(&site).exits(0);
    site.tarn(&["data", "get", "one", "old"]).exits(0);
    assert_eq!(site.read("old/f"), "one\n");
    site.tarn(&["data", "rm", "one"]).exits(0);
    site.leaves_nothing_on_its_tier();
    put(&site).exits(0);
    site.tarn(&["data", "get", "one", "again"]).exits(0);
}

#[test]
fn what_was_damaged_on_the_tier_is_put_again() {
    let site = Site::new("");
    site.write("in/f", "years of work\n");
    put(&site).exits(0);
    let place = site.tarn(&["data", "where", "one", "--json"]).exits(0);
    let place: serde_json::Value = serde_json::from_str(place.out.trim()).expect("JSON");
    let file = std::path::Path::new(place["path"].as_str().expect("a path")).join("f");
    fs::remove_file(&file).expect("the owner may");
    put(&site).exits(0);
    site.tarn(&["data", "get", "one", "out"]).exits(0);
    assert_eq!(site.read("out/f"), "years of work\n");
}

#[test]
fn a_put_that_is_killed_leaves_what_was_put_before() {
    let site = Site::new("");
    site.write("in/f", "first\n");
    put(&site).exits(0);
    site.write("in/f", "second\n");
    let mut killed = site.command(&["data", "put", "in", "one", "--tier", &site.options[1]]);
    killed.env("TARN_CRASH_AT", "5");
    let killed = common::Ran::of(killed.output().expect("tarn starts"));
    assert_eq!(killed.code, None, "{}", killed.err);
    put(&site).exits(0);
    site.tarn(&["data", "get", "one", "out"]).exits(0);
    assert_eq!(site.read("out/f"), "second\n");
}

#[test]
fn how_long_it_is_kept_is_as_was_said_last() {
    let site = Site::new("");
    site.write("in/f", "first\n");
    let put = |keep: &str| {
        let all = ["data", "put", "in", "one", "--tier", &site.options[1]];
        site.tarn(&[&all[..], &["--keep", keep]].concat())
    };
    put("until-consumed")
        .exits(2)
        .prints("as soon as it is there");
    put("7d").exits(0);
    put("forever").exits(0).prints("already");
    site.tarn(&["data", "ls"]).exits(0).prints("forever");
    put("2h").exits(0).prints("already");
    site.tarn(&["data", "get", "one", "out"]).exits(0);
}

/// A workflow whose result is what its input holds.
fn copies() -> Site {
    let site = Site::new(
        "name = \"w\"\n[data.i]\nsource = \"in\"\n[data.o]\ndest = \"out\"\n[[step]]\nname = \"copy\"\nin = [\"i\"]\nout = [\"o\"]\nrun = \"cp $TARN_i/* $TARN_o/\"\n",
    );
    site.write("in/f", "one\n");
    site
}

#[test]
fn what_is_listed_of_a_dest_is_what_lies_there_now() {
    let site = copies();
    for text in ["1\n", "22\n", "333\n"] {
        site.write("in/f", text);
        site.run().exits(0);
        let listed = site.tarn(&["data", "ls", "--json"]).exits(0).out;
        let rows = listed
            .lines()
            .map(|l| serde_json::from_str(l).expect("JSON"));
        let rows: Vec<serde_json::Value> = rows
            .filter(|r: &serde_json::Value| r["dataset"] == "o")
            .collect();
        assert_eq!(rows.len(), 1, "{listed}");
        assert_eq!(
            (&rows[0]["parts"], &rows[0]["bytes"]),
            (&1.into(), &text.len().into()),
            "{listed}"
        );
    }
}

/// The record of the only `dest`.
fn record(site: &Site) -> std::path::PathBuf {
    let only = |folder: &std::path::Path| {
        let mut all = fs::read_dir(folder).expect("it is there");
        let first = all.next().expect("something is there").expect("read");
        assert!(
            all.next().is_none(),
            "more than one in {}",
            folder.display()
        );
        first.path()
    };
    only(&only(&site.path(".tarn/dests")))
}

#[test]
fn a_result_whose_record_was_not_written_any_more_is_known_as_tarns_own() {
    for is_first in [true, false] {
        let site = copies();
        let mut before = None;
        if !is_first {
            site.run().exits(0);
            before = Some(fs::read(record(&site)).expect("a record"));
            site.write("in/f", "two\n");
        }
        site.run().exits(0);
        // As a kill, or a cut of the power, leaves it between the exchange and the record of it.
        let known = record(&site);
        fs::rename(&known, known.with_extension("intent")).expect("rename");
        if let Some(before) = before {
            fs::write(&known, before).expect("write");
        }
        // The next delivery there is something else.
        for text in ["three\n", "four\n"] {
            site.write("in/f", text);
            site.run().exits(0);
            assert_eq!(site.read("out/f"), text);
        }
        // And what nobody of tarn's has put there is safe all the same.
        site.write("out/mine", "by hand\n");
        site.write("in/f", "five\n");
        site.run().exits(3).prints("mine");
        assert_eq!(site.read("out/mine"), "by hand\n");
    }
}

/// A dataset that is kept, and the text of further steps.
fn keeps(more: &str) -> String {
    format!(
        "name = \"w\"\n[data.k]\nkeep = \"forever\"\n[[step]]\nname = \"make\"\nout = [\"k\"]\nrun = \"echo right > $TARN_k/f\"\n{more}"
    )
}

/// The only file of the only replica of `k`.
fn replica(site: &Site) -> std::path::PathBuf {
    let place = site.tarn(&["data", "where", "k", "--json"]).exits(0);
    let place: serde_json::Value = serde_json::from_str(place.out.trim()).expect("one line");
    std::path::Path::new(place["path"].as_str().expect("a path")).join("f")
}

#[test]
fn a_kept_replica_that_was_changed_is_read_again_before_it_is_used() {
    let site = Site::new(&keeps(""));
    site.run().exits(0);
    site.tarn(&["data", "verify", "k"]).exits(0).prints("whole");
    let file = replica(&site);
    // Of the same size.
    fs::write(&file, "wrong\n").expect("its owner may");
    site.tarn(&["data", "verify", "k"])
        .exits(1)
        .prints("damaged")
        .prints("tarn run");
    let json = site.tarn(&["data", "verify", "k", "--json"]).exits(1);
    let line: serde_json::Value =
        serde_json::from_str(json.out.lines().next().expect("a line")).expect("JSON");
    assert_eq!(line["state"], "damaged");
    site.tarn(&["data", "get", "k", "got"]).exits(1);
    let reads = keeps(
        "[data.r]\ndest = \"out\"\n[[step]]\nname = \"read\"\nin = [\"k\"]\nout = [\"r\"]\nrun = \"cat $TARN_k/f > $TARN_r/f\"\n",
    );
    site.write("workflow.toml", &reads);
    site.run().exits(0).prints("changed or damaged");
    assert_eq!(site.read("out/f"), "right\n");
    // A file that was only touched counts as unchanged.
    site.tarn(&["data", "get", "k", "got"]).exits(0);
    assert_eq!(site.read("got/f"), "right\n");
}

#[test]
fn a_kept_replica_of_which_a_file_was_replaced_is_not_delivered() {
    let reads = keeps(
        "[data.r]\ndest = \"out\"\n[[step]]\nname = \"read\"\nin = [\"k\"]\nout = [\"r\"]\nrun = \"cat $TARN_k/f > $TARN_r/f\"\n",
    );
    // Of the same size, time and mode: another file, or another content.
    for is_renamed in [true, false] {
        let site = Site::new(&keeps(""));
        site.run().exits(0);
        let file = replica(&site);
        let before = fs::metadata(&file).expect("there");
        let other = site.path("tier/other");
        let written = match is_renamed {
            true => &other,
            false => &file,
        };
        fs::write(written, "wrong\n").expect("write");
        fs::set_permissions(written, before.permissions()).expect("chmod");
        let opened = fs::File::options().write(true).open(written);
        opened
            .and_then(|f| f.set_modified(before.modified()?))
            .expect("touched");
        if is_renamed {
            fs::rename(&other, &file).expect("its owner may");
        }
        site.write("workflow.toml", &reads);
        site.run().exits(0).prints("changed or damaged");
        assert_eq!(site.read("out/f"), "right\n");
    }
}

/// A step that ends while its input is on its way out takes its links away from it: that is no change of the input.
#[test]
fn what_a_step_has_read_is_delivered_while_it_ends() {
    let site = Site::new(
        "name = \"w\"\n[data.parts]\ndest = \"parts\"\n[data.sum]\ndest = \"sum\"\n[[step]]\nname = \"make\"\nforeach = [\"a\", \"b\"]\n\
         out = [\"parts\"]\nrun = \"head -c 1500000 /dev/urandom > $TARN_parts/$TARN_ITEM\"\n[[step]]\nname = \"sum\"\nin = [\"parts\"]\nout = [\"sum\"]\n\
         run = \"cat $TARN_parts/* | wc -c > $TARN_sum/bytes\"\n",
    );
    let mut slowly = site.run_arguments();
    slowly.extend(["--external-rate", "2MB/s"]);
    let ran = site.tarn(&slowly).exits(0).prints("3 run");
    assert!(!ran.err.contains("failed"), "{}", ran.err);
    assert_eq!(site.read("sum/bytes"), "3000000\n");
}

#[test]
fn a_kept_replica_that_was_only_touched_is_used() {
    let site = Site::new(&keeps(""));
    site.run().exits(0);
    let file = fs::File::options().write(true).open(replica(&site));
    file.and_then(|f| f.set_modified(std::time::SystemTime::UNIX_EPOCH))
        .expect("touched");
    site.tarn(&["data", "verify", "k"]).exits(0).prints("whole");
    let again = site.run().exits(0);
    assert!(!again.err.contains("damaged"), "{}", again.err);
    site.tarn(&["data", "get", "k", "got"]).exits(0);
}

#[test]
fn a_lost_manifest_of_what_is_kept_is_made_again_or_named() {
    let site = Site::new(&keeps(""));
    site.run().exits(0);
    let folder = fs::read_dir(site.path(".tarn/manifests")).expect("there");
    let folder = folder.map(|e| e.expect("an entry").path()).next();
    let manifests = fs::read_dir(folder.expect("a workspace")).expect("there");
    let manifests: Vec<_> = manifests.map(|e| e.expect("an entry").path()).collect();
    let tear = || {
        for manifest in &manifests {
            let whole = fs::read(manifest).expect("read");
            fs::write(manifest, &whole[..whole.len() / 2]).expect("write");
        }
    };
    tear();
    site.tarn(&["data", "get", "k", "got"]).exits(0);
    assert_eq!(site.read("got/f"), "right\n");
    fs::write(replica(&site), "wrong\n").expect("its owner may");
    let refused = site.tarn(&["data", "get", "k", "other"]).exits(5);
    for text in ["manifest", "`k`", "tarn data rm k", "tarn run"] {
        assert!(refused.err.contains(text), "no {text} in {}", refused.err);
    }
    assert!(
        manifests
            .iter()
            .any(|m| refused.err.contains(&m.display().to_string()))
    );
}

#[test]
fn a_drain_that_was_interrupted_is_ended_by_the_next_call() {
    let site = Site::new(&keeps(""));
    site.run().exits(0);
    // All of it was copied, and nothing freed.
    site.tarn(&["data", "get", "k", "drained"]).exits(0);
    site.write("half/f", "righ");
    site.tarn(&["data", "drain", "k", "half"])
        .exits(2)
        .prints("exists already");
    site.tarn(&["data", "drain", "k", "drained"])
        .exits(0)
        .prints("has all of it already")
        .prints("freed");
    assert_eq!(site.read("drained/f"), "right\n");
    site.leaves_nothing_on_its_tier();
}

/// Three samples, of which one fails as long as there is no `go`.
fn samples(more: &str) -> Site {
    Site::new(&format!(
        "name = \"w\"\n[data.per]\n{more}\n[[step]]\nname = \"one\"\nforeach = [\"1\", \"2\", \"3\"]\nout = [\"per\"]\nrun = \"\"\"\n\
         if [ $TARN_ITEM = 3 ] && ! [ -e $TARN_WORKFLOW_DIR/go ]; then sleep 1; exit 3; fi\necho $TARN_ITEM > $TARN_per/$TARN_ITEM\n\"\"\"\n"
    ))
}

#[test]
fn what_the_other_samples_have_made_can_be_had_when_one_fails() {
    let site = samples("dest = \"out\"");
    site.run().exits(1);
    assert!(!site.path("out").exists());
    site.tarn(&["data", "get", "per", "got"])
        .exits(1)
        .prints(
            "`per` is incomplete: 2 of 3 instances of `one` have finished in w-1; their output was copied. `tarn resume` runs the other",
        );
    assert_eq!(site.read("got/1") + &site.read("got/2"), "1\n2\n");
    assert!(!site.path("got/3").exists());
    // A run that is not the newest cannot be resumed.
    site.run().exits(1);
    site.tarn(&["data", "get", "per", "older", "--run", "w-1"])
        .exits(1)
        .prints("`tarn run` runs the other instances");
    site.write("go", "");
    site.tarn(&["resume"]).exits(0);
    assert_eq!(site.read("out/3"), "3\n");
}

#[test]
fn what_the_other_samples_have_made_is_rescued_when_one_fails() {
    let site = samples("dest = \"out\"\non_failure = \"drain\"");
    let failed = site.run().exits(1);
    failed.prints("copied the output of 2 of 3 instances of `per` to");
    assert!(!site.path("out").exists());
    let rescued = |name: &str| site.path("rescued-w-1/per").join(name);
    assert_eq!(fs::read(rescued("1")).expect("rescued"), b"1\n");
    assert_eq!(fs::read(rescued("2")).expect("rescued"), b"2\n");
    assert!(!rescued("3").exists());
    // It is a copy: the run resumes from the data on the nodes.
    site.write("go", "");
    site.tarn(&["resume"]).exits(0);
    for item in ["1", "2", "3"] {
        assert_eq!(site.read(&format!("out/{item}")), format!("{item}\n"));
    }
    site.leaves_nothing_on_its_tier();
}

/// Samples of which the later step reads `s1` before `s2` fails. It cannot read `s3`.
fn consumed(more: &str) -> Site {
    let site = Site::new(&format!(
        "name = \"w\"\nexternal = \"external\"\n[data.bam]\n{more}\n[data.vcf]\n\
         [[step]]\nname = \"align\"\nforeach = [\"s1\", \"s2\", \"s3\"]\nout = [\"bam\"]\nrun = \"\"\"\n\
         if [ $TARN_ITEM = s2 ]; then\n\
         until grep -qsF '\"how\":\"committed\",\"outputs\":[{{\"data\":1,' $TARN_WORKFLOW_DIR/.tarn/runs/w-1/events.log; do sleep 0.1; done\n\
         exit 3\nfi\necho $TARN_ITEM > $TARN_bam/$TARN_ITEM\n\"\"\"\n\
         [[step]]\nname = \"call\"\nforeach = [\"s1\", \"s2\", \"s3\"]\nin = [\"bam/{{item}}\"]\nout = [\"vcf\"]\nrun = \"\"\"\n\
         [ $TARN_ITEM = s1 ]\ncp $TARN_bam/$TARN_ITEM $TARN_vcf/$TARN_ITEM\n\"\"\"\n"
    ));
    site.with(&["--nodes", "2", "--oversubscribe", "--cache", "0"])
}

#[test]
fn what_a_later_step_has_read_is_rescued_too() {
    let site = consumed("on_failure = \"drain\"");
    let expected = "copied the output of 2 of 3 instances of `bam` to";
    site.run().exits(1).prints(expected);
    for item in ["s1", "s3"] {
        let rescued = site.read(&format!("external/rescued-w-1/bam/{item}"));
        assert_eq!(rescued, format!("{item}\n"));
    }
    let had = site.tarn(&["data", "get", "bam", "got"]).exits(1);
    assert!(!had.err.contains("gone"), "{}", had.err);
    assert_eq!(site.read("got/s1") + &site.read("got/s3"), "s1\ns3\n");
    // One of them is removed behind tarn's back: the next rescue counts what it has copied, and names the rest.
    fs::remove_dir_all(site.path("external/rescued-w-1")).expect("removed");
    let left = site.left_on_tier();
    let s1 = left
        .iter()
        .find(|file| file.ends_with("s1"))
        .expect("there");
    fs::remove_dir_all(s1.parent().expect("a replica")).expect("removed");
    let expected = "copied the output of 1 of 3 instances of `bam` to";
    let gone = "the output of align[s1] is gone";
    site.tarn(&["resume"])
        .exits(1)
        .prints(expected)
        .prints(gone);
    assert!(!site.path("external/rescued-w-1/bam/s1").exists());
}

#[test]
fn what_a_later_step_has_read_and_is_gone_is_named() {
    let site = consumed("");
    site.run().exits(1);
    site.tarn(&["data", "get", "bam", "got"])
        .exits(1)
        .prints("2 of 3 instances of `align` have finished in w-1; the output of align[s1] is gone (to prevent this: `keep")
        .prints("; what is there was copied. `tarn resume` runs");
    assert_eq!(site.read("got/s3"), "s3\n");
    assert!(!site.path("got/s1").exists());
}

#[test]
fn a_newer_version_that_is_not_rescued_is_named_though_an_older_one_is() {
    // `slow` still reads the first version when `bad` fails; the second has been consumed by then.
    let site = Site::new(
        "name = \"w\"\nexternal = \"ext\"\n[data.x]\non_failure = \"drain\"\n[data.s]\n[data.y]\n[data.z]\ndest = \"out\"\n\
         [[step]]\nname = \"make\"\nout = [\"x\"]\nrun = \"echo 1 > $TARN_x/f\"\n\
         [[step]]\nname = \"slow\"\nin = [\"x\"]\nout = [\"s\"]\nrun = \"until grep -qs '\\\"how\\\":\\\"failed\\\"' $TARN_WORKFLOW_DIR/.tarn/runs/w-1/events.log; do sleep 0.05; done; cp $TARN_x/f $TARN_s/f\"\n\
         [[step]]\nname = \"change\"\ninout = [\"x\"]\nrun = \"echo 2 > $TARN_x/f\"\n\
         [[step]]\nname = \"use\"\nin = [\"x\"]\nout = [\"y\"]\nrun = \"cp $TARN_x/f $TARN_y/f\"\n\
         [[step]]\nname = \"bad\"\nin = [\"y\"]\nout = [\"z\"]\nretries = 0\nrun = \"exit 1\"\n",
    );
    fs::create_dir(site.path("ext")).expect("mkdir");
    let site = site.with(&["--cache", "0"]);
    let ran = site.run().exits(1);
    ran.prints("`x` was not rescued");
    site.tarn(&["status"])
        .exits(0)
        .prints("`x` was not rescued");
    let expected = "version 1 was copied, and version 2, which is newer, was not";
    site.tarn(&["why", "x"]).exits(0).prints(expected);
    assert_eq!(site.read("ext/rescued-w-1/x/f"), "1\n");
}

#[test]
fn a_resumption_does_not_repeat_what_an_earlier_one_has_copied() {
    let site = consumed("on_failure = \"drain\"");
    site.run().exits(1).prints("copied the output of 2 of 3");
    let resumed = site.tarn(&["resume"]).exits(1);
    assert!(!resumed.err.contains("copied"), "{}", resumed.err);
}
