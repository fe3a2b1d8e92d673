//! Steps of workflow files as jobs of a site.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tarn_spec::{SbatchScript, StepJob, parse, parse_job, step_jobs};
use tarn_types::id::StepId;
use tarn_types::workflow::{Step, StoragePartition, Workflow};

const FOLDER: &str = "/home/ann/it's flow";

fn workflow(text: &str) -> Workflow {
    let parsed = parse("w.toml", text, Path::new(FOLDER));
    parsed
        .unwrap_or_else(|rejected| panic!("{:?}", rejected.problems()))
        .workflow
}

fn jobs(text: &str) -> Result<Vec<StepJob>, Vec<String>> {
    step_jobs(&workflow(text))
}

/// The uses of datasets by a step. Entries count as the whole dataset.
fn uses(workflow: &Workflow, step: &Step) -> BTreeSet<(String, String, String)> {
    let named = step.uses.iter().map(|used| {
        let name = workflow.dataset(used.data).name.clone();
        (
            name,
            format!("{:?}", used.role),
            format!("{:?}", used.distribution),
        )
    });
    named.collect()
}

/// A job's own lines give the step that the file describes.
fn is_read_back(workflow: &Workflow, job: &StepJob) {
    let script = SbatchScript {
        name: "job",
        text: &job.script,
    };
    let read = parse_job(&script, Path::new("/elsewhere"), false)
        .unwrap_or_else(|rejected| panic!("{:?}\n{}", rejected.problems(), job.script))
        .expect("lines");
    let back = &read.parsed.workflow;
    assert!(!read.is_alone);
    assert_eq!(
        (&back.name, &back.external),
        (&workflow.name, &workflow.external)
    );
    let [step] = &back.steps[..] else {
        panic!("one step");
    };
    let of = workflow.steps.iter().find(|s| s.name == job.name);
    let of = of.expect("a step of that name");
    assert_eq!(step.name, of.name);
    let own = |w: &Workflow, name: &str| {
        let named = |p: &StoragePartition| (p.name.clone(), p.size, p.unit);
        let at = w.steps.iter().position(|s| s.name == name);
        let id = StepId(at.expect("a step of that name") as u32);
        let own = w.partitions_of(id).map(|(_, p)| named(p));
        own.collect::<Vec<_>>()
    };
    assert_eq!(own(back, &of.name), own(workflow, &of.name));
    assert_eq!((step.nodes, step.tasks), (of.nodes, of.tasks));
    assert!(step.cores >= of.cores && step.memory >= of.memory && step.time >= of.time);
    let mut expected = uses(workflow, of);
    if let Some(tarn_types::workflow::Foreach::Entries { data, .. }) = &of.foreach {
        let name = workflow.dataset(*data).name.clone();
        expected.insert((name, "In".into(), "Single".into()));
    }
    assert_eq!(uses(back, step), expected);
    for data in &back.data {
        let of = workflow.data.iter().find(|d| d.name == data.name);
        let of = of.expect("a dataset of that name");
        assert_eq!((data.size, data.keep), (of.size, of.keep), "{}", data.name);
        assert!(data.source.is_none() || data.source == of.source);
        assert!(data.dest.is_none() || data.dest == of.dest);
        assert_eq!(data.copies, of.copies);
        assert_eq!(data.of, of.of);
    }
}

#[test]
fn all_that_jobs_can_do_is_said_in_their_lines() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let (mut suited, mut unsuited) = (0, BTreeMap::new());
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let Ok(text) = std::fs::read_to_string(&path) else {
            continue;
        };
        let is_file = path.extension().is_some_and(|e| e == "toml");
        let Some(Ok(parsed)) = is_file.then(|| parse("w.toml", &text, Path::new(FOLDER))) else {
            continue;
        };
        match step_jobs(&parsed.workflow) {
            Ok(jobs) => {
                suited += 1;
                assert_eq!(jobs.len(), parsed.workflow.steps.len());
                for job in &jobs {
                    is_read_back(&parsed.workflow, job);
                }
            }
            Err(why) => drop(unsuited.insert(path, why)),
        }
    }
    assert!(suited > 10, "{suited}; {unsuited:#?}");
}

