//! Steps that do not need a failed one continue, and are not run again.

mod common;

use common::{Ran, Site};

/// Three samples, of which the second fails as long as there is no `ok`; a step that adds them up; and one that needs none of
/// them, and begins when the failure is in the log.
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

/// The steps that ran, sorted by their names.
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
        .prints("not run: needs part[2], which failed");
    assert!(
        site.read(".tarn/runs/w-1/report.html")
            .contains("sum did not run")
    );
    for about in ["", "part", "part[2]"] {
        let why = site.tarn(&["why", about]).exits(0).out;
        let count = why.matches("its command ended with status 1").count();
        assert_eq!(count, 1, "{why}");
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
            .prints(&format!("not run: {step}: {why}"));
        site.tarn(&["why", step]).exits(0).prints(why);
    }
    let expected = "takes no --fail-fast; `tarn run --fail-fast` begins a new run";
    site.tarn(&["resume", "--fail-fast"])
        .exits(2)
        .prints(expected);
    site.write("ok", "");
    site.tarn(&["resume"]).exits(0);
    assert_eq!(site.read("sum/all"), "1\n2\n3\n");
    assert_eq!(site.read("side/x"), "x\n");
}

/// Samples are aligned, then called, and each call reads what its own sample gave. `bad` ones cannot be aligned.
fn chains() -> Site {
    let site = Site::new(
        "name = \"w\"\n[data.reads]\nsource = \"reads\"\n[data.bam]\n[data.vcf]\ndest = \"vcf\"\non_failure = \"drain\"\n\
         [[step]]\nname = \"align\"\nforeach = \"reads/*\"\nin = [\"reads/{item}\"]\nout = [\"bam\"]\nrun = \"\"\"\n\
         echo align-$TARN_ITEM >> $TARN_WORKFLOW_DIR/ran\ngrep -q good $TARN_reads/$TARN_ITEM\n\
         tr a-z A-Z < $TARN_reads/$TARN_ITEM > $TARN_bam/$TARN_ITEM.bam\n\"\"\"\n\
         [[step]]\nname = \"call\"\nforeach = \"reads/*\"\nin = [\"bam/{item}.bam\"]\nout = [\"vcf\"]\nrun = \"\"\"\n\
         echo call-$TARN_ITEM >> $TARN_WORKFLOW_DIR/ran\nls $TARN_bam | wc -l > $TARN_vcf/$TARN_ITEM\n\
         cat $TARN_bam/$TARN_ITEM.bam >> $TARN_vcf/$TARN_ITEM\n\"\"\"\n",
    );
    site.write("reads/s1", "good one\n");
    site.write("reads/s2", "bad\n");
    site.write("reads/s3", "good three\n");
    site
}

/// Runs with one bad sample: the others are called, and had.
fn one_chain_fails(site: &Site) {
    let failed = site.run().exits(1);
    let text = "align[s2] failed; not run because of it: call";
    assert!(failed.err.contains(text), "{}", failed.err);
    let line = "not run   call: 1 of 3 instances: needs align[s2], which failed";
    assert!(failed.out.contains(line), "{}", failed.out);
    let all = ["align-s1", "align-s2", "align-s3", "call-s1", "call-s3"];
    assert_eq!(ran(site), all);
    // Each saw its own entry alone.
    assert_eq!(site.read("rescued-w-1/vcf/s1"), "1\nGOOD ONE\n");
    assert_eq!(site.read("rescued-w-1/vcf/s3"), "1\nGOOD THREE\n");
    assert!(!site.path("rescued-w-1/vcf/s2").exists());
    assert!(!site.path("vcf").exists(), "a dest is whole or not there");
    site.tarn(&["data", "get", "vcf", "got"]).exits(1);
    assert_eq!(site.read("got/s3"), "1\nGOOD THREE\n");
    site.tarn(&["why", "call[s2]"])
        .exits(0)
        .prints("align[s2], which failed");
    let status = site.tarn(&["status"]);
    let text = "not run: call: 1 of 3 instances: needs align[s2], which failed";
    assert!(status.out.contains(text), "{}", status.out);
}

