//! C programs with direct access to storage memory.

mod common;
#[path = "common/page.rs"]
mod page;

use common::{compiler, output_of, source};
use page::of_page;
use std::process::Command;

#[test]
fn a_program_writes_reads_counts_and_waits() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let program = folder.path().join("dsa");
    output_of(&mut compiler(
        "cc",
        &["-std=c11", "-D_XOPEN_SOURCE=700"],
        &["tests/dsa.c"],
        &program,
    ));
    assert_eq!(
        output_of(Command::new(&program).arg(folder.path()).arg("run")),
        "field has 1048576 bytes, 1 may have it\n\
         flushed: 42\n\
         1000 read, the same\n\
         readable before: 0\n\
         readable after: 1, 3 completions\n\
         0 5 9 \n\
         the request is not valid\n\
         the task was cancelled\n"
    );
    // A process that writes beyond the limit by a system call is killed.
    assert_eq!(
        output_of(Command::new(&program).arg(folder.path()).arg("limited")),
        "written all the same\n"
    );
}

#[test]
fn misuse_is_told_by_codes() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let checked = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    for (name, extra) in [("plain", &[][..]), ("checked", &checked)] {
        let program = folder.path().join(name);
        let flags = [&["-std=c11", "-Wpedantic", "-D_XOPEN_SOURCE=700"], extra];
        output_of(&mut compiler(
            "cc",
            &flags.concat(),
            &["tests/dsa.c"],
            &program,
        ));
        let partitions = folder.path().join(format!("{name}.d"));
        std::fs::create_dir(&partitions).unwrap();
        let text = output_of(Command::new(&program).arg(partitions).arg("misuse"));
        assert_eq!(text, "all misuse is told\n", "{name}");
    }
}

/// The C program in docs/guide/direct-access.md runs as it is printed.
#[test]
fn the_page_shows_a_program_that_works() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let program = of_page("guide/direct-access.md", folder.path());
    let text = output_of(Command::new(&program).arg(folder.path().join("field")));
    assert_eq!(text, "no error, 8\nno error, 0\n");
}

/// A program forks in the middle of requests, and its threads come at once to an object of one thread: each call is done or gives
/// its code, and nothing is corrupted, as far as sanitizers see the program's side.
#[test]
fn attack_forks_and_threads_get_a_code_and_corrupt_nothing() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let address = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let thread = ["-fsanitize=thread"];
    let fork = ("fork", "children are told, and their parents' go on\n");
    let churn = ("churn", "no child waits for a call of its parent's\n");
    let threads = ("threads", "each call was done or told\n");
    // ThreadSanitizer lets no child of several threads live on, and AddressSanitizer's memory is locked in a child whose parent's
    // other threads allocated some.
    type Modes<'a> = &'a [(&'a str, &'a str)];
    let builds: [(&str, &[&str], Modes<'_>); 3] = [
        ("plain", &[], &[fork, churn, threads]),
        ("address", &address, &[fork, threads]),
        ("thread", &thread, &[threads]),
    ];
    // It does not see how the library, which is not compiled for it, keeps its threads apart: it looks at the program only.
    let ignored = folder.path().join("ignored");
    std::fs::write(&ignored, "called_from_lib:libtarn.so\n").unwrap();
    let ignored = format!("suppressions={}", ignored.display());
    for (name, extra, modes) in builds {
        let program = folder.path().join(name);
        let flags = [&["-std=c11", "-D_GNU_SOURCE"], extra].concat();
        output_of(&mut compiler("cc", &flags, &["tests/forks.c"], &program));
        for (mode, wanted) in modes {
            let partitions = folder.path().join(format!("{name}.{mode}.d"));
            std::fs::create_dir(&partitions).unwrap();
            let mut run = Command::new(&program);
            run.env("TSAN_OPTIONS", &ignored);
            if *mode != "threads" {
                // A child has what its parent's threads have, and not the threads: that looks like a leak.
                run.env("ASAN_OPTIONS", "detect_leaks=0");
            }
            let text = output_of(run.arg(&partitions).arg(mode));
            assert_eq!(text, *wanted, "{name} {mode}");
        }
    }
}
