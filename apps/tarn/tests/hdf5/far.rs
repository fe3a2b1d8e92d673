//! Files in dataspaces of tarnd, of this node and of another one.

use crate::fixture::{FULL, Fixture, HOLDS, READS, is_full_and_whole};
use crate::linked::output_of;
use crate::nodes::{pair, pairs};
use crate::{rich, same};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Opens it in all ways.
const TRIES: &str = "
for mode in 'r', 'r+', 'w':
    try:
        h5py.File('x', mode)
    except OSError as e:
        print(e)
";
/// Whether windows were thought of.
const MEANS: &str = "print('libtarnfabric.so' in open('/proc/self/maps').read())";

/// In memory and on a disk, by the names of this node's tarnd and of another's.
#[test]
fn files_lie_in_dataspaces_of_this_node_and_of_another() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let plain = fixture.path("plain");
    output_of(Command::new(fixture.python("new")).args(["-c", &rich(&plain)]));
    for (nodes, windows) in pairs() {
        let [here, there] = nodes.each_ref().map(|node| fixture.on(node));
        lie_in_dataspaces(&here, &there, &plain);
        // Its own maps show by what means it has read.
        let text = format!("file = h5py.File('result.h5')\n{MEANS}");
        let output = here.run("new", &["--folder", "b:fast/run"], &text);
        assert_eq!(output, if windows { "True\n" } else { "False\n" });
    }
}

fn lie_in_dataspaces(here: &Fixture, there: &Fixture, plain: &str) {
    for folder in ["fast", "disk/run", "b:fast/run", "b:disk"] {
        let file = format!("{folder}/result.h5");
        let config = ["--folder", folder];
        here.run("new", &config, &rich("result.h5"));
        let listed = here.h5(&["ls", folder]);
        assert!(
            listed.starts_with("result.h5  ") && listed.contains("changed 2 times"),
            "{folder}: {listed}"
        );
        assert_eq!(here.h5(&["wait", &file, "--newer-than", "1"]), "2\n");
        same(
            here,
            &file,
            &here.path(&file.replace([':', '/'], "-")),
            plain,
        );
        let copy = format!("{folder}/copy.h5");
        here.h5(&["import", plain, &copy]);
        let again = file.replace([':', '/'], "-again-");
        here.h5(&["export", &copy, &again]);
        let read = |path: &str| std::fs::read(path).unwrap();
        assert!(read(&here.path(&again)) == read(plain), "{folder}");
    }
    // That node calls them otherwise.
    let text = "print(len(h5py.File('result.h5')))";
    assert_eq!(there.run("new", &["--folder", "fast/run"], text), "9\n");
    assert_eq!(there.run("new", &["--folder", "a:disk/run"], text), "9\n");
    let output = here.fails("new", &["--folder", "c:fast"], "h5py.File('x', 'w')");
    assert!(output.contains("not one that this tarnd knows"), "{output}");
    let output = here.fails("new", &["--folder", "b:none"], "h5py.File('x', 'w')");
    assert!(output.contains("no dataspace `none`"), "{output}");
}

/// The distributed memory of several nodes.
#[test]
fn a_file_lies_in_the_memory_of_two_nodes_block_by_block() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let nodes = pair();
    let [here, there] = nodes.each_ref().map(|node| fixture.on(node));
    let config = |one, other| {
        [
            "--partition",
            one,
            "--partition",
            other,
            "--set",
            "block=64K",
        ]
    };
    let plain = fixture.path("plain");
    output_of(Command::new(fixture.python("new")).args(["-c", &rich(&plain)]));
    here.run("new", &config("fast/p", "b:fast/p"), &rich("any"));
    let list = "print(len(h5py.File('any')))";
    // In the same order, on every node that names them.
    assert_eq!(there.run("old", &config("a:fast/p", "fast/p"), list), "9\n");
    let output = there.fails("old", &config("fast/p", "a:fast/p"), list);
    assert!(output.contains("is number 2 of 2 partitions"), "{output}");
    same(&there, "a:fast/p,fast/p", &there.path("exported"), &plain);
    // In memory and on a disk, in units.
    here.h5(&["import", &plain, "b:disk/q,fast/q", "--block", "128 KiB"]);
    here.h5(&["export", "b:disk/q,fast/q", "again"]);
    let read = |path: &str| std::fs::read(path).unwrap();
    assert!(read(&here.path("again")) == read(&plain));
    let output = here.refused(&["import", &plain, "fast/z,b:disk/q", "--block", "128 KiB"]);
    assert!(output.contains("is there already"), "{output}");
    // The first of them is not left behind.
    let listed = nodes[0].tarn(&["partition", "ls", "fast"]);
    assert_eq!(listed.lines().count(), 2, "{listed}");
}

