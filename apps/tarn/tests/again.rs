//! Steps that run again and steps that do not, the messages about them, and whether `tarn plan` says the same before.

mod common;
use common::Site;
use common::workflows::{makes, reads};

/// The instances that ran, as steps write it themselves beside their outputs.
fn ran(site: &Site) -> String {
    let mut lines: Vec<String> = match site.path("ran").exists() {
        true => site.read("ran").lines().map(str::to_owned).collect(),
        false => Vec::new(),
    };
    lines.sort();
    site.write("ran", "");
    lines.join(" ")
}

#[test]
fn a_plan_after_an_unchanged_run_plans_nothing() {
    let site = Site::new(&reads("a", "cat $TARN_i/f > $TARN_o/x", "time = \"2h\""));
    site.write("in/f", "1");
    site.run().exits(0);
    let planned = site.plan().exits(0);
    assert!(
        planned.out.contains("0 run, 1 unchanged"),
        "{}",
        planned.out
    );
    let run = site.run().exits(0);
    assert!(!run.err.contains("done in"), "{}", run.err);
    // A time that is another one decides nothing.
    let text = site.read("workflow.toml").replace("2h", "3h");
    site.write("workflow.toml", &text);
    let planned = site.plan().exits(0);
    assert!(
        planned.out.contains("0 run, 1 unchanged"),
        "{}",
        planned.out
    );
}

#[test]
fn a_plan_runs_again_only_the_samples_that_have_changed() {
    let site = Site::new(
        "name = \"w\"\n[data.raw]\nsource = \"in\"\n[data.mid]\n[data.o]\ndest = \"out\"\n[[step]]\nname = \"one\"\nforeach = \"raw/*\"\n\
         in = [\"raw/{item}\"]\nout = [\"mid\"]\nrun = \"cp $TARN_raw/$TARN_ITEM $TARN_mid/\"\n[[step]]\nname = \"two\"\n\
         foreach = \"mid/*\"\nmax = 9\nin = [\"mid/{item}\"]\nout = [\"o\"]\nrun = \"cp $TARN_mid/$TARN_ITEM $TARN_o/\"\n",
    );
    for sample in ["a", "b", "c"] {
        site.write(&format!("in/{sample}"), sample);
    }
    site.run().exits(0);
    let touched = |name: &str, content: &str| {
        site.write(name, content);
        for run in [site.plan(), site.run()] {
            run.exits(0).prints("2 run, 4 unchanged");
        }
    };
    touched("in/a", "A");
    touched("in/b", "B");
    // A new one, and one that only looks changed.
    site.write("in/c", "c");
    site.write("in/d", "d");
    for run in [site.plan(), site.run()] {
        run.exits(0).prints("2 run, 6 unchanged");
    }
}

#[test]
fn more_time_for_a_script_runs_nothing_again() {
    let site = Site::new("");
    let script = "#!/bin/sh\n#SBATCH --time=5\n#TARN name = \"w\"\n#TARN data.o.dest = \"out\"\n#TARN [[step]]\n\
                  #TARN out = [\"o\"]\necho 1 >> ran\necho 1 > $TARN_o/x\n";
    site.write("s.sh", script);
    let options = site.options.iter().map(String::as_str);
    let words: Vec<&str> = ["run", "s.sh"].into_iter().chain(options).collect();
    site.tarn(&words).exits(0);
    site.write(
        "s.sh",
        &script.replace("--time=5", "--time=50 --partition=long"),
    );
    site.tarn(&words).exits(0).prints("unchanged");
    assert_eq!(ran(&site), "1");
    site.write("s.sh", &script.replace("echo 1 > ", "echo 2 > "));
    site.tarn(&words).exits(0).prints("s.sh has changed");
    assert_eq!(site.read("out/x"), "2\n");
}

#[test]
fn a_pattern_that_matches_nothing_is_refused_before_anything_runs() {
    let text = "name = \"w\"\n[data.raw]\nsource = \"in\"\n[data.o]\ndest = \"out\"\n[[step]]\nname = \"first\"\n\
                run = \"touch $TARN_WORKFLOW_DIR/ran\"\n[[step]]\nname = \"each\"\nforeach = \"raw/*.fastq\"\nin = [\"raw/{item}\"]\n\
                out = [\"o\"]\nrun = \"cp $TARN_raw/$TARN_ITEM $TARN_o\"\n";
    let site = Site::new(text);
    site.write("in/a.fq", "1");
    for refused in [site.plan().exits(4), site.run().exits(4)] {
        let expected =
            "step each: no entry of raw matches \"*.fastq\", and raw has one entry, \"a.fq\"";
        assert!(refused.err.contains(expected), "{}", refused.err);
    }
    assert!(!site.path("ran").exists() && !site.path("out").exists());
    site.write(
        "workflow.toml",
        &text.replace(
            "[\"raw/{item}\"]\n",
            "[\"raw/{item}\"]\nallow_empty = true\n",
        ),
    );
    site.run().exits(0);
    assert!(site.path("ran").exists());
    // Of what a step makes it is known when it has.
    let made = text
        .replace("source = \"in\"", "")
        .replace("name = \"first\"\n", "name = \"first\"\nout = [\"raw\"]\n")
        .replace("touch $TARN_WORKFLOW_DIR/ran", "touch $TARN_raw/b.fq")
        .replace("*.fastq\"", "*.fastq\"\nmax = 5");
    site.write("workflow.toml", &made);
    site.plan().exits(0);
    site.run()
        .exits(1)
        .prints("no entry of raw matches \"*.fastq\"");
}

