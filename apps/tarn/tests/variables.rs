//! Variables that a step reads and nobody sets: docs/reference/workflow-file.md, "Variables that nobody sets".

mod common;
use common::Site;
use common::workflows::makes;

/// A folder of its own by the number of the job, removed at the end.
const TIDY: &str = "S=$(dirname $0)/scratch/$SLURM_JOB_ID\nmkdir -p $S; rm -rf \"$S\"; echo $SLURM_JOB_ID >> $(dirname $0)/ids\n";

fn ids(site: &Site) -> Vec<u64> {
    let text = site.read("ids");
    let mut ids: Vec<u64> = text
        .lines()
        .map(|id| id.parse().expect("a number"))
        .collect();
    ids.sort();
    ids.dedup();
    ids
}

#[test]
fn a_script_that_a_step_names_has_a_number_of_its_own_where_there_is_no_slurm() {
    let run = "bash $TARN_WORKFLOW_DIR/job.sh; echo 1 > $TARN_r/x";
    let site = Site::new(&makes("tidy", "dest = \"out\"", run));
    site.write("job.sh", TIDY);
    site.write("scratch/other/data", "precious");
    let planned = site.plan().exits(0);
    assert!(!planned.err.contains("not set"), "{}", planned.err);
    site.run().exits(0);
    assert_eq!(site.read("scratch/other/data"), "precious");
    let first = ids(&site);
    assert!(first.len() == 1 && first[0] >= 1_000_000_000, "{first:?}");
    // Another run has another; so has each instance; a variable that is read nowhere is not set.
    std::fs::remove_file(site.path("ids")).expect("it is there");
    let text = site.read("workflow.toml");
    let each = "name = \"a\"\nforeach = [\"a\", \"b\"]";
    let text = text.replace("name = \"a\"", each);
    let text = text.replace("echo 1 > $TARN_r/x", "echo 1 > $TARN_r/$TARN_ITEM");
    let without = "[[step]]\nname = \"without\"\nrun = \"echo ${SLURM_JOB_ID:-none} > $TARN_WORKFLOW_DIR/without\"\n";
    site.write("workflow.toml", &(text + without));
    site.run().exits(0);
    let second = ids(&site);
    assert_eq!(second.len(), 2, "{second:?}");
    assert!(!second.contains(&first[0]), "{first:?} {second:?}");
    assert_eq!(site.read("without"), "none\n");
    assert_eq!(site.read("scratch/other/data"), "precious");
}

#[test]
fn a_resumed_run_has_such_numbers_too() {
    let run = "bash $TARN_WORKFLOW_DIR/job.sh; test -e $TARN_WORKFLOW_DIR/go; echo 1 > $TARN_r/x";
    let site = Site::new(&makes("tidy", "dest = \"out\"", run));
    site.write("job.sh", TIDY);
    site.write("scratch/other/data", "precious");
    site.run().exits(1);
    site.write("go", "");
    site.tarn(&["resume"]).exits(0);
    assert_eq!(site.read("scratch/other/data"), "precious");
    assert_eq!(ids(&site).len(), 2, "each its own");
}

#[test]
fn a_number_of_slurm_stays_as_it_is() {
    let run = "bash $TARN_WORKFLOW_DIR/job.sh; echo ${SLURM_JOB_NAME:-none} > $TARN_r/x";
    let site = Site::new(&makes("tidy", "dest = \"out\"", run));
    site.write("job.sh", TIDY);
    let mut command = site.command(&[&site.run_arguments()[..], &["--local"]].concat());
    command
        .env("SLURM_JOB_ID", "4711")
        .env("SLURM_JOB_NAME", "mine");
    common::Ran::of(command.output().expect("tarn")).exits(0);
    assert_eq!(ids(&site), [4711]);
    assert_eq!(site.read("out/x"), "mine\n");
}

#[test]
fn variables_that_nobody_sets_are_named_before_anything_runs() {
    let run = "bash $TARN_WORKFLOW_DIR/job.sh; cp $TARN_WORKFLOW_DIR/job.sh $TARN_r/x";
    let site = Site::new(&makes("make", "dest = \"out\"", run));
    site.write(
        "job.sh",
        "#!/bin/bash\n# $TARN_comment\nTARN_own=1; echo $TARN_own $TARN_r ${TARN_given:-.} ${TARN_given-.} ${TARN_given:+.}\n\
         cat <<'END'\n$TARN_quoted\nEND\nmkdir -p .$TARN_rr/sub\necho ${PBS_JOBID} $LSB_JOBID $SLURM_JOB_PARTITION\n",
    );
    for ran in [site.plan(), site.run()] {
        let ran = ran
            .exits(0)
            .prints("warning: step `a` reads `TARN_rr` (job.sh, line 7), which tarn does not set")
            .prints("did you mean `TARN_r`?")
            .prints("`PBS_JOBID` (job.sh, line 8), which is not set where there is no PBS")
            .prints("`LSB_JOBID` (job.sh, line 8), which is not set where there is no LSF")
            .prints(
                "`SLURM_JOB_PARTITION` (job.sh, line 8), which is not set where there is no Slurm",
            );
        for not in ["comment", "TARN_own", "given", "quoted", "`TARN_r`,"] {
            assert!(!ran.err.contains(not), "{not}: {}", ran.err);
        }
        assert_eq!(ran.err.matches("does not set").count(), 1, "{}", ran.err);
    }
    // In the workflow file itself, and by another shell than the usual one.
    let text = site.read("workflow.toml");
    let text = text.replace(
        "run = '''bash",
        "run = '''#!/bin/bash\necho .$TARN_ouf\nbash",
    );
    site.write("workflow.toml", &text);
    site.plan().exits(0).prints("`TARN_ouf` (`run`, line 2)");
    // Variables that are set around the run are set.
    let mut arguments = site.run_arguments();
    arguments[0] = "plan";
    let mut command = site.command(&arguments);
    command.env("PBS_JOBID", "1").env("LSB_JOBID", "1");
    let planned = common::Ran::of(command.output().expect("tarn")).exits(0);
    assert!(!planned.err.contains("no PBS") && !planned.err.contains("no LSF"));
}