#[test]
fn a_writer_of_one_node_keeps_programs_of_the_other_out() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let nodes = pair();
    let [here, there] = nodes.each_ref().map(|node| fixture.on(node));
    let (near, far) = (["--folder", "fast"], ["--folder", "b:fast"]);
    let timeout = |config: [&'static str; 2]| [config[0], config[1], "--set", "timeout=60s"];
    for (writer, own, other, others) in [(&there, near, &here, far), (&here, far, &there, near)] {
        let writes = writer.begin("old", &own, HOLDS);
        let output = other.run("new", &others, TRIES);
        assert_eq!(output.matches("is open elsewhere").count(), 3, "{output}");
        // A reader that waits gets the file, and the data that was written meanwhile.
        let mut waits = other.script("new", &timeout(others), READS);
        let waits = waits.stdout(Stdio::piped()).spawn().unwrap();
        assert_eq!(writes.end(), "");
        let read = waits.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&read.stdout), "2\n");
        // A dead one has no lock, once its node or its stream has noticed.
        let mut writes = writer.begin("new", &timeout(own), HOLDS);
        writes.child.kill().unwrap();
        writes.child.wait().unwrap();
        assert_eq!(other.run("old", &timeout(others), READS), "1\n");
        let text = "with h5py.File('x', 'a') as file:\n    file['a'][:] = 3";
        other.run("new", &timeout(others), text);
        assert_eq!(writer.run("new", &timeout(own), READS), "3\n");
    }
}

#[test]
fn a_reader_takes_each_change_of_a_writer_of_another_node() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let nodes = pair();
    let [here, there] = nodes.each_ref().map(|node| fixture.on(node));
    let writes = "
for step in range(5):
    with h5py.File('x', 'a') as file:
        file.require_dataset('a', (100000,), 'i4')[:] = step
";
    let reads = "
last = -1
while last < 4:
    with h5py.File('x', 'r') as file:
        now = file['a'][0]
        assert now > last and (file['a'][:] == now).all()
        last = now
print(last)
";
    let wait = ["--folder", "b:fast", "--set", "wait=newer"];
    let mut reader = here.script("new", &wait, reads);
    let reader = reader.stdout(Stdio::piped()).spawn().unwrap();
    there.run("old", &["--folder", "fast", "--set", "timeout=60s"], writes);
    let read = reader.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&read.stdout), "4\n");
}

#[test]
fn a_program_that_is_killed_in_the_middle_leaves_what_it_has_flushed() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let nodes = pair();
    let here = fixture.on(&nodes[0]);
    let begins = "
import sys
file = h5py.File('x', 'w')
file['a'] = np.full(1 << 16, 7)
file.flush()
rest = file.create_dataset('b', (1 << 20,), 'f8')
print('ready', flush=True)
while True:
    rest[:] = 1
";
    for folder in ["disk", "b:fast", "b:disk"] {
        let config = ["--folder", folder, "--set", "timeout=60s"];
        let mut writer = here.begin("old", &config, begins);
        std::thread::sleep(Duration::from_millis(20));
        writer.child.kill().unwrap();
        writer.child.wait().unwrap();
        // Flushed data is there; HDF5 itself judges the rest.
        let text = "
try:
    with h5py.File('x', 'r') as file:
        assert (file['a'][:] == 7).all()
    print('whole')
except (OSError, KeyError) as e:
    print(e)
";
        let output = here.run("new", &config, text);
        assert!(output == "whole\n", "{folder}: {output}");
        let anew = "h5py.File('x', 'w')['c'] = 5\nprint(sorted(h5py.File('x')))";
        assert_eq!(here.run("old", &config, anew), "['c']\n", "{folder}");
    }
}

/// Errors of HDF5, neither a crash nor a wait without an end; and a later program has the flushed data.
#[test]
fn a_program_whose_files_node_is_lost_gets_errors() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let [a, mut b] = pair();
    let here = fixture.on(&a);
    let text = "
import sys
file = h5py.File('x', 'a')
a = file.require_dataset('a', (1 << 16,), 'i4')
a[:] = 1
file.flush()
print('ready', flush=True)
sys.stdin.read()
for does in (lambda: a[:], lambda: a.__setitem__(slice(None), 2), file.flush):
    try:
        does()
        print('done')
    except OSError as e:
        print(e)
try:
    file.close()
except (OSError, RuntimeError) as e:
    print('close:', e)
try:
    h5py.File('x', 'a')
except OSError as e:
    print(e)
";
    for config in [
        &["--folder", "b:fast"][..],
        &["--folder", "b:disk"],
        &[
            "--partition",
            "fast/one",
            "--partition",
            "b:fast/one",
            "--set",
            "block=4K",
        ],
    ] {
        let program = here.begin("new", config, text);
        b.kill();
        let since = Instant::now();
        let output = program.end();
        for why in ["cannot read ", "cannot write to ", "cannot be reached"] {
            assert!(output.contains(why), "{config:?}: {output}");
        }
        assert!(since.elapsed() < Duration::from_secs(60), "{output}");
        b.start();
        let reads = "print((h5py.File('x', 'r')['a'][:] >= 1).all())";
        assert_eq!(here.run("old", config, reads), "True\n", "{config:?}");
    }
}

#[test]
fn a_full_dataspace_of_another_node_fails_the_write_and_leaves_the_file_whole() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let nodes = pair();
    let here = fixture.on(&nodes[0]);
    is_full_and_whole(&here.run("new", &["--folder", "b:fast"], FULL));
}
