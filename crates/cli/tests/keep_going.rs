//! What does not need what has failed goes on, and is not run again.

mod common;

use common::Site;

/// Three samples, of which the second fails as long as there is no `ok`; what adds them up; and a step that needs none of them, and begins
/// when the failure is in the log.
fn independent() -> Site {
    Site::new(
        "name = \"w\"\n[data.part]\n[data.sum]\ndest = \"sum\"\n[data.side]\ndest = \"side\"\n\
         [[step]]\nname = \"part\"\nforeach = [\"1\", \"2\", \"3\"]\nout = [\"part\"]\nrun = \"\"\"\n\
         echo part$TARN_ITEM >> $TARN_WORKFLOW_DIR/ran\nif [ $TARN_ITEM = 2 ]; then [ -e $TARN_WORKFLOW_DIR/ok ]; fi\necho $TARN_ITEM > $TARN_part/$TARN_ITEM\n\"\"\"\n\
         [[step]]\nname = \"sum\"\nrun = \"echo sum >> $TARN_WORKFLOW_DIR/ran; cat $TARN_part/* > $TARN_sum/all\"\nin = [\"part\"]\nout = [\"sum\"]\n\
         [[step]]\nname = \"gate\"\nrun = \"until grep -qs '\\\"how\\\":\\\"failed\\\"' $TARN_WORKFLOW_DIR/.tarn/runs/w-1/events.log; do sleep 0.1; done\"\n\
         [[step]]\nname = \"side\"\nafter = [\"gate\"]\nrun = \"echo side >> $TARN_WORKFLOW_DIR/ran; echo x > $TARN_side/x\"\nout = [\"side\"]\n",
    )
}

/// What ran, in the order of its names.
fn ran(site: &Site) -> Vec<String> {
    let mut all: Vec<String> = site.read("ran").lines().map(str::to_owned).collect();
    all.sort();
    all
}

#[test]
fn what_does_not_need_the_failed_sample_runs_and_is_delivered() {
    let site = independent();
    let failed = site.run().exits(1);
    for text in ["part[2] failed; not run because of it: sum", "w-1 failed"] {
        assert!(failed.err.contains(text), "no {text} in {}", failed.err);
    }
    let line = "not run   sum: needs part[2], which failed";
    assert!(failed.out.contains(line), "{}", failed.out);
    assert_eq!(ran(&site), ["part1", "part2", "part3", "side"]);
    assert_eq!(site.read("side/x"), "x\n");
    let status = site.tarn(&["status"]);
    for text in ["1 failed", "not run: sum: needs part[2], which failed"] {
        assert!(status.out.contains(text), "no {text} in {}", status.out);
    }
    let status = site.tarn(&["status", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status.out).expect("JSON");
    assert_eq!(status["not_run"][0]["step"], "sum");
    site.tarn(&["why", "sum"])
        .exits(0)
        .says("not run: needs part[2], which failed");
    assert!(
        site.read(".tarn/runs/w-1/report.html")
            .contains("sum did not run")
    );
    for about in ["", "part", "part[2]"] {
        let why = site.tarn(&["why", about]).exits(0).out;
        let told = why.matches("its command ended with status 1").count();
        assert_eq!(told, 1, "{why}");
        let ends = why.matches("not run because of it: sum").count();
        assert_eq!(ends, usize::from(about.is_empty()), "{why}");
    }
    site.write("ok", "");
    site.tarn(&["resume"]).exits(0);
    let all = ["part1", "part2", "part2", "part3", "side", "sum"];
    assert_eq!(ran(&site), all, "only what had failed ran again");
    assert_eq!(site.read("sum/all"), "1\n2\n3\n");
    let status = site.tarn(&["status"]);
    assert!(!status.out.contains("not run"), "{}", status.out);
    site.leaves_nothing_on_its_tier();
}

#[test]
fn with_fail_fast_nothing_new_starts_after_a_failure() {
    let site = independent().with(&["--fail-fast"]);
    let failed = site.run().exits(1);
    let text = "part[2] failed; nothing new is started";
    assert!(failed.err.contains(text), "{}", failed.err);
    assert!(!ran(&site).contains(&"side".to_owned()), "{:?}", ran(&site));
    let (needs, after) = (
        "needs part[2], which failed",
        "part[2] failed; nothing new is started",
    );
    for (step, why) in [("sum", needs), ("side", after)] {
        let line = format!("not run   {step}: {why}");
        assert!(failed.out.contains(&line), "{}", failed.out);
        site.tarn(&["status"])
            .exits(0)
            .says(&format!("not run: {step}: {why}"));
        site.tarn(&["why", step]).exits(0).says(why);
    }
    let said = "takes no --fail-fast; `tarn run --fail-fast` begins a new run";
    site.tarn(&["resume", "--fail-fast"]).exits(2).says(said);
    site.write("ok", "");
    site.tarn(&["resume"]).exits(0);
    assert_eq!(site.read("sum/all"), "1\n2\n3\n");
    assert_eq!(site.read("side/x"), "x\n");
}
