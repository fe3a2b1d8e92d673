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
            for flags in FLAGS {
                std::fs::create_dir_all(dir.join("store")).unwrap();
                goes_well(command.env("FLAGS", flags));
                std::fs::remove_dir_all(&dir).unwrap();
            }
        },
    );
}
