//! Programs that share files, and bad days.

use crate::fixture::{FULL, Fixture, HOLDS, READS, failed, is_full_and_whole};
use crate::linked::output_of;
use std::fs;
use std::os::unix::fs::FileExt;
use std::process::Command;

#[test]
fn one_program_writes_or_many_read() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let writer = fixture.begin("old", &["folder"], HOLDS);
    for mode in ["'r'", "'a'", "'w'"] {
        let output = fixture.fails("new", &["folder"], &format!("h5py.File('x', {mode})"));
        assert!(output.contains("is open elsewhere"), "{mode}: {output}");
    }
    let mut unlocked = fixture.script("new", &["folder"], READS);
    assert_eq!(
        output_of(unlocked.env("HDF5_USE_FILE_LOCKING", "FALSE")),
        "1\n"
    );
    // A reader that waits for the lock gets it, and the data that was written meanwhile.
    let mut waits = fixture.script("new", &["folder", "--set", "timeout=60s"], READS);
    let waits = waits.stdout(std::process::Stdio::piped()).spawn().unwrap();
    assert_eq!(writer.end(), "");
    let read = waits.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&read.stdout), "2\n");
    // Nobody keeps anybody from reading but a writer; and a dead one has no lock.
    let text = format!("{READS}\nimport sys\nprint('ready', flush=True)\nsys.stdin.read()");
    let text = text.replace(
        "print(h5py.File('x', 'r')['a'][0])",
        "file = h5py.File('x', 'r')",
    );
    let reader = fixture.begin("old", &["folder"], &text);
    assert_eq!(fixture.run("new", &["folder"], READS), "2\n");
    let output = fixture.fails("new", &["folder"], "h5py.File('x', 'a')");
    assert!(output.contains("is open elsewhere"), "{output}");
    reader.end();
    let mut writer = fixture.begin("old", &["folder"], HOLDS);
    assert!(fixture.refused(&["export", "./x", "y"]).contains("lock"));
    writer.child.kill().unwrap();
    writer.child.wait().unwrap();
    assert_eq!(fixture.run("new", &["folder"], READS), "1\n");
}

#[test]
fn a_reader_takes_each_change_of_a_writer() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let writes = "
import time
for step in range(10):
    with h5py.File('x', 'a') as file:
        file.require_dataset('a', (1000,), 'i4')[:] = step
    time.sleep(0.02)
";
    let reads = "
last = -1
while last < 9:
    with h5py.File('x', 'r') as file:
        now = file['a'][0]
        assert now > last and (file['a'][:] == now).all()
        last = now
print(last)
";
    let mut reader = fixture.script("new", &["folder", "--set", "wait=newer"], reads);
    let reader = reader.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut waits = fixture.command(&["h5", "wait", "./x", "--newer-than", "9"]);
    let waits = waits.stdout(std::process::Stdio::piped()).spawn().unwrap();
    fixture.run("old", &["folder", "--set", "patience=60s"], writes);
    for (child, expected) in [(reader, "9\n"), (waits, "10\n")] {
        let output = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
    }
    let wait = &["folder", "--set", "wait=11", "--set", "timeout=10ms"];
    let output = fixture.fails("new", wait, READS);
    assert!(
        output.contains("was changed 10 times, and change 11 was waited for"),
        "{output}"
    );
    let wait = ["wait", "./x", "--timeout", "10ms"];
    let output = fixture.refused(&wait);
    assert!(
        output.contains("not changed again after 10 changes"),
        "{output}"
    );
    // A flush counts if it is set to; closing an unwritten file does not.
    let flushes = "
file = h5py.File('x', 'a')
file['a'][0] = 7
file.flush()
file.flush()
file['a'][0] = 8
file.flush()
file.close()
h5py.File('x', 'r').close()
";
    let counted = |notify: &str| {
        fixture.run(
            "old",
            &["folder", "--set", &format!("notify={notify}")],
            flushes,
        );
        let listed = fixture
            .command(&["--json", "h5", "ls", "."])
            .output()
            .unwrap();
        let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
        listed["files"][0]["changes"].as_u64().unwrap()
    };
    assert_eq!(counted("never"), 10);
    assert_eq!(counted("close"), 11);
    assert!(counted("flush") >= 13);
}

