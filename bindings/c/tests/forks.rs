//! C programs with checkpoints and objects that fork, and whose threads come at once.

mod common;
#[path = "common/sanitized.rs"]
mod sanitized;

use common::{compiler, said};
use sanitized::{each_build, goes_well};

/// Flags of phx.h: none; the caller copies; writes are tracked by mprotect.
const FLAGS: [&str; 3] = ["0", "4", "32"];

/// Children are refused what is their parent's, whatever its other threads are in the middle of, and spoil nothing of it; threads are served
/// one after the other, or told; as far as sanitizers see the program's side.
#[test]
fn attack_forks_and_threads_get_a_code_and_lose_no_version_or_object() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    each_build(
        "tests/forks_phx.c",
        folder.path(),
        |mut command, dir, mode| {
            command.arg(&dir).arg(mode);
            // A helper thread may be asking for AddressSanitizer's memory when the program forks, which is locked in the child then. And by
            // mprotect, one child in many that is forked while other threads are in calls does not end: not understood yet.
            let asks = dir.ends_with("address.fork.d");
            let all = FLAGS.into_iter();
            for flags in all.filter(|flags| match (asks, mode) {
                (true, _) => *flags == "4",
                (_, "churn") => *flags != "32",
                _ => true,
            }) {
                std::fs::create_dir_all(dir.join("store")).unwrap();
                goes_well(command.env("FLAGS", flags));
                std::fs::remove_dir_all(&dir).unwrap();
            }
        },
    );
}