#[test]
fn some_elements_may_yield_nothing_but_not_all() {
    let text = |run: &str| {
        format!(
            "name = \"w\"\n[data.hits]\n[data.o]\ndest = \"out\"\n[[step]]\nname = \"search\"\nforeach = [\"s1\", \"s2\"]\n\
             out = [\"hits\"]\nrun = '{run}'\n[[step]]\nname = \"sum\"\nin = [\"hits\"]\nout = [\"o\"]\n\
             run = 'ls $TARN_hits > $TARN_o/names'\n"
        )
    };
    let site = Site::new(&text("test $TARN_ITEM = s2 || touch $TARN_hits/$TARN_ITEM"));
    site.run().exits(0).prints("it wrote nothing to `hits`");
    assert_eq!(site.read("out/names"), "s1\n");
    site.write("workflow.toml", &text("true"));
    let expected = "none of its 2 instances wrote anything to its output `hits`";
    site.run().exits(1).prints(expected);
    site.tarn(&["resume"]).exits(1).prints(expected);
    // A step that is one is to make what it promises.
    site.write("workflow.toml", &makes("one", "dest = \"out1\"", "true"));
    site.run()
        .exits(1)
        .prints("wrote nothing to its output `r`");
}

#[test]
fn a_plan_names_what_steps_will_make() {
    let site = Site::new(
        "name = \"e\"\n[data.raw]\nsource = \"in\"\n[data.mid]\n[data.all]\n[data.o]\ndest = \"out\"\n[[step]]\nname = \"one\"\n\
         foreach = \"raw/*\"\nin = [\"raw/{item}\"]\nout = [\"mid\"]\nrun = \"cp $TARN_raw/$TARN_ITEM $TARN_mid/$TARN_ITEM.x\"\n\
         [[step]]\nname = \"two\"\nforeach = \"mid/*.x\"\nmax = 9\nin = [\"mid/{item}\"]\nout = [\"all\"]\n\
         run = \"cp $TARN_mid/$TARN_ITEM $TARN_all/$TARN_ITEM\"\n[[step]]\nname = \"three\"\nforeach = [\"a\", \"b\"]\n\
         in = [\"all/{item}.x\"]\nout = [\"o\"]\nrun = \"cp $TARN_all/$TARN_ITEM.x $TARN_o\"\n",
    );
    site.write("in/a", "1");
    site.write("in/b", "2");
    let planned = site.plan().exits(0);
    for step in [
        "one[a]", "one[b]", "two[a.x]", "two[b.x]", "three[a]", "three[b]",
    ] {
        assert!(planned.out.contains(step), "{step}: {}", planned.out);
    }
    let summary = |text: &str| {
        let line = text.lines().find(|l| l.starts_with("steps"));
        line.unwrap_or_default().to_owned()
    };
    let run = site.run().exits(0);
    assert_eq!(summary(&planned.out), summary(&run.out), "{}", run.err);
    assert_eq!(site.read("out/b.x"), "2");
}

const SAMPLES: &str = r#"
name = "add"
[data.raw]
source = "in"
[data.mid]
[data.per]
dest = "per"
[data.all]
dest = "all"
[[step]]
name = "one"
foreach = "raw/*"
in = ["raw/{item}"]
out = ["mid"]
run = "echo one.$TARN_ITEM >> $TARN_WORKFLOW_DIR/ran; cp $TARN_raw/$TARN_ITEM $TARN_mid/$TARN_ITEM"
[[step]]
name = "two"
foreach = "mid/*"
max = 10
in = ["mid/{item}"]
out = ["per"]
run = "echo two.$TARN_ITEM >> $TARN_WORKFLOW_DIR/ran; cp $TARN_mid/$TARN_ITEM $TARN_per/$TARN_ITEM"
[[step]]
name = "three"
in = ["per"]
out = ["all"]
run = "cat $TARN_per/* > $TARN_all/all"
"#;