#[test]
fn several_programs_write_to_one_file() {
    several_write("libver='earliest'");
}

/// Of a format in which HDF5 marks files that are written, and refuses others then.
#[test]
fn several_programs_write_to_one_file_of_the_newest_format() {
    several_write("libver='latest'");
}

fn several_write(format: &str) {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let makes = "
plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
plist.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
with h5py.File('x', 'w', FORMAT) as file:
    for name in b'a', b'b':
        h5py.h5d.create(file.id, name, h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple((4003,)), plist)
    file['small'] = 1
";
    let both = [
        "--partition",
        "./p",
        "--partition",
        "./q",
        "--set",
        "block=4K",
    ];
    fixture.run("old", &both, &makes.replace("FORMAT", format));
    let shared = [&both[..], &["--set", "share=writers"]].concat();
    let writes = |rank: u32| {
        format!(
            "
import sys
file = h5py.File('x', 'r+')
print('ready', flush=True)
sys.stdin.read()
for at in range({rank}, 4003, 4):
    file['a'][at] = at
part = slice({rank} * 1000, {rank} * 1000 + 1000)
for again in range(20):
    file['b'][part] = np.arange(1000) * {rank}
file.flush()
file.close()
"
        )
    };
    let python = ["old", "new"];
    let writers: Vec<_> = (0..4)
        .map(|rank| fixture.begin(python[rank as usize % 2], &shared, &writes(rank)))
        .collect();
    let output = fixture.fails("new", &both, "h5py.File('x', 'r+')");
    assert!(output.contains("is open elsewhere"), "{output}");
    // All at once, as far as there are processors.
    let ends: Vec<_> = writers
        .into_iter()
        .map(|w| std::thread::spawn(|| w.end()))
        .collect();
    for end in ends {
        assert_eq!(end.join().unwrap(), "");
    }
    let reads = "
with h5py.File('x', 'r') as file:
    assert (file['a'][:] == np.arange(4003)).all()
    for rank in range(4):
        assert (file['b'][rank * 1000 : rank * 1000 + 1000] == np.arange(1000) * rank).all()
    print('whole', sorted(file))
";
    assert_eq!(
        fixture.run("old", &both, reads),
        "whole ['a', 'b', 'small']\n"
    );
    for change in [
        "file['c'] = 1",
        "file['a'].attrs['x'] = 1",
        "del file['small']",
    ] {
        let text = format!("file = h5py.File('x', 'r+')\n{change}\nfile.close()");
        let output = fixture.fails("new", &shared, &text);
        assert!(output.contains("share=writers"), "{change}: {output}");
    }
    assert_eq!(
        fixture.run("new", &both, reads),
        "whole ['a', 'b', 'small']\n"
    );
}

#[test]
fn a_wrong_configuration_is_refused_by_its_key() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let cases = [
        ("folder=.;colour=red", "there is no key `colour`"),
        ("folder", "`folder` is not KEY=VALUE"),
        ("folder=.;folder=.", "`folder` is there twice"),
        ("", "must have one of folder="),
        ("folder=.;partition=a", "must have one of folder="),
        ("partitions=", "`partitions` must be"),
        (
            "partitions=a,b;block=1000",
            "`block` must be a multiple of 4K",
        ),
        ("partition=./a;block=1M", "block= is for several"),
        ("folder=.;size=lots", "`size` must be"),
        ("folder=.;size=99999999999999999999", "`size` must be"),
        (
            "folder=.;level=high",
            "`level` must be visible or persistent",
        ),
        ("folder=.;volatile=maybe", "`volatile` must be"),
        ("folder=.;keep=perhaps", "`keep` must be"),
        ("folder=.;share=all", "`share` must be"),
        ("folder=.;notify=me", "`notify` must be"),
        ("folder=.;wait=0", "`wait` must be"),
        ("folder=.;timeout=forever", "`timeout` must be"),
        ("folder=.;patience=forever", "`timeout` must be"),
        (
            "folder=.;patience=1s;timeout=2s",
            "`timeout` is there twice",
        ),
        ("folder=.;populate=1", "`populate` must be"),
        (
            "folder=.;level=persistent",
            "does not outlive a loss of power",
        ),
        ("folder=/no/such/folder", "No such file or directory"),
    ];
    // HDF5 reads its environment once.
    let text = "
