//! The package in Debian's Python, laid out as a wheel is.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Copies a folder, but for files that Python leaves in it.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (path, name) = entry.map(|e| (e.path(), e.file_name())).unwrap();
        match path.is_dir() {
            true if name != "__pycache__" => copy(&path, &to.join(name)),
            true => {}
            false => drop(std::fs::copy(&path, to.join(name)).unwrap()),
        }
    }
}

/// A folder with the package in it: its files, and the library that cargo has put beside this test or one folder up.
fn installed(folder: &Path) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("python");
    for package in ["tarn", "phx"] {
        copy(&source.join(package), &folder.join(package));
    }
    let own = std::env::current_exe().unwrap();
    let near = own.ancestors().skip(1).take(2);
    let mut built = near.map(|folder| folder.join("libtarn_python.so"));
    let built = built.find(|library| library.exists());
    let built = built.expect("libtarn_python.so: cargo build -p tarn-python");
    let library = folder.join("tarn/_native.abi3.so");
    drop(std::fs::remove_file(&library));
    std::os::unix::fs::symlink(built, library).unwrap();
    std::fs::create_dir(folder.join("store")).unwrap();
}

fn python(folder: &Path, arguments: &[&Path]) -> (bool, String) {
    let Output {
        status,
        stdout,
        stderr,
    } = Command::new("/usr/bin/python3")
        .args(["-B", "-W", "error::ResourceWarning"])
        .args(arguments)
        .env("PYTHONPATH", folder)
        .env("TARN_PHX_TIER", folder.join("tier"))
        .env("TARN_PHX_MEMORY", folder.join("memory"))
        .env("TARN_OBJECTS", folder.join("store"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    (status.success(), text)
}

fn pass(tests: &str) {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    installed(folder.path());
    let tests = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(tests);
    let (ok, text) = python(folder.path(), &[&tests]);
    assert!(ok && text.contains("\nOK"), "{text}");
}

#[test]
fn the_tests_in_python_pass() {
    pass("test_checkpoint.py");
}

#[test]
fn the_tests_of_objects_in_python_pass() {
    pass("test_objects.py");
}

#[test]
fn the_tests_of_the_package_in_python_pass() {
    pass("test_package.py");
}

#[test]
fn the_examples_in_docstrings_show_what_they_print() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    installed(folder.path());
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/doctests.py");
    let mut words = vec![program.as_path()];
    let modules = [
        "phx",
        "tarn._task_types",
        "tarn.checkpoint",
        "tarn.checkpoint._reader",
        "tarn.checkpoint._session",
        "tarn.checkpoint._shapes",
        "tarn.checkpoint._versions",
        "tarn.errors",
        "tarn.objects",
    ];
    words.extend(modules.map(Path::new));
    let (ok, text) = python(folder.path(), &words);
    assert!(ok && text.contains("\nOK"), "{text}");
}

/// The Python programs in README.md run as they are printed, and resume where they were.
#[test]
fn the_readme_goes_on_where_it_was() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    installed(folder.path());
    let readme = std::fs::read_to_string(root().join("README.md")).unwrap();
    let blocks = readme.split("```python\n").skip(1);
    let blocks: Vec<&str> = blocks.filter_map(|b| b.split("```").next()).collect();
    assert_eq!(blocks.len(), 1);
    let program = folder.path().join("program.py");
    std::fs::write(&program, blocks[0]).unwrap();
    let (ok, text) = python(folder.path(), &[&program]);
    assert!(ok && text.starts_with("from None, step 0\n"), "{text}");
    let (ok, again) = python(folder.path(), &[&program]);
    assert!(ok && again.starts_with("from 1.100, step 100\n"), "{again}");
    assert_eq!(text.lines().last(), again.lines().last());
}

/// The example's training ends with the same loss whether it was killed or not.
#[test]
fn training_that_is_killed_goes_on_where_it_was() {
    let example = root().join("examples/checkpoints/torch_state.py");
    let program = format!(
        "
import os, runpy, signal, sys
from tarn import checkpoint

class Killed(checkpoint.Checkpoints):
    left = int(sys.argv[1])

    def commit(self):
        super().commit()
        Killed.left -= 1
        if Killed.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

checkpoint.Checkpoints = Killed
sys.argv = ['torch_state.py', '60']
runpy.run_path({example:?}, run_name='__main__')
"
    );
    let there = Command::new("/usr/bin/python3")
        .args(["-c", "import torch"])
        .output()
        .unwrap();
    if !there.status.success() {
        eprintln!("SKIPPED: there is no PyTorch for /usr/bin/python3");
        return;
    }
    let begin = |folder: &Path, kill_after: &str| {
        let path = folder.join("program.py");
        std::fs::write(&path, &program).unwrap();
        python(folder, &[&path, Path::new(kill_after)])
    };
    let [whole, killed] = [(); 2].map(|()| tempfile::tempdir_in("/dev/shm").unwrap());
    installed(whole.path());
    installed(killed.path());
    let (ok, undisturbed) = begin(whole.path(), "0");
    assert!(
        ok && undisturbed.starts_with("from None, step 0\nstep 60, loss "),
        "{undisturbed}"
    );
    let (ok, text) = begin(killed.path(), "25");
    assert!(!ok && text == "from None, step 0\n", "{text}");
    let (ok, text) = begin(killed.path(), "0");
    assert!(ok && text.starts_with("from 1.25, step 25\n"), "{text}");
    // PyTorch 2.6 with Python 3.13 warns of its own temporary folders at the very end.
    let loss = |text: &str| {
        text.lines()
            .find(|l| l.starts_with("step 60, loss "))
            .map(str::to_owned)
    };
    assert!(loss(&text).is_some(), "{text}");
    assert_eq!(loss(&text), loss(&undisturbed));
}

/// And so does what docs/guide/objects.md prints.
#[test]
fn the_page_of_objects_shows_a_program_that_works() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    installed(folder.path());
    let page = std::fs::read_to_string(root().join("docs/guide/objects.md")).unwrap();
    let (_, block) = page.split_once("```python\n").unwrap();
    let program = folder.path().join("program.py");
    std::fs::write(&program, block.split_once("```").unwrap().0).unwrap();
    let (ok, text) = python(folder.path(), &[&program]);
    assert!(ok && text == "1 (300, 400) 60000.0 9\n", "{text}");
}
