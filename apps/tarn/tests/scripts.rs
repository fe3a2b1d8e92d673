//! Workflows that sbatch scripts say, by the real `tarn`: docs/guide/sbatch-scripts.md.

mod common;
use common::Site;

/// An array that counts words, and a script that sums them; in folders of their own.
const SCRIPTS: [(&str, &str); 2] = [
    (
        "jobs/count.sh",
        "#!/bin/bash\n#SBATCH --job-name=count --array=1-3\n#TARN name = \"words\"\n#TARN data.text.source = \"books\"\n\
         #TARN [data.counts]\n#TARN [[step]]\n#TARN in = [\"text\"]\n#TARN out = [\"counts\"]\nset -eu\n\
         wc -w < $TARN_text/$SLURM_ARRAY_TASK_ID.txt > $TARN_counts/$TARN_ITEM\n",
    ),
    (
        "sum.sh",
        "#!/bin/sh -e\n#TARN name = \"words\"\n#TARN data.total.dest = \"result\"\n#TARN [[step]]\n#TARN in = [\"counts\"]\n\
         #TARN out = [\"total\"]\n\ncat \"$TARN_counts\"/* | awk '{s+=$1} END {print s}' > $TARN_total/words\n[ -f sum.sh ]\n",
    ),
];
const NAMES: [&str; 2] = ["jobs/count.sh", "sum.sh"];

fn words() -> Site {
    let site = Site::new("").with(&["--nodes", "2"]);
    for (name, text) in SCRIPTS {
        site.write(name, text);
    }
    site.write("books/1.txt", "one two three\n");
    site.write("books/2.txt", "four five\n");
    site.write("books/3.txt", "six\n");
    site
}

fn arguments<'a>(site: &'a Site, command: &'a str, files: &[&'a str]) -> Vec<&'a str> {
    let options = site.options.iter().map(String::as_str);
    let files = files.iter().copied();
    std::iter::once(command)
        .chain(files)
        .chain(options)
        .collect()
}

#[test]
fn scripts_are_planned_and_run_as_one_workflow() {
    let site = words();
    let planned = site.tarn(&arguments(&site, "plan", &NAMES)).exits(0);
    assert!(
        planned.out.contains("count") && planned.out.contains("sum"),
        "{}",
        planned.out
    );
    site.tarn(&arguments(&site, "run", &NAMES)).exits(0);
    assert_eq!(site.read("result/words"), "6\n");
    site.leaves_nothing_on_its_tier();
    // Absolute paths name the same scripts.
    let absolute = NAMES.map(|name| site.path(name).display().to_string());
    let absolute = absolute.each_ref().map(String::as_str);
    let again = site.tarn(&arguments(&site, "run", &absolute)).exits(0);
    assert!(!again.err.contains("done in"), "{}", again.err);
    let changed = SCRIPTS[1].1.replace("print s}", "print s+100}");
    site.write("sum.sh", &changed);
    let changed = site.tarn(&arguments(&site, "run", &NAMES)).exits(0);
    assert_eq!(site.read("result/words"), "106\n");
    assert!(
        changed.err.contains("sum done") && !changed.err.contains("count#"),
        "{}",
        changed.err
    );
}

#[test]
fn a_run_of_scripts_is_resumed() {
    let site = words();
    let broken = SCRIPTS[1].1.replace("[ -f sum.sh ]", "[ -f there ]");
    site.write("sum.sh", &broken);
    let failed = site.tarn(&arguments(&site, "run", &NAMES));
    assert_ne!(failed.code, Some(0));
    site.write("there", "");
    site.tarn(&["resume"]).exits(0);
    assert_eq!(site.read("result/words"), "6\n");
    // A script that is still to be run is not exchanged meanwhile.
    std::fs::remove_file(site.path("there")).unwrap();
    site.write("sum.sh", &broken.replace("print s}", "print s+1}"));
    assert_ne!(site.tarn(&arguments(&site, "run", &NAMES)).code, Some(0));
    site.write("sum.sh", SCRIPTS[1].1);
    let refused = site.tarn(&["resume"]).exits(2);
    assert!(
        refused.err.contains("sum.sh") && refused.err.contains("has changed"),
        "{}",
        refused.err
    );
}