import numpy
import os
import sys
for config in sys.argv[1:]:
    if os.fork():
        os.wait()
        continue
    os.environ['HDF5_DRIVER_CONFIG'] = config
    import h5py
    try:
        h5py.File('x', 'w')
        print('opened', flush=True)
    except OSError as e:
        print(e, flush=True)
    os._exit(0)
";
    let mut python = Command::new(fixture.python("old"));
    python
        .args(["-c", text])
        .args(cases.map(|(config, _)| config))
        .current_dir(fixture.dir.path())
        .env("HDF5_DRIVER", "tarn")
        .env("HDF5_PLUGIN_PATH", &fixture.plugin);
    let output = output_of(&mut python);
    assert_eq!(output.lines().count(), cases.len(), "{output}");
    for ((config, why), line) in cases.iter().zip(output.lines()) {
        assert!(line.contains(why), "{config}: {line}");
    }
    assert_eq!(fixture.names(), [""; 0]);
    let accepted = [
        "folder",
        "--set",
        "level=persistent",
        "--set",
        "volatile=accept",
    ];
    fixture.run("new", &accepted, "h5py.File('x', 'w')['a'] = 1");
    let output = fixture.refused(&["exec", "--folder", ".", "--set", "x", "--", "true"]);
    assert!(output.contains("give KEY=VALUE"), "{output}");
}

#[test]
fn what_cannot_work_is_refused_before_hdf5_crashes() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let exec = ["exec", "--folder", ".", "--", "true"];
    fixture.h5(&exec);
    let refused = |plugin: &str| {
        let mut command = fixture.command(&["h5"]);
        failed(
            command
                .args(exec)
                .env("TARN_HDF5_PLUGIN", fixture.path(plugin)),
        )
    };
    assert!(refused("none").contains("there is no libh5fdtarn.so in"));
    // The plug-in of another version, and its own library.
    fs::create_dir_all(fixture.path("other/hdf5")).unwrap();
    let library = fixture.plugin.join("../libtarn.so").canonicalize().unwrap();
    std::os::unix::fs::symlink(&library, fixture.path("other/libtarn.so")).unwrap();
    let own = "tarn-hdf5-plugin-version=";
    let mut bytes = fs::read(fixture.plugin.join("libh5fdtarn.so")).unwrap();
    let at = bytes
        .windows(own.len())
        .position(|w| w == own.as_bytes())
        .unwrap()
        + own.len();
    bytes[at] = b'9';
    fs::write(fixture.path("other/hdf5/libh5fdtarn.so"), bytes).unwrap();
    let version = format!("9{}", &env!("CARGO_PKG_VERSION")[1..]);
    let output = refused("other/hdf5");
    assert!(
        output.contains(&format!("is libh5fdtarn.so of tarn {version}")),
        "{output}"
    );
    // Past the launcher, the plug-in says it.
    let output = output_of(
        Command::new(fixture.python("new"))
            .args([
                "-c",
                "import h5py\ntry:\n    h5py.File('x', 'w')\nexcept OSError as e:\n    print(e)",
            ])
            .env("HDF5_DRIVER", "tarn")
            .env("HDF5_PLUGIN_PATH", fixture.path("other/hdf5"))
            .env("HDF5_DRIVER_CONFIG", "folder=."),
    );
    assert!(
        output.contains(&format!("this plug-in is of tarn {version}")),
        "{output}"
    );
    fs::create_dir_all(fixture.path("alone/hdf5")).unwrap();
    fs::copy(
        fixture.plugin.join("libh5fdtarn.so"),
        fixture.path("alone/hdf5/libh5fdtarn.so"),
    )
    .unwrap();
    assert!(refused("alone/hdf5").contains("there is no libtarn.so"));
    let mut old = fixture.command(&["h5", "exec", "--folder", ".", "--"]);
    old.args([&fixture.python("old"), "-c", "print('ran')"]);
    assert_eq!(output_of(&mut old), "ran\n");
    // No Python from 3.13 on has an h5py of that time.
    if fixture.before().join("h5py").exists() {
        let output = failed(old.env("PYTHONPATH", fixture.before()));
        assert!(output.contains("has HDF5 1.12"), "{output}");
    }
    let output = fixture.refused(&["exec", "--folder", "./no/such", "--", "true"]);
    assert!(output.contains("./no/such is no folder"), "{output}");
    let output = fixture.refused(&["exec", "--folder", ".", "--", "no-such-program"]);
    assert!(output.contains("cannot run no-such-program"), "{output}");
}

