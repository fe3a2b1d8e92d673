//! False job files and stores, tasks that want more than they have, and jobs that end badly.

use crate::site::{ALICE, SOON, Site, alices, lines, text};
use std::collections::BTreeSet;
use std::fs;
use tarn_tests::slurm::wait_until;

/// False job files and stores: no task of such a job begins.
#[test]
fn attack_files_and_stores_that_lie() {
    let Some(site) = Site::up(1, "tmpfs", "required") else {
        return;
    };
    site.root(
        1,
        "cd /scm/tarn/u7001/d/foam
        ln -s /etc out; ln -s mesh within; ln -s ../../../u7002 up
        install -d -o bob -g bob stolen; install -o bob -g alice -m 644 grid his; ln his linked
        install -d -o alice over; mount -t tmpfs -o uid=7001 over over; mkdir over/x; chown alice over/x
        mkfifo -m 644 pipe; chown alice pipe; install -d -o alice -g bob /scm/tarn/p7001/his",
    );
    let of = |mount: &str| text(ALICE, &[mount]);
    let good = alices();
    let many: Vec<String> = (0..1025)
        .map(|i| format!("ro d{i} u7001 u7001/d/foam/mesh"))
        .collect();
    let many = text(ALICE, &many.iter().map(String::as_str).collect::<Vec<_>>());
    // The file, the command on it as $f, and the reason.
    let cases: Vec<(String, &str, &str)> = vec![
        (
            of("ro x u7001 u7001/d/foam/out"),
            "",
            "a symbolic link in u7001/d/foam/out",
        ),
        (of("ro x u7001 u7001/d/foam/out/ssh"), "", "a symbolic link"),
        (
            of("ro x u7001 u7001/d/foam/within/points"),
            "",
            "a symbolic link",
        ),
        (of("rw x u7001 u7001/d/foam/up/j"), "", "a symbolic link"),
        (
            of("ro x u7001 u7001/../u7002/d"),
            "",
            "line 4: this is no path below the store",
        ),
        (
            of("ro x u7001 u7002/d"),
            "",
            "line 4: the path is not in the folder of its owner",
        ),
        (
            of("rw x u7002 u7002/j"),
            "",
            "line 4: data of another user to be written",
        ),
        (
            of("ro x/y u7001 u7001/d"),
            "",
            "line 4: this is no name of a dataset",
        ),
        (
            of("ro x u7001 u7001/d/foam/stolen"),
            "",
            "u7001/d/foam/stolen is not of user 7001",
        ),
        (
            of("ro x u7001 u7001/d/foam/linked"),
            "",
            "u7001/d/foam/linked is not of user 7001",
        ),
        (
            of("ro x u7001 u7001/d/foam/pipe"),
            "",
            "is neither a folder nor a file",
        ),
        (
            of("ro x u7001 u7001/d/foam/over/x"),
            "",
            "over another mount",
        ),
        (
            of("ro x u7001 u7001/d/gone"),
            "",
            "u7001/d/gone cannot be opened: No such file",
        ),
        (
            of("rw x p7001 p7001/his"),
            "",
            "p7001/his is not of group 7001",
        ),
        (
            good.replace("/scm/tarn", "/scm"),
            "",
            "/scm is not root's alone",
        ),
        (
            good.replace("/scm/tarn", "/proc/self/root/scm/tarn"),
            "",
            "a symbolic link in /proc/self/root",
        ),
        (
            good.replace("7001\nroot", "7002\nroot"),
            "",
            "data of another user",
        ),
        (text(7002, &[]), "", "this is user 7001's"),
        (many, "", "more than 1024 mounts"),
        ("x".repeat(300 << 10), "", "more than 262144 bytes"),
        ("\u{1}\u{2}nothing".to_owned(), "", "byte 0 is no text"),
        (String::new(), "", "it ends before line 3"),
        (
            good.clone(),
            "chown alice $f",
            "it is no file that only root can read and write",
        ),
        (good.clone(), "chmod 644 $f", "it is no file that only root"),
        (
            good.clone(),
            "mv $f /run/moved; ln -s /run/moved $f",
            "a symbolic link in it",
        ),
        (
            good.clone(),
            "rm $f; mkfifo -m 600 $f",
            "it is no file that only root",
        ),
        (
            good,
            "rm $f; mkdir -m 600 $f",
            "it is no file that only root",
        ),
    ];
    let jobs: Vec<String> = cases
        .iter()
        .map(|(file, act, _)| {
            let job = site.held("alice", &[], "echo it began");
            site.job_file(&job, file);
            site.root(1, &format!("f=/run/tarn/jobs/{job}; {act}"));
            job
        })
        .collect();
    site.release(&jobs);
    for (job, (file, act, reason)) in jobs.iter().zip(&cases) {
        let out = site.ended("alice", job, "FAILED");
        let file = &file[..file.len().min(200)];
        assert!(
            out.contains("error: tarn: the task does not start: "),
            "{file}{act}: {out}"
        );
        assert!(
            out.contains(reason) && !out.contains("it began"),
            "{reason}: {file}{act}: {out}"
        );
    }
    // A step reports it too, and the node takes the next job.
    let job = site.held("alice", &[], "srun true");
    site.job_file(&job, &alices());
    site.root(1, "chmod 777 /run/tarn/jobs");
    site.release(std::slice::from_ref(&job));
    let out = site.ended("alice", &job, "FAILED");
    assert!(out.contains("/run/tarn/jobs is not root's alone"), "{out}");
    site.root(1, "chmod 700 /run/tarn/jobs");
    let out = site.run("alice", Some(&alices()), &[], "cat $TARN_grid");
    assert_eq!(out, "alice's grid\n");
    site.nothing_is_left(1);
}

