//! Programs that fork, and whose threads come at once, as they are and under sanitizers.

use super::{compiler, output_of};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The last line of such a program.
const WELL: &str = "each call was done or told, and nothing was lost\n";

/// Calls `run` for each build of a program and each of its modes, with the command that has that and the mode's folder, to which it adds
/// what it likes.
pub(crate) fn each_build(file: &str, folder: &Path, mut run: impl FnMut(Command, PathBuf, &str)) {
    let address = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    let thread = ["-fsanitize=thread"];
    // ThreadSanitizer lets no child of several threads live on, and AddressSanitizer's memory is locked in a child whose parent's
    // other threads allocated some.
    let builds: [(&str, &[&str], &[&str]); 3] = [
        ("plain", &[], &["fork", "churn", "threads"]),
        ("address", &address, &["fork", "threads"]),
        ("thread", &thread, &["threads"]),
    ];
    // It does not see how the library, which is not compiled for it, keeps its threads apart: it looks at the program only.
    let ignored = folder.join("ignored");
    std::fs::write(&ignored, "called_from_lib:libtarn.so\n").unwrap();
    for (name, extra, modes) in builds {
        let program = folder.join(name);
        let flags = [&["-std=c11", "-D_GNU_SOURCE", "-Wpedantic"], extra].concat();
        output_of(&mut compiler("cc", &flags, &[file], &program));
        for mode in modes {
            let mut command = Command::new(&program);
            command.env(
                "TSAN_OPTIONS",
                format!("suppressions={}", ignored.display()),
            );
            if *mode != "threads" {
                // A child has what its parent's threads have, and not the threads: that looks like a leak.
                command.env("ASAN_OPTIONS", "detect_leaks=0");
            }
            run(command, folder.join(format!("{name}.{mode}.d")), mode);
        }
    }
}

pub(crate) fn goes_well(command: &mut Command) {
    assert_eq!(output_of(command), WELL, "{command:?}");
}