#[test]
fn a_damaged_header_is_passed_over_or_refused() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    fixture.run("old", &["folder"], "h5py.File('x', 'w')['a'] = [1]");
    // So that both copies are used.
    fixture.run(
        "old",
        &["folder"],
        "h5py.File('x', 'a')['b'] = np.ones(9999)",
    );
    let file = fs::File::options()
        .write(true)
        .open(fixture.path("x.partition"))
        .unwrap();
    let data = 2 << 20;
    let place = |which: u64| data + which * 2048 + 40;
    let before = fs::read(fixture.path("x.partition")).unwrap();
    file.write_all_at(b"damage", place(0)).unwrap();
    file.write_all_at(b"damage", place(1)).unwrap();
    for mode in ["'r'", "'a'", "'w'"] {
        let output = fixture.fails("new", &["folder"], &format!("h5py.File('x', {mode})"));
        assert!(
            output.contains("header of one that is damaged"),
            "{mode}: {output}"
        );
    }
    let output = fixture.refused(&["export", "./x", "y"]);
    assert!(output.contains("header of one that is damaged"), "{output}");
    // The one that holds is the newer: with the older damaged nothing is lost.
    let number = |which: usize| before[(data as usize) + which * 2048 + 16];
    let newer = u64::from(number(1) > number(0));
    let at = place(newer) as usize;
    file.write_all_at(&before[at..at + 6], place(newer))
        .unwrap();
    assert_eq!(
        fixture.run("new", &["folder"], "print(sorted(h5py.File('x')))"),
        "['a', 'b']\n"
    );
    // A file of a later version is not touched.
    let output = {
        let mut page = before[data as usize..data as usize + 4096].to_vec();
        for copy in [0, 2048] {
            page[copy + 8] = 2;
            let sum = tarn_types::crc::crc(&page[copy..copy + 120]);
            page[copy + 120..copy + 128].copy_from_slice(&sum.to_le_bytes());
        }
        file.write_all_at(&page, data).unwrap();
        fixture.fails("new", &["folder"], "h5py.File('x', 'a')")
    };
    assert!(output.contains("newer version of tarn"), "{output}");
}

#[test]
fn a_full_tier_fails_the_write_and_leaves_the_file_whole() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    // A file system of 24 MiB of its own.
    let mut probe = Command::new("unshare");
    let probe = probe.args(["-rm", "true"]).output();
    if !probe.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED: no user namespaces");
        return;
    }
    let text = format!("import h5py\nimport numpy as np\n{FULL}");
    let script = "mount -t tmpfs -o size=24m none \"$1\" && shift && exec \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["-rm", "sh", "-c", script, "sh"])
        .arg(fixture.dir.path())
        .arg(env!("CARGO_BIN_EXE_tarn"))
        .args(["h5", "exec", "--folder"])
        .arg(fixture.dir.path())
        .args(["--", &fixture.python("new"), "-c", &text])
        .env("TARN_HDF5_PLUGIN", &fixture.plugin);
    is_full_and_whole(&output_of(&mut command));
}

#[test]
fn attack_a_partition_of_another_user_is_refused() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: not root, who alone can be two users");
        return;
    }
    fixture.run("old", &["folder"], "h5py.File('x', 'w')['a'] = 1");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
    fs::set_permissions(fixture.dir.path(), open).unwrap();
    let text = "
import h5py
import os
h5py.File('mine', 'w').close()
os.setgid(65534)
os.setuid(65534)
for mode in 'r', 'a', 'w':
    try:
        h5py.File('x', mode)
    except OSError as e:
        print(e)
";
    let text = text.replace(
        "h5py.h5f.get_obj_count()\n",
        "h5py.File('mine', 'w').close()\n",
    );
    let output = output_of(&mut fixture.script("new", &["folder"], &text));
    let refusals = output
        .lines()
        .filter(|line| line.contains("Permission denied"));
    assert_eq!(refusals.count(), 3, "{output}");
    assert_eq!(
        fixture.run("old", &["folder"], "print(sorted(h5py.File('x')))"),
        "['a']\n"
    );
}
