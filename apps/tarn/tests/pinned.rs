//! Data that a user has pinned stays, whatever runs of its workflow do afterwards.

mod common;

use common::Site;

/// A chain whose last step fails as long as there is no `go`.
fn chain(of_x: &str) -> Site {
    Site::new(&format!(
        "name = \"w\"\n[data.x]\n{of_x}\n[data.y]\n[data.o]\ndest = \"out\"\n\
         [[step]]\nname = \"make\"\nout = [\"x\"]\nrun = \"head -c 20M /dev/zero > $TARN_x/f\"\n\
         [[step]]\nname = \"use\"\nin = [\"x\"]\nout = [\"y\"]\nrun = \"test -e $TARN_WORKFLOW_DIR/go; cksum < $TARN_x/f > $TARN_y/f\"\n\
         [[step]]\nname = \"end\"\nin = [\"y\"]\nout = [\"o\"]\nrun = \"cp $TARN_y/f $TARN_o/f\"\n"
    ))
}

fn stays(site: &Site) {
    let listed = site.tarn(&["data", "ls"]).exits(0).out;
    let of_x = |line: &&str| line.split_whitespace().nth(1) == Some("x");
    let of_x: Vec<_> = listed.lines().filter(of_x).collect();
    assert!(
        !of_x.is_empty() && of_x.iter().all(|l| l.contains("forever")),
        "{listed}"
    );
    site.tarn(&["data", "verify", "x"]).exits(0).prints("whole");
    site.tarn(&["data", "get", "x", "got"]).exits(0);
    std::fs::remove_dir_all(site.path("got")).expect("removed");
}

/// After it is released, nothing stays.
fn goes(site: &Site) {
    site.tarn(&["data", "release", "x"]).exits(0);
    site.leaves_nothing_on_its_tier();
    // And nobody keeps what is made of it from now on.
    site.write(
        "workflow.toml",
        &site.read("workflow.toml").replace("20M", "21M"),
    );
    site.run().exits(0);
    site.leaves_nothing_on_its_tier();
}

#[test]
fn a_run_of_the_same_workflow_leaves_what_is_pinned() {
    let site = chain("");
    site.run().exits(1);
    site.tarn(&["data", "pin", "x"]).exits(0);
    site.write("go", "");
    let mut plan = site.run_arguments();
    plan[0] = "plan";
    site.tarn(&plan).exits(0);
    site.run().exits(0);
    stays(&site);
    site.run().exits(0).prints("3 unchanged");
    stays(&site);
    goes(&site);
}

#[test]
fn a_resumed_run_leaves_what_was_pinned_meanwhile() {
    let site = chain("");
    site.run().exits(1);
    site.tarn(&["data", "pin", "x"]).exits(0);
    site.write("go", "");
    site.tarn(&["resume"]).exits(0);
    stays(&site);
    site.run().exits(0);
    stays(&site);
    goes(&site);
}

#[test]
fn what_is_pinned_stays_where_its_workflow_keeps_it_no_longer() {
    let site = chain("keep = \"7d\"");
    site.write("go", "");
    site.run().exits(0);
    site.tarn(&["data", "pin", "x"]).exits(0);
    let text = site.read("workflow.toml").replace("keep = \"7d\"", "");
    // A change, so that it is read again.
    let text = text.replace("cksum <", "true; cksum <");
    site.write("workflow.toml", &text);
    site.run().exits(0);
    stays(&site);
    goes(&site);
}

#[test]
fn what_is_pinned_makes_way_to_a_slower_tier_and_is_pinned_there() {
    let site = chain("");
    let slow = format!("slow={}:64MiB", site.path("slow").display());
    std::fs::create_dir(site.path("slow")).expect("mkdir");
    let site = site.with(&["--tier", &slow]);
    site.run().exits(1);
    site.tarn(&["data", "pin", "x"]).exits(0);
    site.write("go", "");
    // `o` needs more than is left beside `x`.
    let text = site
        .read("workflow.toml")
        .replace("[data.o]", "[data.o]\nsize = \"60MiB\"");
    site.write("workflow.toml", &text);
    site.run().exits(0);
    for _ in 0..2 {
        stays(&site);
        site.run().exits(0);
    }
    stays(&site);
    site.tarn(&["data", "release", "x"]).exits(0);
    site.leaves_nothing_on_its_tier();
}