/// A task that wants to write data that it may only read, or to see what is below; then jobs that end badly.
#[test]
fn attack_mounts_from_within_and_end_badly() {
    let Some(site) = Site::up(1, "tmpfs", "required") else {
        return;
    };
    from_within(&site);

    let script = "echo $PPID > /shared/stepd.$SLURM_JOB_ID; echo $$ > /shared/task.$SLURM_JOB_ID; exec sleep 300";
    let jobs = [(); 2].map(|()| site.held("alice", &[], script));
    for job in &jobs {
        site.job_file(job, &alices());
    }
    site.release(&jobs);
    let number = |what: &str, job: &str| {
        let path = site.shared(&format!("{what}.{job}"));
        fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .to_owned()
    };
    wait_until("both run", SOON, || {
        jobs.iter().all(|job| !number("task", job).is_empty())
    })
    .expect("both");
    let seen = |job: &str| {
        site.root(
            1,
            &format!(
                "grep -c /run/tarn/data /proc/{}/mountinfo",
                number("task", job)
            ),
        )
    };
    for job in &jobs {
        assert_eq!(seen(job), "5");
    }
    site.user("alice", &["scancel", &jobs[0]]);
    // As its parent is no more, the task continues; and then it is killed as well.
    site.root(1, &format!("kill -9 {}", number("stepd", &jobs[1])));
    assert_eq!(seen(&jobs[1]), "5");
    site.root(1, &format!("kill -9 {}", number("task", &jobs[1])));
    site.nothing_is_left(1);
    site.user("root", &["scancel", &jobs[1]]);
}

/// A user's attempts, with and without a user namespace.
fn from_within(site: &Site) {
    let script = r#"
        fails() { if "$@" 2> /dev/null; then echo "went through: $*"; fi; }
        try() {
            fails umount $TARN_mesh; fails umount $TARN_fields; fails umount /run/tarn/data
            fails umount -l $TARN_mesh; fails umount -l /run/tarn/data
            fails mount -o remount,rw,bind $TARN_mesh; fails mount -o remount,rw,bind /run/tarn/data
            fails mount -o remount,suid,dev,bind $TARN_fields; fails mount -o remount,rw $TARN_mesh
            fails touch $TARN_mesh/new; fails rm $TARN_mesh/points; fails mv $TARN_mesh/points $TARN_fields
            fails ln $TARN_mesh/points $TARN_fields/points; fails chmod 777 $TARN_mesh
            fails touch /run/tarn/data/new; fails rmdir $TARN_mesh; fails mv $TARN_mesh /run/tarn/data/other
            fails ls /run/tarn/jobs; fails ls /scm/tarn
        }
        export -f fails try
        try
        if unshare -Urm true; then echo namespaces; unshare -Urm bash -c 'try; echo inside'; fi
        grep -o ' /run/tarn/data[^ ]* [^ ]*' /proc/self/mountinfo"#;
    let script_file = site.shared("within");
    fs::write(&script_file, script).expect("a script");
    let out = site.run("alice", Some(&alices()), &[], "bash /shared/within");
    if !out.contains("namespaces\n") {
        eprintln!("SKIPPED: no user namespaces in a job here");
    }
    let mounts = BTreeSet::from([
        "/run/tarn/data ro,nosuid,nodev,noexec,relatime",
        "/run/tarn/data/mesh ro,nosuid,nodev,relatime",
        "/run/tarn/data/grid ro,nosuid,nodev,relatime",
        "/run/tarn/data/fields rw,nosuid,nodev,relatime",
        "/run/tarn/data/ours rw,nosuid,nodev,relatime",
    ]);
    let mut output = lines(&out);
    assert_eq!(
        output.remove("inside"),
        output.remove("namespaces"),
        "{out}"
    );
    assert_eq!(output, mounts, "{out}");
}