#[test]
fn programs_in_python_and_r_and_what_only_a_watched_file_names_are_looked_into() {
    let run = "bash $TARN_WORKFLOW_DIR/bin/job.sh; echo 1 > $TARN_r/x";
    let extra = "files = [\"bin\", \"more\"]\n";
    let text =
        makes("make", "dest = \"out\"", run).replace("[[step]]\n", &format!("[[step]]\n{extra}"));
    let site = Site::new(&text);
    site.write(
        "bin/job.sh",
        "HERE=$(cd $(dirname $0) && pwd)\nif false; then python3 \"$HERE/a.py\"; sh $HERE/../lib/b.sh; fi\n",
    );
    site.write(
        "bin/a.py",
        "import os, helper\nSLURM_CLUSTER_NAME = os.environ[\"SLURM_CLUSTER_NAME\"]\nx = os.getenv('PBS_JOBID')\n\
         y = os.environ.get(\"PBS_QUEUE\")\nz = os.environ.get(\"LSB_QUEUE\", \"none\")\nif os.environ.get('LSB_JOBID'): pass\n\
         o = os.environ[\"TARN_rr\"]\n# os.environ[\"LSB_COMMENT\"]\n",
    );
    site.write(
        "bin/helper.py",
        "import os\nprint(os.getenv('PBS_HELPER'))\n",
    );
    site.write("lib/b.sh", "Rscript lib/c.R\necho $PBS_SHELL\n");
    site.write(
        "lib/c.R",
        "unlink(file.path('x', Sys.getenv(\"PBS_R\")))\nSys.getenv(\"LSB_R\", unset = \"none\")\n",
    );
    site.write("more/deep/d.sh", "echo $PBS_DEEP\n");
    site.write("more/data.txt", "costs $PBS_DATA\n");
    let assert_warned = |ran: &common::Ran| {
        for (name, place) in [
            ("SLURM_CLUSTER_NAME", "bin/a.py, line 2"),
            ("PBS_JOBID", "bin/a.py, line 3"),
            ("PBS_QUEUE", "bin/a.py, line 4"),
            ("TARN_rr", "bin/a.py, line 7"),
            ("PBS_HELPER", "bin/helper.py, line 2"),
            ("PBS_SHELL", "lib/b.sh, line 2"),
            ("PBS_R", "lib/c.R, line 1"),
            ("PBS_DEEP", "more/deep/d.sh, line 1"),
        ] {
            let wanted = format!("reads `{name}` ({place})");
            assert!(ran.err.contains(&wanted), "{wanted}: {}", ran.err);
        }
        assert!(
            ran.err.contains("give the call a default value"),
            "{}",
            ran.err
        );
        for not in ["LSB_", "PBS_DATA"] {
            assert!(!ran.err.contains(not), "{not}: {}", ran.err);
        }
    };
    assert_warned(&site.plan().exits(0));
    assert_warned(&site.run().exits(0));
}

#[test]
fn a_program_that_reads_the_number_of_its_job_has_one() {
    let run = "python3 $TARN_WORKFLOW_DIR/job.py > $TARN_r/x";
    let site = Site::new(&makes("make", "dest = \"out\"", run));
    site.write("job.py", "import os\nprint(os.environ[\"SLURM_JOB_ID\"])\n");
    let planned = site.plan().exits(0);
    assert!(!planned.err.contains("not set"), "{}", planned.err);
    site.run().exits(0);
    let number: u64 = site.read("out/x").trim().parse().expect("a number");
    assert!(number >= 1_000_000_000);
}

#[test]
fn no_more_than_8_mib_of_a_step_are_looked_into_and_that_is_said() {
    let names: Vec<String> = (0..9).map(|n| format!("{n}.sh")).collect();
    let calls: Vec<String> = names
        .iter()
        .map(|name| format!("bash $TARN_WORKFLOW_DIR/{name}; "))
        .collect();
    let run = format!("if false; then {} fi; echo 1 > $TARN_r/x", calls.concat());
    let site = Site::new(&makes("make", "dest = \"out\"", &run));
    for (n, name) in names.iter().enumerate() {
        let text = format!("#{}\necho $PBS_{n}\n", "x".repeat(900_000));
        site.write(name, &text);
    }
    let planned = site.plan().exits(0);
    assert!(!planned.err.contains("MiB"), "not more: {}", planned.err);
    for name in &names {
        let text = format!("{}#{}", site.read(name), "x".repeat(40_000));
        site.write(name, &text);
    }
    for ran in [site.plan(), site.run()] {
        let ran = ran
            .exits(0)
            .prints("reads `PBS_0` (0.sh, line 2)")
            .prints("note: step `a` runs more than 8 MiB of scripts and programs");
        assert!(!ran.err.contains("PBS_8"), "{}", ran.err);
    }
}
