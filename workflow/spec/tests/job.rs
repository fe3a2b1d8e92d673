//! The script of one job of a site.

use std::path::Path;
use tarn_spec::{FindingCode, JobScript, SbatchScript, check_site, parse_job};
use tarn_types::workflow::{Distribution, Role};

fn parse(text: &str) -> Result<Option<JobScript>, Vec<FindingCode>> {
    let name = "job.sh";
    let parsed = parse_job(
        &SbatchScript { name, text },
        Path::new("/home/alice"),
        false,
    );
    parsed.map_err(|rejected| rejected.problems().iter().map(|f| f.kind()).collect())
}

#[test]
fn a_script_that_says_nothing_is_nothing_to_tarn() {
    assert!(
        parse("#!/bin/sh\n#SBATCH -N 2\necho\n#TARN name = \"w\"\n")
            .unwrap()
            .is_none()
    );
}

#[test]
fn what_other_jobs_make_need_not_be_said() {
    let text = "#!/bin/sh\n#SBATCH -N 2 -n 4\n#TARN name = \"w\"\n#TARN [[step]]\n#TARN in = [\"mesh\", \"params:broadcast\"]\n#TARN inout = [\"case:scatter\"]\n#TARN out = [\"log:scatter\"]\ntrue\n";
    let job = parse(text).unwrap().unwrap();
    assert!(!job.is_alone);
    let workflow = &job.parsed.workflow;
    assert_eq!(workflow.name, "w");
    assert!(
        workflow
            .data
            .iter()
            .all(|d| d.source.is_none() && d.scatter.is_none())
    );
    let [step] = &workflow.steps[..] else {
        panic!("one step");
    };
    assert_eq!((step.nodes, step.tasks), (2, 4));
    let mut uses: Vec<_> = step
        .uses
        .iter()
        .map(|u| {
            (
                workflow.dataset(u.data).name.as_str(),
                u.role,
                u.distribution,
            )
        })
        .collect();
    uses.sort_by_key(|u| u.0);
    assert_eq!(
        uses,
        [
            ("case", Role::Inout, Distribution::Scatter),
            ("log", Role::Out, Distribution::Scatter),
            ("mesh", Role::In, Distribution::Broadcast),
            ("params", Role::In, Distribution::Broadcast),
        ]
    );
}

#[test]
fn what_is_said_is_kept() {
    let text = "#!/bin/sh\n#TARN name = \"w\"\n#TARN data.case = { source = \"in/case\", scatter = \"p{rank}\", size = \"1 GiB\" }\n#TARN [[step]]\n#TARN inout = [\"case:scatter\"]\ntrue\n";
    let job = parse(text).unwrap().unwrap();
    let case = &job.parsed.workflow.data[0];
    assert_eq!(
        case.source.as_deref(),
        Some(Path::new("/home/alice/in/case"))
    );
    assert_eq!(case.scatter.as_ref().map(|r| r.as_str()), Some("p{rank}"));
    assert_eq!(case.size, Some(1 << 30));
}

#[test]
fn a_script_without_a_name_is_whole_by_itself() {
    let alone = "#!/bin/sh\n#SBATCH -J one\n#TARN data.mesh.source = \"/lustre/mesh\"\n#TARN [[step]]\n#TARN in = [\"mesh\"]\ntrue\n";
    let job = parse(alone).unwrap().unwrap();
    assert!(job.is_alone);
    assert_eq!(job.parsed.workflow.name, "one");
    let lacks = "#!/bin/sh\n#TARN [[step]]\n#TARN in = [\"mesh\"]\ntrue\n";
    assert!(!parse(lacks).unwrap_err().is_empty());
}

