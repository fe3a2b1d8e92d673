//! Data that earlier forms of a workflow have left on a tier: data that is to be kept takes its space, everything else makes way.

mod common;
use common::Site;

/// `make` writes 4 MB of `fill` into `m`, `use` counts the replicas on the tier into `r`.
fn workflow(fill: &str, keep: &str, then: &str) -> String {
    format!(
        r#"name = "w"
[data.i]
source = "in"
[data.m]
size = "4 MB"
{keep}
[data.r]
dest = "out"
[[step]]
name = "make"
run = "cat $TARN_i/n > $TARN_m/n; head -c 4000000 {fill} > $TARN_m/f"
in = ["i"]
out = ["m"]
[[step]]
name = "use"
run = "ls $TARN_WORKFLOW_DIR/tier/w-*/node0/parts | grep -c make > $TARN_r/n; {then}"
in = ["m"]
out = ["r"]
"#
    )
}

/// A tier for one version of `m`, and not for two.
fn site(text: &str) -> Site {
    let mut site = Site::new(text);
    site.options[1] = site.options[1].replace("64MiB", "7MiB");
    site.write("in/n", "1");
    site
}

#[test]
fn what_a_failed_run_left_makes_way_for_what_a_changed_step_or_source_makes() {
    let site = site(&workflow("/dev/zero", "", "exit 1"));
    site.run().exits(1);
    // Another step makes it: nothing of the old one can be used again.
    site.write("workflow.toml", &workflow("/dev/urandom", "", "exit 1"));
    site.run().exits(1);
    // The same step, from another source.
    site.write("in/n", "2");
    site.write("workflow.toml", &workflow("/dev/urandom", "", "true"));
    site.run().exits(0);
    assert_eq!(site.read("out/n").trim(), "1");
    assert!(site.left_on_tier().is_empty(), "{:?}", site.left_on_tier());
}

#[test]
fn what_is_kept_from_an_older_form_takes_space_and_the_next_goes_to_the_slower_tier() {
    let keep = "keep = \"forever\"";
    let mut site = site(&workflow("/dev/zero", keep, "true"));
    std::fs::create_dir(site.path("slow")).expect("mkdir");
    let slow = format!("slow={}:64MiB", site.path("slow").display());
    site.options.extend(["--tier".into(), slow]);
    site.run().exits(0);
    let edited = workflow("/dev/urandom", keep, "true");
    site.write("workflow.toml", &edited);
    site.run().exits(0).prints("hold kept data");
    let place = |tier: &str| {
        let mut all = Vec::new();
        common::files(&site.path(tier), &mut all);
        all.iter().filter(|p| p.ends_with("f")).count()
    };
    assert_eq!((place("tier"), place("slow")), (1, 1));
}

#[test]
fn what_is_kept_of_the_same_step_is_counted_and_named_where_there_is_no_space_beside_it() {
    let text = workflow("/dev/zero", "keep = \"forever\"", "true");
    let site = site(&text);
    site.run().exits(0);
    // Unchanged, it is used; its space is the run's own.
    site.write(
        "workflow.toml",
        &text.replace("; true", "; echo more >> $TARN_r/n"),
    );
    site.run().exits(0);
    assert_eq!(site.read("out/n"), "1\nmore\n");
    // From another source the same step makes another, for which there is no space.
    site.write("in/n", "2");
    let refused = site.run();
    assert_ne!(refused.code, Some(0), "{}", refused.err);
    refused
        .prints("asked to be kept")
        .prints("tarn data release");
    site.tarn(&["data", "rm", "m"]).exits(0);
    site.tarn(&["resume"]).exits(0);
    assert_eq!(site.read("out/n"), "1\nmore\n");
}

/// A half copy of a rescue that failed is of no use once a resumed run has ended well.
#[test]
fn half_a_rescue_goes_when_the_run_ends_well() {
    let text = r#"name = "w"
external = "ext"
[data.d]
on_failure = "drain"
[data.r]
dest = "out"
[[step]]
name = "make"
run = "echo 1 > $TARN_d/n"
out = ["d"]
[[step]]
name = "use"
run = "test -e $TARN_WORKFLOW_DIR/go && cp $TARN_d/n $TARN_r/n"
in = ["d"]
out = ["r"]
"#;
    let site = Site::new(text);
    site.run().exits(1);
    let rescued = site.path("ext/rescued-w-1");
    assert!(rescued.join("d/n").exists());
    // As if the store had been full: half a copy under the name that it has while it grows.
    let tiers = std::fs::read_dir(site.path(".tarn/manifests")).expect("workspaces");
    let workspace = tiers.last().expect("one").expect("entry").file_name();
    let half = format!(".d.tarn-{}", workspace.to_string_lossy());
    std::fs::rename(rescued.join("d"), rescued.join(&half)).expect("rename");
    std::fs::write(rescued.join(format!("{half}.progress")), "x").expect("write");
    site.write("go", "");
    site.tarn(&["resume"]).exits(0);
    assert_eq!(site.read("out/n"), "1\n");
    assert!(!rescued.exists(), "half a rescue stays");
}

/// Data of a failed run is found on the tier that the run used, whatever tiers later runs used.
#[test]
fn orphans_are_found_on_tiers_of_older_runs() {
    let mut site = site(&workflow("/dev/zero", "", "exit 1"));
    site.run().exits(1);
    let left = site.left_on_tier();
    assert!(!left.is_empty());
    // The run can be resumed.
    let orphans = site.tarn(&["data", "rm", "--orphans"]).exits(0);
    orphans.prints("0 replicas removed").prints("`tarn resume`");
    assert_eq!(site.left_on_tier(), left);
    std::fs::create_dir(site.path("other")).expect("mkdir");
    site.options[1] = format!("other={}:7MiB", site.path("other").display());
    site.write(
        "workflow.toml",
        &workflow("/dev/zero", "", "true").replace("/tier/", "/other/"),
    );
    site.run().exits(0);
    let orphans = site.tarn(&["data", "rm", "--orphans"]).exits(0);
    orphans.prints("replicas removed");
    assert!(site.left_on_tier().is_empty(), "{:?}", site.left_on_tier());
    let ls = site.tarn(&["data", "ls"]).exits(0);
    assert!(!ls.out.contains("next run"), "{}", ls.out);
}