const REORDERED: &str = r#"
name = "w"
[data.a]
[data.b]
dest = "b"
[[step]]
name = "last"
run = "true"
in = ["b"]
after = ["change"]
out = ["c"]
[data.c]
[[step]]
name = "make"
run = "true"
out = ["a"]
[[step]]
name = "read"
run = "true"
in = ["a"]
out = ["b"]
[[step]]
name = "change"
run = "true"
inout = ["a"]
"#;

#[test]
fn jobs_are_submitted_after_what_they_need_and_before_what_changes_it() {
    let jobs = jobs(REORDERED).unwrap();
    let names: Vec<&str> = jobs.iter().map(|job| &*job.name).collect();
    assert_eq!(names, ["make", "read", "change", "last"]);
    assert_eq!(jobs[3].after, [2]);
    // Only the step that makes the last version takes it out.
    let with_dest: Vec<bool> = jobs.iter().map(|j| j.script.contains("dest")).collect();
    assert_eq!(with_dest, [false, true, false, false]);
}

/// docs/guide/on-a-site.md, "Several stores on a node".
#[test]
fn the_stores_that_a_step_and_its_datasets_wish_go_with_the_job() {
    let text = "name = \"w\"\n[data.a]\ntier = \"nvme\"\n[[step]]\nname = \"s\"\nrun = \"true\"\nout = [\"a\"]\ntier = \"pmem\"\n";
    let jobs = jobs(text).unwrap();
    for line in ["#TARN data.a.tier = \"nvme\"", "#TARN tier = \"pmem\""] {
        let mut lines = jobs[0].script.lines();
        assert!(lines.any(|l| l == line), "{}", jobs[0].script);
    }
}

#[test]
fn what_jobs_cannot_do_is_refused_with_what_to_do_instead() {
    let step = "name = \"w\"\n[data.a]\nDATA\n[[step]]\nname = \"s\"\nrun = \"true\"\nout = [\"a\"]\nSTEP\n";
    for (data, more, expected) in [
        ("", "restart = \"image\"", "Slurm's children"),
        ("encrypt = true", "", "`encrypt`"),
    ] {
        let text = step.replace("DATA", data).replace("STEP", more);
        let why = jobs(&text).expect_err(expected);
        assert!(why.len() == 1 && why[0].contains(expected), "{why:?}");
        assert!(why[0].starts_with("step `s`: "), "{why:?}");
    }
}

/// docs/guide/on-a-site.md, "Jobs that continue after a failure".
#[test]
fn a_step_that_continues_from_checkpoints_is_put_back_as_often_as_it_may_be_tried_again() {
    let text = "name = \"w\"\n[[step]]\nname = \"s\"\nrun = \"./solve\"\ntime = \"10m\"\nrestart = \"phx\"\ncheckpoints = \"40 GiB\"\nMORE\n";
    let script = |more: &str| {
        let text = text.replace("MORE", more);
        let whole = workflow(&text);
        let jobs = jobs(&text).unwrap();
        is_read_back(&whole, &jobs[0]);
        jobs[0].script.clone()
    };
    let plain = script("");
    assert!(plain.contains("#SBATCH --open-mode=append\n"), "{plain}");
    assert!(!plain.contains("requeue") && !plain.contains("--signal"));
    let tried = script("retries = 3");
    assert!(tried.contains("#SBATCH --signal=B:USR1@60\n"), "{tried}");
    assert!(
        tried.contains("SLURM_RESTART_COUNT:-0}\" -lt 3 ]"),
        "{tried}"
    );
    // A step without checkpoints begins again, and only when it fails.
    let plain = text.replace("restart = \"phx\"\ncheckpoints = \"40 GiB\"\n", "");
    let job = &jobs(&plain.replace("MORE", "retries = 2")).unwrap()[0];
    assert!(job.script.contains("scontrol requeue") && !job.script.contains("USR1"));
    // Its elements are one job.
    let each = text.replace("MORE", "foreach = [1, 2]");
    assert!(jobs(&each).unwrap_err()[0].contains("one folder of checkpoints"));
}