#[test]
fn mistakes_are_found_as_in_a_workflow_file() {
    for bad in [
        "#TARN name = w",
        "#TARN nome = \"w\"",
        "#TARN name = \"w\"\n#TARN [[step]]\n#TARN inn = [\"mesh\"]",
        "#TARN name = \"w\"\n#TARN [[step]]\n#TARN in = [\"me sh\"]",
        "#TARN name = \"w\"\n#TARN [[step]]\n#TARN in = \"mesh\"",
        "#TARN name = \"w\"\n#TARN data = 5\n#TARN [[step]]\n#TARN in = [\"mesh\"]",
        "#TARN name = \"w\"\n#TARN [[step]]\n#TARN nodes = 2",
    ] {
        let text = format!("#!/bin/sh\n{bad}\ntrue\n");
        assert!(!parse(&text).unwrap_err().is_empty(), "{bad}");
    }
}

#[test]
fn datasets_of_others_and_of_projects_are_named() {
    let text = "#!/bin/sh\n#SBATCH -N 2 -n 2\n#TARN name = \"w\"\n#TARN data.mesh.of = \"alice/foam/mesh\"\n#TARN data.forcing.project = \"climate\"\n#TARN [[step]]\n#TARN in = [\"mesh\"]\n#TARN inout = [\"forcing:single\"]\ntrue\n";
    let job = parse(text).unwrap().unwrap();
    let named = job.parsed.workflow.data.iter();
    let named: Vec<_> = named
        .map(|d| (d.source.clone(), d.of.as_ref().map(ToString::to_string)))
        .collect();
    assert_eq!(
        named,
        [
            (None, Some("alice/foam/mesh".to_owned())),
            (None, Some("@climate/forcing".to_owned())),
        ]
    );
    // By itself too, if it names no other job.
    let alone = "#!/bin/sh\n#TARN data.forcing.project = \"climate\"\n#TARN data.mesh.of = \"@climate/mesh\"\n#TARN [[step]]\n#TARN in = [\"forcing\", \"mesh\"]\ntrue\n";
    assert!(parse(alone).unwrap().unwrap().is_alone);
    for (bad, code) in [
        ("data.x.of = \"../y\"", FindingCode::BadName),
        ("data.x.of = \"x\"", FindingCode::BadName),
        ("data.x.of = \".x\"", FindingCode::BadName),
        ("data.x.of = \"alice/w/\\u001b\"", FindingCode::BadName),
        ("data.x.project = \"a/b\"", FindingCode::BadName),
        (
            "data.x = { of = \"a/b/c\", source = \"/y\" }",
            FindingCode::BadValue,
        ),
        (
            "data.x = { of = \"a/b/c\", project = \"p\" }",
            FindingCode::BadValue,
        ),
        (
            "data.x = { project = \"p\", scatter = \"p{rank}\" }",
            FindingCode::BadValue,
        ),
    ] {
        let text = format!("#!/bin/sh\n#TARN {bad}\n#TARN [[step]]\n#TARN in = [\"x\"]\ntrue\n");
        assert_eq!(parse(&text).unwrap_err(), [code], "{bad}");
    }
    let text = "#!/bin/sh\n#TARN data.x = { project = \"p\", encrypt = true, size = \"1 MiB\" }\n#TARN [[step]]\n#TARN out = [\"x\"]\ntrue\n";
    assert!(parse(text).unwrap().unwrap().parsed.workflow.data[0].encrypt);
    for list in ["out", "inout"] {
        let text = format!(
            "#!/bin/sh\n#TARN data.x.of = \"a/b/c\"\n#TARN [[step]]\n#TARN {list} = [\"x\"]\ntrue\n"
        );
        assert_eq!(
            parse(&text).unwrap_err(),
            [FindingCode::SourceAsOutput],
            "{list}"
        );
    }
}

#[test]
fn a_chained_script_needs_no_name_and_no_line() {
    let read = |text| {
        let script = SbatchScript {
            name: "on.sh",
            text,
        };
        parse_job(&script, Path::new("/home/alice"), true)
            .expect("it makes sense")
            .expect("it is a part of a workflow")
    };
    let job = read("#!/bin/bash\n#TARN [[step]]\n#TARN in = [\"fields\"]\ntrue\n");
    assert!(job.is_alone);
    assert!(job.parsed.workflow.data[0].source.is_none());
    let job = read("#!/bin/bash\n#SBATCH -N3\ntrue\n");
    assert!(job.parsed.workflow.data.is_empty());
    assert_eq!(job.parsed.workflow.steps[0].nodes, 3);
}

