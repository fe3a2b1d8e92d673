//! C programs with objects.

mod common;
#[path = "common/page.rs"]
mod page;

use common::{compiler, output_of, source};
use page::of_page;
use std::process::Command;

#[test]
fn one_program_maps_what_another_has_filled() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let program = folder.path().join("objects");
    let store = folder.path().join("store");
    std::fs::create_dir(&store).unwrap();
    output_of(&mut compiler(
        "cc",
        &["-std=c11"],
        &["tests/objects.c"],
        &program,
    ));
    let run = |arguments: &[&str]| output_of(Command::new(&program).arg(&store).args(arguments));
    assert_eq!(run(&["put", "mesh/a", "10"]), "mesh/a 1\n");
    assert_eq!(run(&["put", "mesh/a", "1000000"]), "mesh/a 2\n");
    let sum: u64 = (0..1_000_000u64).map(|i| (i * 7) & 255).sum();
    assert_eq!(
        run(&["sum", "mesh/a"]),
        format!("mesh/a 2 1000000 sevens {sum}\n")
    );
}

#[test]
fn misuse_of_objects_is_told_by_codes() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    for (name, extra) in [
        ("plain", &[][..]),
        (
            "asan",
            &["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
        ),
    ] {
        let program = folder.path().join(name);
        let flags = [&["-std=c11", "-Wpedantic"], extra].concat();
        output_of(&mut compiler("cc", &flags, &["tests/objects.c"], &program));
        let store = folder.path().join(format!("{name}.d"));
        std::fs::create_dir(&store).unwrap();
        let mut command = Command::new(&program);
        command.arg(&store).arg("misuse");
        let text = output_of(command.env_remove("TARN_OBJECTS").env_remove("TARN_SOCKET"));
        assert!(text.contains("all misuse is told"), "{name}: {text}");
    }
}

/// The C program in docs/guide/objects.md runs as it is printed.
#[test]
fn the_page_shows_a_program_that_works() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let program = of_page("guide/objects.md", folder.path());
    let store = folder.path().join("store");
    std::fs::create_dir(&store).unwrap();
    let run = || output_of(Command::new(&program).env("TARN_OBJECTS", &store));
    assert_eq!(run(), "version 1: 1000 doubles, the last is 999\n");
    assert_eq!(run(), "version 2: 1000 doubles, the last is 999\n");
}
