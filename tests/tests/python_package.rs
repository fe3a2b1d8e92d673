//! The Python package over the command `tarn`: its tests, the examples in its docstrings, and its types.

use anyhow::{Context, ensure};
use std::path::Path;
use std::process::Command;
use tarn_tests::{programs, tree};

type Outcome = anyhow::Result<()>;

/// Runs a program of the package's tests with the package and the command.
fn pass(program: &str, arguments: &[&str]) -> Outcome {
    let folder = tempfile::tempdir()?;
    programs::python(folder.path())?;
    let tarn = programs::built("tarn")?;
    let bin = tarn.parent().context("a program in no folder")?;
    let path = std::env::var("PATH").unwrap_or_default();
    let tests = tree::root().join("bindings/python/tests");
    let output = Command::new("/usr/bin/python3")
        .args(["-B", "-W", "error::ResourceWarning"])
        .arg(tests.join(program))
        .args(arguments)
        .env("PYTHONPATH", folder.path())
        .env("PATH", format!("{}:{path}", bin.display()))
        .env_remove("TARN_STATE")
        .env_remove("TARN_PROGRAM")
        .output()?;
    let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    ensure!(output.status.success() && text.contains("\nOK"), "{text}");
    Ok(())
}

#[test]
fn the_tests_of_runs_and_data_pass() -> Outcome {
    let root = tree::root();
    pass("test_runs.py", &[root.to_str().context("its path")?])
}

#[test]
fn the_examples_of_runs_and_data_show_what_they_print() -> Outcome {
    pass("doctests.py", &["tarn.data", "tarn.runs"])
}

/// As `mypy --strict` sees them, also from a program that uses the package.
#[test]
fn its_types_are_whole() -> Outcome {
    let mypy = |folder: &Path, words: &[&str]| {
        Command::new("/usr/bin/python3")
            .args(["-m", "mypy", "--cache-dir=/dev/null"])
            .args(words)
            .current_dir(folder)
            .env("MYPYPATH", tree::root().join("bindings/python/python"))
            .output()
    };
    let folder = tempfile::tempdir()?;
    if !mypy(folder.path(), &["--version"])?.status.success() {
        eprintln!("SKIPPED: no mypy for /usr/bin/python3: scripts/deps.sh test installs it");
        return Ok(());
    }
    let own = mypy(&tree::root().join("bindings/python"), &[])?;
    ensure!(
        own.status.success(),
        "{}",
        String::from_utf8_lossy(&own.stdout)
    );
    let program = "import tarn\n\
        made: float = tarn.run('w.toml', nodes=4).makespan\n\
        with tarn.checkpoint.Checkpoints(run='a') as ck:\n    version: tarn.checkpoint.Version = ck.commit()\n\
        reveal_type(tarn.data.list())\n\
        tarn.run('w.toml', nodes='four')\n";
    std::fs::write(folder.path().join("program.py"), program)?;
    let output = mypy(folder.path(), &["--strict", "program.py"])?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    ensure!(text.contains("Dataset]\""), "{text}");
    ensure!(
        text.contains("Argument \"nodes\" to \"run\" has incompatible type \"str\""),
        "{text}"
    );
    ensure!(text.contains("Found 1 error"), "{text}");
    Ok(())
}