#[test]
fn a_bad_sample_keeps_no_other_from_the_later_step() {
    let site = chains();
    one_chain_fails(&site);
    std::fs::remove_file(site.path("ran")).expect("it is there");
    site.write("reads/s2", "good two\n");
    let next = site.run().exits(0);
    assert_eq!(ran(&site), ["align-s2", "call-s2"], "{}", next.out);
    for (name, content) in [("s1", "ONE"), ("s2", "TWO"), ("s3", "THREE")] {
        let text = site.read(&format!("vcf/{name}"));
        assert_eq!(text, format!("1\nGOOD {content}\n"));
    }
    site.leaves_nothing_on_its_tier();
    // And when a sample comes, or changes, it alone is aligned and called.
    std::fs::remove_file(site.path("ran")).expect("it is there");
    site.write("reads/s3", "good tree\n");
    site.write("reads/s4", "good four\n");
    site.run().exits(0);
    let all = ["align-s3", "align-s4", "call-s3", "call-s4"];
    assert_eq!(ran(&site), all);
    assert_eq!(site.read("vcf/s4"), "1\nGOOD FOUR\n");
    std::fs::remove_file(site.path("ran")).expect("it is there");
    site.run().exits(0);
    assert!(!site.path("ran").exists(), "nothing has changed");
    site.leaves_nothing_on_its_tier();
}

#[test]
fn a_resume_runs_the_chain_of_the_bad_sample_alone() {
    let site = Site::new(
        "name = \"w\"\n[data.bam]\n[data.vcf]\ndest = \"vcf\"\n\
         [[step]]\nname = \"align\"\nforeach = [\"1\", \"2\", \"3\"]\nout = [\"bam\"]\nrun = \"\"\"\n\
         echo align-$TARN_ITEM >> $TARN_WORKFLOW_DIR/ran\nif [ $TARN_ITEM = 2 ]; then [ -e $TARN_WORKFLOW_DIR/ok ]; fi\n\
         echo $TARN_ITEM > $TARN_bam/$TARN_ITEM\n\"\"\"\n\
         [[step]]\nname = \"call\"\nforeach = [\"1\", \"2\", \"3\"]\nin = [\"bam/{item}\"]\nout = [\"vcf\"]\n\
         run = \"echo call-$TARN_ITEM >> $TARN_WORKFLOW_DIR/ran; cat $TARN_bam/$TARN_ITEM > $TARN_vcf/$TARN_ITEM\"\n",
    );
    site.run().exits(1);
    let all = ["align-1", "align-2", "align-3", "call-1", "call-3"];
    assert_eq!(ran(&site), all);
    std::fs::remove_file(site.path("ran")).expect("it is there");
    site.write("ok", "");
    site.tarn(&["resume"]).exits(0);
    assert_eq!(ran(&site), ["align-2", "call-2"]);
    let results = ["1", "2", "3"].map(|name| site.read(&format!("vcf/{name}")));
    assert_eq!(results, ["1\n", "2\n", "3\n"]);
    site.leaves_nothing_on_its_tier();
}

