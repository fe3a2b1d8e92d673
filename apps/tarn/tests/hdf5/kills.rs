//! Writers that are killed: data that was flushed before is there.

use crate::fixture::Fixture;
use crate::linked::output_of;
use std::process::Command;

const KILLS: &str = include_str!("kills.py");
const OWN: &str = "HDF5's own driver, on a disk";

/// How many kills on each medium: `TARN_KILLS`, or what a test has time for.
fn kills() -> u32 {
    let rounds = std::env::var("TARN_KILLS").ok();
    rounds.map_or(24, |n| n.parse().expect("TARN_KILLS is a number"))
}

/// The results of the rounds: whole, shorter than the superblock says, and others.
fn counted(what: &str, output: &str) -> [u32; 3] {
    println!("{what}: whole, too short, otherwise lost: {output}");
    let mut numbers = output.split_whitespace().map(|n| n.parse().unwrap());
    [(); 3].map(|()| numbers.next().unwrap())
}

/// A kill in the middle of a flush leaves a part of its writes. HDF5's own driver writes that as it comes, and about one in 300
/// such kills cuts a tree of chunks in two. This driver's order leaves none, on tmpfs or a disk, and where the file ends is never
/// wrong.
#[test]
fn what_was_flushed_outlives_a_killed_writer() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let (rounds, seed) = (kills(), std::process::id());
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let script = fixture.path("kills.py");
    std::fs::write(&script, KILLS).unwrap();
    let arguments = [script, rounds.to_string(), seed.to_string()];
    let begun = |mut command: Command| {
        std::thread::spawn(move || output_of(command.env("HDF5_USE_FILE_LOCKING", "TRUE")))
    };
    let driven = |folder: &std::path::Path| {
        let mut command = fixture.command(&["h5", "exec", "--folder"]);
        command
            .arg(folder)
            .args(["--", "env", &fixture.python("new")]);
        command.args(&arguments);
        begun(command)
    };
    let plain = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut sec2 = Command::new(fixture.python("new"));
    sec2.args(&arguments).current_dir(plain.path());
    let all = [
        ("in memory", driven(fixture.dir.path())),
        ("on a disk", driven(disk.path())),
        (OWN, begun(sec2)),
    ];
    let all = all.map(|(what, ran)| (what, counted(what, &ran.join().unwrap())));
    for (what, [whole, short, other]) in &all {
        assert_eq!(whole + short + other, rounds, "{what}");
        // Of HDF5's own: three times the mean, and the excess that a short test may meet by chance.
        let allowed = match *what {
            OWN => 4 + rounds / 100,
            _ => 0,
        };
        assert!(
            *other <= allowed,
            "{what}: {other} of {rounds}, seed {seed}"
        );
    }
    for (what, [_, short, _]) in &all[..2] {
        assert_eq!(*short, 0, "{what}, seed {seed}");
    }
}

/// More structure than is kept until a flush, read again before one, freed and used for data; behind a block of the user's own.
#[test]
fn what_waits_for_a_flush_is_what_is_read() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let text = "
import hashlib
def fill(name, **options):
    with h5py.File(name, 'w', userblock_size=1024, rdcc_nbytes=0, **options) as file:
        for i in range(3000):
            group = file.create_group(f'g{i % 7}/{i}')
            group.attrs['n'] = np.arange(i % 300)
            if i % 3 == 0:
                group['x'] = np.full(i, i)
            if i % 500 == 0:
                file.flush()
            if i % 5 == 0 and i > 100:
                del file[f'g{(i - 100) % 7}/{i - 100}']
        table = file.create_dataset('t', (0, 10), maxshape=(None, 10), chunks=(1, 10), dtype='i8')
        for i in range(900):
            table.resize(i + 1, 0)
            table[i] = i
            assert table[i // 2][0] == i // 2
    whole = hashlib.sha256()
    def see(name, thing):
        whole.update(f'{name} {dict((k, list(v)) for k, v in thing.attrs.items())}'.encode())
        if isinstance(thing, h5py.Dataset):
            whole.update(thing[()].tobytes())
    with h5py.File(name, 'r', **options) as file:
        assert file.userblock_size == 1024
        file.visititems(see)
    return whole.hexdigest()
assert fill('driven') == fill(PLAIN, driver='sec2')
print('same')
";
    let plain = fixture.path("plain");
    for libver in ["earliest", "latest"] {
        let text = text.replace("PLAIN", &format!("'{plain}'"));
        let text = text.replace(
            "userblock_size=1024,",
            &format!("userblock_size=1024, libver='{libver}',"),
        );
        assert_eq!(fixture.run("new", &["folder"], &text), "same\n", "{libver}");
        let split = [
            "--partition",
            "./a",
            "--partition",
            "./b",
            "--set",
            "block=8K",
        ];
        assert_eq!(fixture.run("old", &split, &text), "same\n", "{libver}");
    }
}
