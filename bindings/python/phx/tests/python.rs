//! The package in Debian's Python, laid out as a wheel is.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..")
}

/// A folder with the package in it: its files, and the library that cargo has put beside this test or one folder up.
fn installed(folder: &Path) {
    let package = folder.join("phx");
    std::fs::create_dir(&package).unwrap();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/phx");
    for file in ["__init__.py", "objects.py"] {
        std::fs::copy(source.join(file), package.join(file)).unwrap();
    }
    let own = std::env::current_exe().unwrap();
    let near = own.ancestors().skip(1).take(2);
    let mut built = near.map(|folder| folder.join("libtarn_phx.so"));
    let built = built.find(|library| library.exists());
    let built = built.expect("libtarn_phx.so: cargo build -p tarn-python");
    std::os::unix::fs::symlink(built, package.join("_phx.abi3.so")).unwrap();
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
    pass("test_phx.py");
}

#[test]
fn the_tests_of_objects_in_python_pass() {
    pass("test_objects.py");
}

/// What README.md prints as Python runs as it is printed, and goes on where it was.
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
import phx

class Killed(phx.Checkpoints):
    left = int(sys.argv[1])

    def commit(self):
        super().commit()
        Killed.left -= 1
        if Killed.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

phx.Checkpoints = Killed
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
    let store = folder.path().join("store");
    std::fs::create_dir(&store).unwrap();
    let told = Command::new("/usr/bin/python3")
        .args(["-B", "-W", "error::ResourceWarning"])
        .arg(&program)
        .env("PYTHONPATH", folder.path())
        .env("TARN_OBJECTS", &store)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&told.stdout);
    assert_eq!(text, "1 (300, 400) 60000.0 9\n", "{told:?}");
}

/// The stubs name what there is.
#[test]
fn the_stubs_are_of_this_package() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/phx");
    let names = |file: &str| -> Vec<String> {
        let text = std::fs::read_to_string(folder.join(file)).unwrap();
        let mut found: Vec<String> = text
            .lines()
            .filter_map(|line| {
                let line = line.trim_start();
                let rest = line.strip_prefix("class ").or(line.strip_prefix("def "))?;
                let name = rest.split(['(', ':']).next()?;
                (!name.starts_with('_') || name.starts_with("__")).then(|| name.to_owned())
            })
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    };
    assert_eq!(names("objects.py"), names("objects.pyi"));
    let own = names("__init__.py");
    let stubs = names("__init__.pyi");
    let only_in_one = |a: &[String], b: &[String]| -> Vec<String> {
        a.iter().filter(|n| !b.contains(n)).cloned().collect()
    };
    assert_eq!(only_in_one(&own, &stubs), ["__reduce__", "__str__"]);
    assert_eq!(
        only_in_one(&stubs, &own),
        ["ObjectInfo", "Shape", "VersionInfo"]
    );
}