/// The slow sample is aligned as long as the fast one is not called.
#[test]
fn a_sample_is_called_while_another_is_still_aligned() {
    let site = Site::new(
        "name = \"w\"\n[data.bam]\n[data.vcf]\ndest = \"vcf\"\n\
         [[step]]\nname = \"align\"\nforeach = [\"slow\", \"fast\"]\nout = [\"bam\"]\ntime = \"5m\"\nrun = \"\"\"\n\
         if [ $TARN_ITEM = slow ]; then until [ -e $TARN_WORKFLOW_DIR/called-fast ]; do sleep 0.1; done; fi\n\
         echo $TARN_ITEM > $TARN_bam/$TARN_ITEM\n\"\"\"\n\
         [[step]]\nname = \"call\"\nforeach = [\"fast\", \"slow\"]\nin = [\"bam/{item}\"]\nout = [\"vcf\"]\n\
         run = \"touch $TARN_WORKFLOW_DIR/called-$TARN_ITEM; cat $TARN_bam/* > $TARN_vcf/$TARN_ITEM\"\n",
    )
    .with(&["--nodes", "2", "--oversubscribe"]);
    let plan = [&["plan"], &site.run_arguments()[1..]].concat();
    let plan = site.tarn(&plan).exits(0);
    let calls = plan.out.matches("call[").count();
    assert!(calls >= 2, "{}", plan.out);
    site.run().exits(0);
    assert_eq!(site.read("vcf/slow"), "slow\n");
    assert_eq!(site.read("vcf/fast"), "fast\n");
    site.leaves_nothing_on_its_tier();
}

/// The counts of `tarn status` and of the run's summary, as JSON: done, failed, not run, and steps whose instances are not known.
fn counted(site: &Site, run: &Ran) -> [[u64; 4]; 2] {
    let status = site.tarn(&["status", "--json"]).exits(0);
    let status: serde_json::Value = serde_json::from_str(&status.out).expect("JSON");
    let (counts, summary) = (&status["counts"], run.summary());
    let done = &summary["instances"];
    let number = |value: &serde_json::Value| value.as_u64().expect("a number");
    [
        [
            number(&counts["committed"]),
            number(&counts["failed"]),
            number(&counts["waiting"]),
            number(&counts["unexpanded_steps"]),
        ],
        [
            number(&done["run"]),
            number(&done["failed"]),
            number(&done["open"]),
            number(&summary["unexpanded_steps"]),
        ],
    ]
}

#[test]
fn status_names_all_that_failed_and_counts_as_the_summary_does() {
    // Two of four samples fail. `use` reads what all of them make, `each` ranges over it.
    let text = "name = \"w\"\n[data.p]\n[data.q]\n[data.r]\n\
         [[step]]\nname = \"part\"\nforeach = [\"1\", \"2\", \"3\", \"4\"]\nout = [\"p\"]\n\
         run = \"case $TARN_ITEM in 2|3) exit 7;; esac; echo 1 > $TARN_p/$TARN_ITEM\"\n\
         [[step]]\nname = \"use\"\nforeach = [\"a\", \"b\", \"c\"]\nin = [\"p\"]\nout = [\"q\"]\nrun = \"touch $TARN_q/$TARN_ITEM\"\n\
         [[step]]\nname = \"each\"\nforeach = \"p/*\"\nmax = 4\nin = [\"q\"]\nout = [\"r\"]\nrun = \"touch $TARN_r/$TARN_ITEM\"\n";
    for (more, both) in [(&[][..], true), (&["--fail-fast"], false)] {
        let site = Site::new(text).with(more).with(&["--json"]);
        let run = site.run().exits(1);
        let [status, summary] = counted(&site, &run);
        assert_eq!(status, summary, "{more:?}");
        let now = site.tarn(&["status", "--json"]).exits(0).summary();
        assert_eq!(now["counts"]["staging"], 0);
        assert_eq!((status[3], status[0] + status[1] + status[2]), (1, 7));
        if both {
            assert_eq!(status, [2, 2, 3, 1]);
            let status = site.tarn(&["status"]).exits(0);
            for failed in ["part[2]", "part[3]"] {
                let line = format!("failed: {failed}: status 7; log ");
                assert!(status.out.contains(&line), "{}", status.out);
            }
            let count = status.out.matches("its command ended with").count();
            assert_eq!(count, 0, "{}", status.out);
            let head = "2 done, 3 not run, 2 failed; and 1 step with an unknown number of instances (`each`)\n";
            assert!(status.out.contains(head), "{}", status.out);
        }
    }
    let site = Site::new(text);
    let expected =
        "2 run, 2 failed, 3 not run; and 1 step with an unknown number of instances (`each`)";
    site.run().exits(1).prints(expected);
}