#[test]
fn what_is_pinned_survives_that_it_is_to_be_made_again() {
    let site = Site::new(
        "name = \"w\"\n[data.x]\n[data.y]\n[data.o]\ndest = \"out\"\n\
         [[step]]\nname = \"make\"\nout = [\"x\", \"y\"]\nrun = \"test ! -e $TARN_WORKFLOW_DIR/no; echo 1 > $TARN_x/f; echo 2 > $TARN_y/f\"\n\
         [[step]]\nname = \"use\"\nin = [\"x\", \"y\"]\nout = [\"o\"]\nrun = \"test -e $TARN_WORKFLOW_DIR/go; cat $TARN_x/f $TARN_y/f > $TARN_o/f\"\n",
    );
    site.run().exits(1);
    site.tarn(&["data", "pin", "x"]).exits(0);
    let place = |name: &str| {
        let line = site.tarn(&["data", "where", name, "--json"]).exits(0).out;
        let row: serde_json::Value = serde_json::from_str(line.trim()).expect("one line");
        std::path::PathBuf::from(row["path"].as_str().expect("a path"))
    };
    let x = place("x");
    std::fs::remove_dir_all(place("y")).expect("its owner may");
    // Both are to be made again, and are not.
    site.write("no", "");
    site.write("go", "");
    site.tarn(&["resume"])
        .exits(1)
        .prints("stays, as it is pinned");
    assert_eq!(std::fs::read(x.join("f")).expect("it stays"), b"1\n");
    site.tarn(&["data", "ls"]).exits(0).prints("forever");
    std::fs::remove_file(site.path("no")).expect("there");
    site.tarn(&["resume"]).exits(0);
    assert_eq!(site.read("out/f"), "1\n2\n");
    site.tarn(&["data", "get", "x", "got"]).exits(0);
    assert_eq!(site.read("got/f"), "1\n");
    site.tarn(&["data", "release", "x"]).exits(0);
    site.leaves_nothing_on_its_tier();
}

#[test]
fn a_resumed_run_has_the_space_of_what_was_released_meanwhile() {
    let keeps = "name = \"w\"\n[data.k]\nkeep = \"forever\"\n[[step]]\nname = \"k\"\nout = [\"k\"]\nrun = \"head -c 40M /dev/zero > $TARN_k/f\"\n";
    let large = "name = \"w\"\n[data.b]\nsize = \"50MiB\"\n[data.o]\ndest = \"out\"\n\
         [[step]]\nname = \"b\"\nout = [\"b\"]\nrun = \"head -c 50M /dev/zero > $TARN_b/f\"\n\
         [[step]]\nname = \"o\"\nin = [\"b\"]\nout = [\"o\"]\nrun = \"cksum < $TARN_b/f > $TARN_o/f\"\n";
    let site = Site::new(keeps);
    site.run().exits(0);
    site.write("workflow.toml", large);
    site.run().exits(4).prints("hold kept data");
    // As long as it is kept, there is no more space than before.
    site.tarn(&["resume"]).exits(4);
    site.tarn(&["data", "release", "k"]).exits(0);
    site.tarn(&["resume"]).exits(0);
    assert!(site.read("out/f").ends_with(" 52428800\n"));
    site.leaves_nothing_on_its_tier();
}

