//! C programs with checkpoints and objects that fork, and whose threads come at once.

mod common;
#[path = "common/sanitized.rs"]
mod sanitized;

use common::{compiler, output_of};
use sanitized::{each_build, goes_well};
use std::process::Command;

/// Flags of phx.h: none; the caller copies; writes are tracked by mprotect.
const FLAGS: [&str; 3] = ["0", "4", "32"];

/// Children get an error for objects of their parent, at any moment of its other threads' work, and spoil nothing of it; threads
/// are served one after the other, or get an error; as far as sanitizers see the program's side.
#[test]
fn attack_forks_and_threads_get_a_code_and_lose_no_version_or_object() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    each_build(
        "tests/forks_phx.c",
        folder.path(),
        |mut command, dir, mode| {
            command.arg(&dir).arg(mode);
            // A helper thread may be asking for AddressSanitizer's memory when the program forks, which is locked in the child then.
            let forks_in_address_sanitizer = dir.ends_with("address.fork.d");
            let all = FLAGS.into_iter();
            for flags in all.filter(|flags| !forks_in_address_sanitizer || *flags == "4") {
                std::fs::create_dir_all(dir.join("store")).unwrap();
                goes_well(command.env("FLAGS", flags));
                std::fs::remove_dir_all(&dir).unwrap();
            }
        },
    );
}

/// A child that is forked while other threads make the library's first calls waits for none of them.
#[test]
fn attack_forks_in_the_first_calls_end() {
    /// One in eight hung where those calls were a `Once`.
    const PROGRAMS: usize = 60;
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let program = folder.path().join("first");
    let flags = ["-std=c11", "-D_GNU_SOURCE", "-Wpedantic"];
    output_of(&mut compiler(
        "cc",
        &flags,
        &["tests/forks_phx.c"],
        &program,
    ));
    for n in 0..PROGRAMS {
        let dir = folder.path().join(n.to_string());
        std::fs::create_dir_all(dir.join("store")).unwrap();
        goes_well(Command::new(&program).arg(&dir).arg("begin"));
    }
}