#[test]
fn a_new_sample_leaves_the_results_of_the_others() {
    let site = Site::new(SAMPLES);
    for item in ["a", "b", "c"] {
        site.write(&format!("in/{item}"), item);
    }
    site.run().exits(0);
    ran(&site);
    site.write("in/d", "d");
    let planned = site.plan().exits(0);
    let again = |step: &str| {
        let lines = planned.out.lines().filter(|l| l.contains(step));
        lines.filter(|l| l.contains("node0")).count()
    };
    assert_eq!((again("one["), again("two[")), (1, 1), "{}", planned.out);
    site.run().exits(0);
    assert_eq!(ran(&site), "one.d two.d");
    assert_eq!(site.read("all/all"), "abcd");
    assert_eq!(site.read("per/a"), "a");
    // One that changes, too; its old result is not taken for the new one.
    site.write("in/b", "B");
    site.run().exits(0);
    assert_eq!(ran(&site), "one.b two.b");
    assert_eq!(site.read("all/all"), "aBcd");
    site.write("in/b", "b");
    site.run().exits(0);
    assert_eq!(site.read("all/all"), "abcd");
    assert_eq!(site.read("per/b"), "b");
}

#[test]
fn a_result_of_which_a_file_was_removed_is_put_there_again() {
    let site = Site::new(SAMPLES);
    site.write("in/a", "a");
    site.write("in/b", "b");
    site.run().exits(0);
    ran(&site);
    std::fs::remove_file(site.path("per/a")).unwrap();
    let planned = site.plan().exits(0);
    assert!(planned.out.contains("one[a]"), "{}", planned.out);
    site.run()
        .exits(0)
        .prints("per/a, which an earlier run put there, is not there any more");
    assert_eq!(site.read("per/a"), "a");
    assert_eq!(ran(&site), "one.a two.a");
    // Data that somebody has changed or added is not replaced.
    site.write("per/b", "mine");
    std::fs::remove_file(site.path("per/a")).unwrap();
    site.run().exits(3).prints("per");
    assert_eq!(site.read("per/b"), "mine");
    std::fs::remove_dir_all(site.path("per")).unwrap();
    site.run().exits(0);
    assert_eq!(site.read("per/b"), "b");
}

#[test]
fn why_a_step_runs_again_is_said_by_what_has_changed() {
    let site = Site::new(&reads("first", "sh $TARN_WORKFLOW_DIR/prog.sh", ""));
    site.write("in/f", "a");
    site.write("in/g", "b");
    site.write("prog.sh", "cat $TARN_i/f $TARN_i/g > $TARN_o/x\n");
    site.run().exits(0);
    site.write("in/g", "changed");
    let expected = "the input g of `i` has changed";
    assert!(site.plan().exits(0).out.contains(expected));
    site.run().exits(0).prints(expected);
    let why = site.tarn(&["why", "first"]).exits(0);
    assert!(why.out.contains(expected), "{}", why.out);
    site.write("prog.sh", "cat $TARN_i/g > $TARN_o/x\n");
    let expected = "prog.sh has changed";
    assert!(site.plan().exits(0).out.contains(expected));
    site.run().exits(0).prints(expected);
    let text = site
        .read("workflow.toml")
        .replace("prog.sh", "prog.sh # other");
    site.write("workflow.toml", &text);
    site.run().exits(0).prints("its `run` has changed");
    let again = site.run().exits(0);
    assert!(!again.err.contains("has changed"), "{}", again.err);
}

#[test]
fn files_watch_what_a_command_does_not_name() {
    let run = "sh $TARN_WORKFLOW_DIR/prog.sh";
    let site = Site::new(&makes("w", "dest = \"out\"", run));
    site.write(
        "prog.sh",
        "cat $TARN_WORKFLOW_DIR/params/p $TARN_WORKFLOW_DIR/conf > $TARN_r/x\n",
    );
    site.write("params/p", "1\n");
    site.write("conf", "2\n");
    site.run()
        .exits(0)
        .prints("conf, params/p was opened, which it does not name");
    site.write("params/p", "3\n");
    let expected = "`a` opened params/p when it ran last, which has changed since";
    assert!(site.plan().exits(0).out.contains(expected));
    site.run().exits(0).prints(expected);
    assert_eq!(site.read("out/x"), "1\n2\n");
    let text = site.read("workflow.toml");
    site.write(
        "workflow.toml",
        &(text.clone() + "files = [\"params\", \"conf\"]\n"),
    );
    site.run().exits(0);
    assert_eq!(site.read("out/x"), "3\n2\n");
    let quiet = site.run().exits(0).prints("unchanged");
    assert!(!quiet.err.contains("opened"), "{}", quiet.err);
    site.write("params/p", "4\n");
    site.run().exits(0).prints("params has changed");
    assert_eq!(site.read("out/x"), "4\n2\n");
    site.write("workflow.toml", &(text + "files = [\"parms\"]\n"));
    site.run()
        .exits(3)
        .prints("parms (`files`), which is not there");
}

