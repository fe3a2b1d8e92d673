//! Steps that go on from their checkpoints, with real programs that are really killed.

mod common;

use common::{Ran, Site, send, until};
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A site whose step `add` runs the program with these arguments.
fn site(step: &str, arguments: &str) -> Site {
    let site = Site::new(&format!(
        "name = \"sums\"\n[data.result]\ndest = \"result\"\n[[step]]\nname = \"add\"\nrestart = \"phx\"\n\
         checkpoints = \"8 MiB\"\nout = [\"result\"]\nrun = \"add {arguments}\"\n{step}"
    ))
    .with(&["--nodes", "2"]);
    compile(&site.path("add"));
    site
}

/// Compiles the program against libtarn, which cargo has built as a dependency of these tests.
fn compile(to: &Path) {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let own = std::env::current_exe().expect("this program");
    let library = own.ancestors().find(|a| a.join("libtarn.so").exists());
    let library = library.expect("libtarn.so is near this program");
    let output = Command::new("cc")
        .args([
            "-std=c11",
            "-D_POSIX_C_SOURCE=200809L",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-I",
        ])
        .arg(here.join("../libtarn/include"))
        .arg(here.join("tests/restart.c"))
        .arg("-o")
        .arg(to)
        .arg("-L")
        .arg(library)
        .arg(format!(
            "-Wl,--disable-new-dtags,-rpath,{}",
            library.display()
        ))
        .arg("-ltarn")
        .output()
        .expect("cc starts");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// What the attempts of the newest run have printed.
fn printed(site: &Site) -> Vec<String> {
    let mut runs: Vec<PathBuf> = fs::read_dir(site.path(".tarn/runs"))
        .expect("runs")
        .map(|e| e.expect("an entry").path())
        .collect();
    runs.sort();
    let steps = runs.last().expect("a run").join("steps");
    let attempt = |n: u32| fs::read_to_string(steps.join(format!("add-0.{n}.log"))).ok();
    (1..).map_while(attempt).collect()
}

/// What is staged in memory of this site's runs.
fn staged(site: &Site) -> PathBuf {
    let mut workspaces = fs::read_dir(site.path("tier")).expect("the tier");
    let found = workspaces.find_map(|e| {
        let name = e.expect("an entry").file_name();
        name.to_string_lossy().starts_with("sums-").then_some(name)
    });
    let user = rustix::process::geteuid().as_raw();
    let memory = PathBuf::from(format!("/dev/shm/tarn-phx-{user}"));
    memory.join(found.expect("a workspace"))
}

#[test]
fn a_step_that_is_killed_goes_on_from_its_newest_version_until_it_is_done() {
    let site = site("", "kill 25 1 kill 47 2");
    let ran = site.run().exits(0);
    assert_eq!(site.read("result/sum"), "1830\n");
    assert_eq!(
        printed(&site),
        ["from step 0\n", "from step 20\n", "from step 40\n"]
    );
    let ran = ran.says("add: restarted from version 1.2 (1st restart)");
    ran.says("add: restarted from version 2.4 (2nd restart)");
    site.leaves_nothing_on_its_tier();
}
