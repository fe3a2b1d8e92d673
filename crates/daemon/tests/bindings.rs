//! C and Python programs against a real tarnd.

mod common;

use common::*;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Where cargo has put libtarn: it is built as a dependency of these tests.
fn library() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let deps = own.parent().unwrap();
    let built = [deps, deps.parent().unwrap()];
    let named = built.map(|folder| folder.join("libtarn.so"));
    let found = named.iter().find(|path| path.exists());
    found
        .unwrap_or_else(|| panic!("no libtarn.so near {}", own.display()))
        .clone()
}

fn run_all(command: &mut Command) -> String {
    let Output {
        status,
        stdout,
        stderr,
    } = command.output().unwrap();
    let text = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    assert!(status.success(), "{command:?}: {text}");
    text
}

fn compile(source: &Path, to: &Path) {
    let library = library();
    let folder = library.parent().unwrap();
    run_all(
        Command::new("cc")
            .args([
                "-std=c11",
                "-Wall",
                "-Wextra",
                "-Wpedantic",
                "-Werror",
                "-O1",
                "-I",
            ])
            .arg(root().join("crates/libtarn/include"))
            .arg(source)
            .arg("-o")
            .arg(to)
            .arg("-L")
            .arg(folder)
            // This library, whatever else the environment offers.
            .arg(format!(
                "-Wl,--disable-new-dtags,-rpath,{}",
                folder.display()
            ))
            .args(["-ltarn", "-lpthread"]),
    );
}

#[test]
fn the_c_example_and_the_c_test() {
    let (daemon, other) = pair(&[]);
    for source in ["examples/tasks/tasks.c", "crates/libtarn/tests/calls.c"] {
        let program = daemon.path("program");
        compile(&root().join(source), &program);
        let text = run_all(
            Command::new(&program)
                .arg(daemon.path("out"))
                .env("TARN_PEER", "b")
                .env("TARN_SOCKET", daemon.socket()),
        );
        assert!(
            text.contains("checkpoint saved: 8388608 bytes") || text.contains("all calls"),
            "{text}"
        );
    }
    assert_eq!(read(&daemon.path("fast/input")), b"the next input\n");
    assert_eq!(read(&other.path("fast/from-c")), b"from C");
}

/// The header is C++ as well.
#[test]
fn the_header_is_cpp() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("a.cc");
    std::fs::write(
        &source,
        "#include \"tarn.h\"\nint main() { return tarn_code_text(0) == nullptr; }\n",
    )
    .unwrap();
    run_all(
        Command::new("c++")
            .args(["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"])
            .arg(root().join("crates/libtarn/include"))
            .arg(&source),
    );
}

#[test]
fn the_python_tests_and_the_python_example() {
    let (daemon, other) = pair(&[]);
    for program in ["bindings/python/test_tarn.py", "examples/tasks/tasks.py"] {
        let text = run_all(
            Command::new("/usr/bin/python3")
                .arg("-B")
                .arg(root().join(program))
                .arg(daemon.path("out"))
                .env("TARN_SOCKET", daemon.socket())
                .env("TARN_PEER", "b")
                .env("TARN_LIBRARY", library())
                .env("PYTHONPATH", root().join("bindings/python")),
        );
        assert!(
            text.contains("OK") || text.contains("checkpoint saved: 8388608 bytes"),
            "{text}"
        );
    }
    assert_eq!(read(&other.path("fast/from-python")), b"from Python");
}
