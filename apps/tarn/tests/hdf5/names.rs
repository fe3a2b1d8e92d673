//! The names of files, and the names that programs print for a file that cannot be had.

use crate::fixture::Fixture;
use crate::linked::output_of;
use std::fs;

#[test]
fn two_files_of_one_name_in_two_folders_are_two() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let text = "
import os
os.makedirs('r1')
os.symlink('r1', 'link')
for i in 0, 1:
    with h5py.File(f'r{i}/out.h5', 'w') as file:
        file['x'] = [i] * 10
# By another way to the same folder, as its path, and from within it.
assert h5py.File('link/out.h5')['x'][0] == 1
assert h5py.File('./r0/../r1/out.h5')['x'][0] == 1
assert h5py.File(os.path.abspath('r0/out.h5'))['x'][0] == 0
os.chdir('r1')
assert h5py.File('out.h5')['x'][0] == 1
assert h5py.File('../r0/out.h5')['x'][0] == 0
with h5py.File('/no/such/out.h5', 'w') as file:
    file['x'] = [2]
print('two')
";
    let place = fixture.path("shm");
    assert_eq!(fixture.run("new", &["--folder", &place], text), "two\n");
    let listed = fixture.h5(&["ls", "shm"]);
    let names: Vec<_> = listed
        .lines()
        .filter_map(|line| line.split("  ").next())
        .collect();
    assert_eq!(
        names,
        ["r0/out.h5", "r1/out.h5", "no/such/out.h5"],
        "{listed}"
    );
    fixture.h5(&["export", "shm/r1/out.h5", "one.h5"]);
    let read = "print(h5py.File('one.h5', driver='sec2')['x'][0])";
    assert_eq!(fixture.run("old", &["--folder", &place], read), "1\n");
    // A program that names the partition itself means that; and one elsewhere what it would mean here.
    let itself = format!("print(h5py.File('{place}/r0/out.h5')['x'][0])");
    assert_eq!(fixture.run("old", &["--folder", &place], &itself), "0\n");
    let base = format!("base={}", fixture.dir.path().display());
    let mut elsewhere = fixture.script(
        "old",
        &["--folder", &place, "--set", &base],
        &format!(
            "print(h5py.File('{}/r1/out.h5')['x'][0])",
            fixture.dir.path().display()
        ),
    );
    assert_eq!(output_of(elsewhere.current_dir("/")), "1\n");
    // A file that is not kept leaves no folder.
    let gone = ["--folder", &fixture.path("gone"), "--set", "keep=no"];
    fixture.run("new", &gone, "h5py.File('a/b/x', 'w')['y'] = 1");
    assert_eq!(fs::read_dir(fixture.path("gone")).unwrap().count(), 0);
}

#[test]
fn a_folder_may_be_named_from_here() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let text = "
import os
os.mkdir('below')
os.chdir('below')
h5py.File('../x', 'w')['a'] = 1
h5py.File('y', 'w')['a'] = 1
";
    fixture.run("new", &["--folder", "shm"], text);
    for (partition, file) in [("shm/x", "x"), ("./shm/below/y", "y")] {
        fixture.h5(&["export", partition, file]);
        fixture.h5(&["import", file, &format!("shm/again-{file}")]);
    }
    assert_eq!(fixture.h5(&["ls", "shm"]).lines().count(), 4);
    fixture.run(
        "old",
        &["--partition", "shm/again-x"],
        "assert 'a' in h5py.File('any')",
    );
}

/// As HDF5's own driver for files has it: programs except these.
#[test]
fn why_a_file_cannot_be_had_is_told_by_the_kind_of_the_exception() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let text = "
import os
def kind(name, mode):
    try:
        h5py.File(name, mode).close()
        return 'none'
    except Exception as e:
        assert 'errno = ' in str(e) and '(os error' not in str(e), e
        return f'{type(e).__name__}:{e.errno}'
print(kind('f.h5', 'r'), kind('f.h5', 'r+'), kind('f.h5', 'w'), kind('f.h5', 'x'), kind('f.h5', 'w-'), kind('f.h5', 'r'))
print(kind('f.h5', 'a'), kind('g.h5', 'a'), kind('h.h5', 'x'))
file = h5py.File('f.h5', 'a')
if os.fork() == 0:
    os.closerange(3, 100)
    os.execv(os.sys.executable, ['python', '-c', 'import h5py\\ntry:\\n    h5py.File(\"f.h5\")\\nexcept BlockingIOError as e:\\n    print(e.errno)'])
os.wait()
";
    for which in ["old", "new"] {
        let place = fixture.path(which);
        let plain = fixture.path(&format!("{which}-plain"));
        fs::create_dir(&plain).unwrap();
        let mut sec2 = std::process::Command::new(fixture.python(which));
        let begin = "import h5py\n";
        sec2.args(["-c", &format!("{begin}{text}")])
            .current_dir(&plain);
        let output = output_of(&mut sec2);
        assert!(
            output.starts_with("FileNotFoundError:2 FileNotFoundError:2 none FileExistsError:17"),
            "{output}"
        );
        assert_eq!(fixture.run(which, &["--folder", &place], text), output);
    }
}

/// HDF5 does not ask a driver whether it can do that when a writer wants it.
#[test]
fn reading_while_it_is_written_is_refused_and_the_file_stays_whole() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let text = "
with h5py.File('x', 'w', libver='latest') as file:
    file['a'] = np.arange(5000)
    file['a'].attrs['unit'] = 'K'
    try:
        file.swmr_mode = True
    except Exception as e:
        print(e)
    file['b'] = [2]
    file.flush()
with h5py.File('x', 'a', libver='latest') as file:
    try:
        file.swmr_mode = True
    except Exception as e:
        print(e)
    file['c'] = [3]
with h5py.File('x', 'r') as file:
    print(sorted(file), file['a'][4999], file['a'].attrs['unit'])
try:
    h5py.File('x', 'r', swmr=True)
except OSError as e:
    print(e)
";
    for which in ["old", "new"] {
        let output = fixture.run(which, &["folder"], text);
        let lines: Vec<_> = output.lines().collect();
        let [one, two, whole, reader] = &lines[..] else {
            panic!("{output}")
        };
        for refused in [one, two] {
            assert!(
                refused.contains(
                    "SWMR is not supported in partitions: close the file after each step"
                ),
                "{output}"
            );
        }
        assert_eq!(*whole, "['a', 'b', 'c'] 4999 K");
        assert!(reader.contains("SWMR-compatible"), "{output}");
    }
}