/// The shell runs the command to its end whatever signals come, has Slurm run the job again when it fails or its time is
/// nearly over, and ends with the command's code.
#[test]
fn what_puts_a_job_back_does_so_on_failures_and_before_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let requeued = folder.path().join("requeued");
    let scontrol = folder.path().join("scontrol");
    let program = format!("#!/bin/sh\necho \"$@\" >> '{}'\n", requeued.display());
    std::fs::write(&scontrol, program).unwrap();
    let executable = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&scontrol, executable).unwrap();
    let run = |command: &str, count: u32| {
        let text = format!(
            "name = \"w\"\n[[step]]\nname = \"s\"\nrun = \"{command}\"\nrestart = \"files\"\nretries = 2\n"
        );
        let script = jobs(&text).unwrap()[0].script.clone();
        let path = format!("{}:/usr/bin:/bin", folder.path().display());
        let _ = std::fs::remove_file(&requeued);
        let status = std::process::Command::new("bash")
            .args(["-c", &script])
            .env("PATH", path)
            .env("SLURM_JOB_ID", "7")
            .env("SLURM_RESTART_COUNT", count.to_string())
            .status();
        let requests = std::fs::read_to_string(&requeued).unwrap_or_default();
        (status.unwrap().code(), requests)
    };
    assert_eq!(run("true", 0), (Some(0), String::new()));
    assert_eq!(run("exit 3", 1), (Some(3), "requeue 7\n".into()));
    // It was tried often enough.
    assert_eq!(run("exit 3", 2), (Some(3), String::new()));
    // The signal comes to the shell of the script; the command continues until Slurm ends it.
    let limit = "kill -USR1 $(ps -o ppid= -p $PPID); sleep 0.3; exit 0";
    assert_eq!(run(limit, 0), (Some(0), "requeue 7\n".into()));
}

#[test]
fn partitions_become_the_jobs_own_and_what_a_job_cannot_have_is_refused() {
    let file = |more: &str, step: &str| {
        format!(
            "name = \"w\"\n[partition.field]\nsize = \"1.5 MB\"\nunit = \"8 KiB\"\n{more}[partition.log]\nsize = \"1 MiB\"\n\
             [[step]]\nname = \"a\"\nrun = \"a.sh\"\npartitions = [\"field\", \"log\"]\n{step}\
             [[step]]\nname = \"b\"\nrun = \"b.sh\"\npartitions = [\"log\"]\n"
        )
    };
    for more in ["", "tier = \"nvme\"\n"] {
        let text = file(more, "");
        let whole = workflow(&text);
        for job in jobs(&text).unwrap() {
            is_read_back(&whole, &job);
        }
    }
    for (more, step, expected) in [
        ("keep = \"workflow\"\n", "", "`keep`"),
        ("", "foreach = [1, 2]\n", "would have one together"),
    ] {
        let why = jobs(&file(more, step)).unwrap_err().join("\n");
        assert!(why.contains(expected) && why.contains("`field`"), "{why}");
    }
}

/// A job runs a step's command in the step's shell, as `tarn run` does.
#[test]
fn a_job_has_the_shell_of_its_step() {
    let text = r##"name = "w"
shell = "sh -e"
[[step]]
name = "a"
run = "one | two"
[[step]]
name = "b"
run = "one | two"
shell = "bash"
[[step]]
name = "c"
prelude = "module load gcc"
run = """
#!/usr/bin/python3 -B
print('one')
"""
"##;
    let shells = |text: &str| -> Vec<Option<String>> {
        let steps = workflow(text).steps.into_iter();
        steps.map(|step| step.shell).collect()
    };
    let owned = |shell: &str| Some(shell.to_owned());
    assert_eq!(
        shells(text),
        [owned("sh -e"), owned("bash"), owned("sh -e")]
    );
    let strict = text.replace("shell = \"sh -e\"\n", "");
    assert_eq!(shells(&strict), [None, owned("bash"), None]);
    for (text, a) in [
        (text, "'sh' '-e' '-c' 'one | two'"),
        (&strict, "'bash' '-euo' 'pipefail' '-c' 'one | two'"),
    ] {
        let all = jobs(text).unwrap_or_else(|why| panic!("{why:?}"));
        let has = |at: usize, words: &str| {
            let script: &str = &all[at].script;
            assert!(script.contains(words), "{script}");
        };
        has(0, a);
        has(1, "'bash' '-c' 'one | two'");
        has(
            2,
            "\nprintf %s '#!/usr/bin/python3 -B\nprint('\\''one'\\'')\n' > \"$TARN_COMMAND\"",
        );
        has(2, "exec \"$@\"' ");
        has(2, "'/usr/bin/python3' '-B' \"$TARN_COMMAND\"\n");
    }
}