/// `x` is changed in place after `y` and `big` are made; the first version can be pinned where `y` has failed.
fn changed_in_place(before: &str) -> Site {
    let site = Site::new(&format!(
        "name = \"w\"\n{before}\n[data.x]\n[data.y]\n[data.big]\nsize = \"50MiB\"\n[data.o]\ndest = \"out\"\n\
         [[step]]\nname = \"make\"\nout = [\"x\"]\nrun = \"head -c 20M /dev/urandom > $TARN_x/f\"\n\
         [[step]]\nname = \"gate\"\nin = [\"x\"]\nout = [\"y\"]\nrun = \"test -e $TARN_WORKFLOW_DIR/go; cksum < $TARN_x/f > $TARN_y/f\"\n\
         [[step]]\nname = \"big\"\nin = [\"y\"]\nout = [\"big\"]\nrun = \"head -c 50M /dev/zero > $TARN_big/f\"\n\
         [[step]]\nname = \"change\"\nin = [\"big\"]\ninout = [\"x\"]\nrun = \"echo more >> $TARN_x/g\"\n\
         [[step]]\nname = \"end\"\nin = [\"x\"]\nout = [\"o\"]\nrun = \"cksum < $TARN_x/f > $TARN_o/f\"\n"
    ));
    let slow = format!("slow={}:128MiB", site.path("slow").display());
    std::fs::create_dir(site.path("slow")).expect("mkdir");
    site.with(&["--tier", &slow])
}

/// The replicas of `x` of this version that are kept for good: how many.
fn pinned_of_version(site: &Site, version: u64) -> usize {
    let listed = site.tarn(&["data", "ls", "--json"]).exits(0).out;
    let rows = listed
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("a line is an object"));
    let meant =
        |r: &serde_json::Value| r["dataset"] == "x" && r["version"] == version && r["kept"] == true;
    let meant = rows.filter(|r| meant(r) && r["kept_until"].is_null());
    meant.count()
}

#[test]
fn an_older_version_that_is_pinned_stays_wherever_the_run_moves_it() {
    for (before, option) in [
        ("", ["--cache", "0"]),
        ("", ["--cache", "50"]),
        ("external = \"ext\"", ["--policy", "stage-through"]),
    ] {
        let site = changed_in_place(before).with(&option);
        if !before.is_empty() {
            std::fs::create_dir(site.path("ext")).expect("mkdir");
        }
        site.run().exits(1);
        site.tarn(&["data", "pin", "x"]).exits(0);
        site.write("go", "");
        for _ in 0..2 {
            site.run().exits(0);
            assert_eq!(pinned_of_version(&site, 1), 1, "{option:?}");
        }
        // It is at its listed place, and unchanged.
        let listed = site.tarn(&["data", "where", "x", "--json"]).exits(0).out;
        let firsts: Vec<serde_json::Value> = listed
            .lines()
            .map(|line| serde_json::from_str(line).expect("a line is an object"))
            .filter(|r: &serde_json::Value| r["version"] == 1)
            .collect();
        let first = firsts.first().and_then(|r| r["path"].as_str());
        let first = std::path::PathBuf::from(first.expect("its first version is named"));
        assert!(first.join("f").exists() && !first.join("g").exists());
        site.tarn(&["data", "verify", "x"]).exits(0);
        // All of it goes at once.
        site.tarn(&["data", "release", "x"]).exits(0);
        assert!(!first.exists(), "{option:?}");
        assert_eq!(pinned_of_version(&site, 1), 0, "{option:?}");
        assert_eq!(pinned_of_version(&site, 2), 0, "{option:?}");
    }
}

#[test]
fn a_drain_leaves_no_older_version_that_would_be_taken_for_the_dataset() {
    let site = changed_in_place("");
    site.run().exits(1);
    site.tarn(&["data", "pin", "x"]).exits(0);
    site.write("go", "");
    site.run().exits(0);
    assert_eq!(pinned_of_version(&site, 1), 1);
    site.tarn(&["data", "drain", "x", "drained"]).exits(0);
    assert!(site.path("drained/g").exists());
    // Never the first version under the same name.
    site.tarn(&["data", "get", "x", "got"]).exits(7);
    assert_eq!(pinned_of_version(&site, 1), 0);
}
