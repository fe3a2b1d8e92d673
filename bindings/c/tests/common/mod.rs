//! Programs that are compiled against the library; the tests of tarnd use this too.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// A file of the library's crate, or (from `../..` on) of the repository.
pub(crate) fn source(name: &str) -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    root.join("bindings/c").join(name)
}

/// The folder in which cargo has put the library: beside this test, or one folder up.
pub(crate) fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let near = own.ancestors().skip(1).take(2);
    let mut found = near.filter(|folder| folder.join("libtarn.so").exists());
    found.next().expect("libtarn.so").to_owned()
}

/// A compiler, warnings being errors, that makes a program of these files and the library.
pub(crate) fn compiler(name: &str, flags: &[&str], files: &[&str], to: &Path) -> Command {
    let folder = library();
    let mut command = Command::new(name);
    command
        .args(["-Wall", "-Wextra", "-Werror", "-g", "-O1"])
        .args(flags)
        .arg("-I")
        .arg(source("include"))
        .args(files.iter().map(|file| source(file)))
        .arg("-o")
        .arg(to)
        .arg("-L")
        .arg(&folder)
        // This library, even if the environment offers another.
        .arg(format!(
            "-Wl,--disable-new-dtags,-rpath,{}",
            folder.display()
        ))
        .args(["-ltarn", "-lpthread"]);
    command
}

/// The output of a command that succeeds.
pub(crate) fn output_of(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    assert!(status.success(), "{command:?}: {text}");
    text
}