#[test]
fn what_is_encrypted_and_made_by_a_job_needs_a_size() {
    let script = |more: &str| {
        let text = format!(
            "#!/bin/sh\n#TARN name = \"w\"\n{more}#TARN [[step]]\n#TARN in = [\"mesh\"]\n#TARN out = [\"secret\"]\ntrue\n"
        );
        check_site(&parse(&text).unwrap().unwrap().parsed)
    };
    assert!(script("").is_ok());
    assert!(script("#TARN data.secret.encrypt = false\n").is_ok());
    assert!(script("#TARN data.secret = { encrypt = true, size = \"1 MiB\" }\n").is_ok());
    let refused = script("#TARN data.secret.encrypt = true\n#TARN data.mesh.encrypt = true\n");
    let refused = refused.unwrap_err();
    let found: Vec<_> = refused
        .problems()
        .iter()
        .map(|finding| (finding.kind(), finding.position().map(|(line, _)| line)))
        .collect();
    let at = |line| (FindingCode::NoEncryption, Some(line));
    assert_eq!(found, [at(3)]);
    assert!(refused.problems()[0].hint().is_some());
}

#[test]
fn a_job_cannot_ask_a_site_to_overwrite() {
    let text = "#!/bin/sh\n#TARN erase = true\n#TARN data.x.source = \"/x\"\n#TARN [[step]]\n#TARN in = [\"x\"]\ntrue\n";
    let parsed = parse(text).unwrap().unwrap().parsed;
    assert!(parsed.workflow.erase);
    let refused = check_site(&parsed).unwrap_err();
    let found = &refused.problems()[0];
    assert_eq!(found.kind(), FindingCode::NoErasure);
    assert_eq!(found.position().map(|(line, _)| line), Some(2));
    assert!(found.hint().is_some_and(|hint| hint.contains("--erase")));
    let kept = parse(&text.replace("true\n#TARN data", "false\n#TARN data")).unwrap();
    assert!(check_site(&kept.unwrap().parsed).is_ok());
}

/// Slurm has the array, and calls tarn from slurmctld.
#[test]
fn of_a_long_array_one_element_is_enough() {
    let text = "#!/bin/sh\n#SBATCH --array=1-1000000\n#TARN data.x.source = \"/x\"\n#TARN [[step]]\n#TARN in = [\"x\"]\ntrue\n";
    let parsed = parse(text).unwrap().unwrap().parsed;
    let one = tarn_types::workflow::Foreach::Values(vec!["1".into()]);
    assert_eq!(parsed.workflow.steps[0].foreach, Some(one));
}

#[test]
fn what_would_keep_a_site_busy_is_refused_with_its_bound() {
    let script = |datasets: usize| {
        let lines = (0..datasets).map(|at| format!("#TARN data.d{at}.size='1 B'\n"));
        let lines: String = lines.collect();
        let last = datasets - 1;
        format!(
            "#!/bin/sh\n#TARN name = \"w\"\n{lines}#TARN [[step]]\n#TARN out = [\"d{last}\"]\ntrue\n"
        )
    };
    assert!(parse(&script(1024)).unwrap().is_some());
    let why = |text: &str| {
        let script = SbatchScript {
            name: "job.sh",
            text,
        };
        let refused = parse_job(&script, Path::new("/home/alice"), false).unwrap_err();
        let found = &refused.problems()[0];
        assert_eq!(found.kind(), FindingCode::TooLarge);
        format!("{}: {}", found.message(), found.hint().unwrap_or_default())
    };
    let many = why(&script(1025));
    assert!(
        many.contains("1025 datasets") && many.contains("at most 1024"),
        "{many}"
    );
    let long = why(&script(10_000));
    assert!(
        long.contains("lines have") && long.contains("at most 65536"),
        "{long}"
    );
    // Other lines do not count.
    let text = format!(
        "#!/bin/sh\n# {}\n{}",
        "x".repeat(100_000),
        script(2).replace("#!/bin/sh\n", "")
    );
    assert!(parse(&text).unwrap().is_some());
}