#[test]
fn a_step_that_changes_what_its_command_names_is_told_of() {
    let run = "date +%N | tee $TARN_WORKFLOW_DIR/log.txt > $TARN_r/x";
    let site = Site::new(&makes("w", "dest = \"out\"", run));
    site.write("log.txt", "");
    site.run()
        .exits(0)
        .prints("log.txt, which step `a` names, has changed since the run began");
}

#[test]
fn what_runs_only_because_its_data_is_gone_is_told_before() {
    let text = "name = \"chain\"\n[data.mid]\n[data.o]\ndest = \"out\"\n[[step]]\nname = \"first\"\nout = [\"mid\"]\n\
                run = \"echo 1 > $TARN_mid/x\"\n[[step]]\nname = \"last\"\nin = [\"mid\"]\nout = [\"o\"]\n\
                run = \"cat $TARN_mid/x > $TARN_o/x\"\n";
    let site = Site::new(text);
    site.run().exits(0);
    site.write(
        "workflow.toml",
        &text.replace("cat $TARN_mid", "tac $TARN_mid"),
    );
    let expected = "`first` runs again with the same command and inputs: what it had made is not there any more";
    let planned = site.plan().exits(0);
    assert!(
        planned.out.contains(expected) && planned.out.contains("on `mid` keeps it"),
        "{}",
        planned.out
    );
    let run = site.run().exits(0).prints(expected);
    let at = |what: &str| run.err.find(what).unwrap_or(usize::MAX);
    assert!(at(expected) < at("first done"), "{}", run.err);
    assert_not_unchanged(&planned.out, &run.err, "first");
}

/// A step that runs is not called unchanged, neither before nor while it runs.
fn assert_not_unchanged(planned: &str, run: &str, step: &str) {
    let lines = planned.lines().filter(|l| !l.starts_with("note"));
    let lines: Vec<_> = lines.filter(|l| l.contains(&format!(" {step} "))).collect();
    assert!(
        lines.len() == 1 && lines[0].contains(" node0 "),
        "{planned}"
    );
    for other in [format!("{step} unchanged"), format!("{step}: no replica")] {
        assert!(!run.contains(&other), "{run}");
    }
    assert!(run.contains(&format!("{step} done")), "{run}");
}

#[test]
fn why_a_step_runs_again_is_said_once() {
    let mut site = Site::new(&reads("a", "cat $TARN_i/f | tee $TARN_o/x > $TARN_o/y", ""));
    site.options.extend(["--cache".into(), "0".into()]);
    site.write("in/f", "1");
    site.run().exits(0);
    // A file of the result is removed.
    std::fs::remove_file(site.path("out/y")).unwrap();
    let expected =
        "`a` runs again with the same command and inputs: what it had made is not there any more";
    let planned = site.plan().exits(0);
    assert!(planned.out.contains(expected), "{}", planned.out);
    let run = site.run().exits(0).prints(expected);
    assert_not_unchanged(&planned.out, &run.err, "a");
    assert_eq!(site.read("out/y"), "1");
    // An input is again what it was in an earlier run, of which nothing is left.
    site.write("in/f", "22");
    site.run()
        .exits(0)
        .prints("a runs again: the input f of `i` has changed");
    site.write("in/f", "1");
    // A plan does not read it: it cannot know.
    let planned = site.plan().exits(0);
    let why = "runs again: the input f of `i` has changed";
    let expected = "an earlier run did the same for `a`, but what it made is not there any more";
    let run = site.run().exits(0).prints(expected);
    for output in [&planned.out, &run.err] {
        assert!(output.contains(why), "{output}");
        assert!(!output.contains("same command and inputs:"), "{output}");
    }
    assert_not_unchanged(&planned.out, &run.err, "a");
}

#[test]
fn a_plan_says_what_the_end_of_an_allocation_would_take() {
    let site = Site::new(&makes("w", "dest = \"out\"", "echo 1 > $TARN_r/x"));
    let expected =
        "the parts of `r` made by then are lost with its nodes; `on_failure = \"drain\"`";
    let planned = site.plan().exits(0);
    assert!(planned.out.contains(expected), "{}", planned.out);
    let kept = makes(
        "w",
        "dest = \"out\"\non_failure = \"drain\"",
        "echo 1 > $TARN_r/x",
    );
    site.write("workflow.toml", &kept);
    let planned = site.plan().exits(0);
    for part in ["if an allocation ends", "are lost with its nodes"] {
        assert!(!planned.out.contains(part), "{}", planned.out);
    }
}