#[test]
fn mistakes_are_shown_where_they_are() {
    let site = words();
    site.write(
        "jobs/count.sh",
        &SCRIPTS[0].1.replace("--array=1-3", "--array=1-x"),
    );
    site.write(
        "sum.sh",
        &SCRIPTS[1].1.replace("in = [\"counts\"]", "nodes = 2"),
    );
    let refused = site.tarn(&arguments(&site, "plan", &NAMES)).exits(3);
    for expected in [
        "jobs/count.sh:2:26",
        "`--array` cannot be `1-x`",
        "sum.sh:5:7",
        "`#SBATCH --nodes` sets it",
    ] {
        assert!(
            refused.err.contains(expected),
            "{expected}: {}",
            refused.err
        );
    }
    // A workflow file stands alone.
    site.write(
        "workflow.toml",
        "name = \"w\"\n[[step]]\nname = \"s\"\nrun = \"true\"\n",
    );
    let refused = site
        .tarn(&arguments(&site, "plan", &["workflow.toml", "sum.sh"]))
        .exits(3);
    assert!(
        refused
            .err
            .contains("`workflow.toml` is no script for sbatch"),
        "{}",
        refused.err
    );
    site.tarn(&arguments(&site, "plan", &["none.sh"])).exits(7);
}

/// A folder of its own by the number of the job, removed at the end: where the variable is empty that is everybody's.
#[test]
fn scripts_have_a_number_of_their_own_where_there_is_no_slurm() {
    let site = Site::new("").with(&["--nodes", "2"]);
    site.write("scratch/other/data", "precious");
    site.write(
        "inner.toml",
        "name = \"inner\"\n[[step]]\nname = \"s\"\nrun = \"true\"\n",
    );
    site.write(
        "tidy.sh",
        "#!/bin/bash\n#SBATCH --job-name=tidy --array=1-9:4 --ntasks=1 --cpus-per-task=1\n#TARN data.o.dest = \"res\"\n#TARN [[step]]\n\
         #TARN out = [\"o\"]\nset -eu\nS=$SLURM_SUBMIT_DIR/scratch/$SLURM_JOB_ID\nmkdir \"$S\"; touch \"$S/$SLURM_JOB_PARTITION\"\n\
         echo $SLURM_JOB_ID $SLURM_JOBID $SLURM_ARRAY_JOB_ID > $TARN_o/ids.$SLURM_ARRAY_TASK_ID\n\
         echo $SLURM_JOB_NAME $SLURM_NTASKS $SLURM_CPUS_PER_TASK $SLURM_NNODES $SLURM_JOB_NODELIST $SLURM_TASKS_PER_NODE \
         $SLURM_ARRAY_TASK_COUNT $SLURM_ARRAY_TASK_MIN-$SLURM_ARRAY_TASK_MAX:$SLURM_ARRAY_TASK_STEP > $TARN_o/about.$SLURM_ARRAY_TASK_ID\n\
         test $SLURM_TMPDIR = $TARN_SCRATCH\ntarn plan \"$SLURM_SUBMIT_DIR/inner.toml\" > /dev/null\ncd /; rm -rf \"$S\"\n",
    );
    let run = || {
        let planned = site.tarn(&arguments(&site, "plan", &["tidy.sh"])).exits(0);
        planned.prints("`SLURM_JOB_PARTITION` is not set where there is no Slurm");
        let mut command = site.command(&arguments(&site, "run", &["tidy.sh"]));
        command.env("SLURM_JOB_PARTITION", "short");
        let ran = common::Ran::of(command.output().expect("tarn")).exits(0);
        assert!(!ran.err.contains("no Slurm"), "{}", ran.err);
        let mut ids: Vec<u64> = Vec::new();
        for item in [1, 5, 9] {
            let text = site.read(&format!("res/ids.{item}"));
            let own: Vec<u64> = text
                .split_whitespace()
                .map(|n| n.parse().expect("a number"))
                .collect();
            let [id, same, array] = own[..] else {
                panic!("{text}")
            };
            assert!(id == same && id >= 1_000_000_000, "{text}");
            ids.extend([id, array]);
            let about = site.read(&format!("res/about.{item}"));
            assert!(about.starts_with("tidy 1 1 1 node"), "{about}");
            assert!(about.ends_with(" 1 3 1-9:4\n"), "{about}");
        }
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 4, "three jobs and the array");
        ids
    };
    let first = run();
    assert_eq!(site.read("scratch/other/data"), "precious");
    assert_eq!(
        std::fs::read_dir(site.path("scratch")).expect("it").count(),
        1
    );
    // Another run has other numbers.
    let changed = site.read("tidy.sh") + "# again\n";
    site.write("tidy.sh", &changed);
    let second = run();
    assert!(
        second.iter().all(|id| !first.contains(id)),
        "{first:?} {second:?}"
    );
}

#[test]
fn nothing_is_submitted_where_no_controller_is() {
    let site = words();
    let mut submit = site.command(&[&["submit"][..], &NAMES].concat());
    submit.env("TARN_CONTROLLER", site.path("none"));
    let refused = common::Ran::of(submit.output().expect("tarn starts"));
    refused
        .exits(5)
        .prints("controller does not answer")
        .prints("nothing was submitted");
}
