//! Files in memory and on a disk: content that is written and made persistent is there for the next process that maps them.

use std::fs;
use std::path::{Path, PathBuf};
use std::slice::from_ref;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tarn_media::{Device, EmulatedMedium, Folder, MappedFile, Profile, ReadOnlyMapping};
use tarn_ports::{Medium, MediumError, MediumWindow, PowerFail, ReadableMedium, Vault};
use tarn_types::crc::crc;

/// A folder in memory, one on another file system, and one of DAX files, where there are.
fn folders() -> Vec<tempfile::TempDir> {
    let shm = Path::new("/dev/shm");
    let memory = shm.is_dir().then(|| shm.to_owned());
    let dax = std::env::var_os("TARN_DAX_DIR").map(PathBuf::from);
    if dax.is_none() {
        eprintln!(
            "SKIPPED: DAX files (MAP_SYNC): set TARN_DAX_DIR to a folder of a file system mounted with -o dax=always; \
             for one in ordinary memory boot with memmap=1G!4G, which makes /dev/pmem0, and mkfs.ext4 it"
        );
    }
    let there = memory.into_iter().chain(dax).map(tempfile::tempdir_in);
    there
        .chain([tempfile::tempdir()])
        .map(Result::unwrap)
        .collect()
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 ^ seed)
        .collect()
}

#[test]
fn what_is_filled_in_place_is_there_and_later_writes_are_not() {
    for folder in folders() {
        let path = folder.path().join("file");
        let data = bytes(100_000, 3);
        let mut mapped = MappedFile::create(&path, 1 << 20).unwrap();
        mapped.bytes()[5..100_005].copy_from_slice(&data);
        {
            let mut windows = mapped.windows(from_ref(&(0..1 << 20))).unwrap();
            windows[0].filled(5..100_005).unwrap();
            windows[0].persist().unwrap();
            assert!(windows[0].filled(1..2 << 20).is_err());
        }
        mapped.freeze().unwrap();
        assert_eq!(mapped.bytes()[5..100_005], data);
        mapped.bytes().fill(0);
        drop(mapped);
        assert_eq!(fs::read(&path).unwrap()[5..100_005], data);
        let seen = ReadOnlyMapping::of(fs::File::open(&path).unwrap(), &path).unwrap();
        let mut again = vec![0; data.len()];
        assert_eq!(seen.read(5, &mut again).unwrap(), crc(&data));
        assert_eq!(again, data);
    }
}

/// A private mapping is charged whole by most kernels' rule, unless its flags exclude that.
#[test]
fn a_file_larger_than_the_memory_is_frozen() {
    let strict = fs::read_to_string("/proc/sys/vm/overcommit_memory").unwrap();
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = folder.path().join("sparse");
    let file = fs::File::create_new(&path).unwrap();
    file.set_len(1 << 42).unwrap();
    let mut mapped = MappedFile::open(&path).unwrap();
    mapped.bytes()[0] = 1;
    let start = mapped.bytes().as_ptr();
    let frozen = mapped.freeze();
    assert_eq!(frozen.is_err(), strict.trim() == "2", "{frozen:?}");
    if frozen.is_ok() {
        mapped.bytes()[..2].fill(2);
    }
    assert_eq!(mapped.bytes().as_ptr(), start);
    drop(mapped);
    let seen = ReadOnlyMapping::open(&path).unwrap();
    let mut first = [9; 2];
    seen.read(0, &mut first).unwrap();
    assert_eq!(first, [1, 0]);
}

#[test]
fn what_was_written_is_there_again() {
    for folder in folders() {
        let path = folder.path().join("arena");
        let data = bytes(3_000_001, 1);
        let mut mapped = MappedFile::create(&path, 8 << 20).unwrap();
        assert_eq!(mapped.size(), 8 << 20);
        let promises = mapped.promises();
        assert!(
            promises.atomic >= 8 && promises.persist_unit >= 64,
            "{promises:?}"
        );
        if folder.path().starts_with("/dev/shm") {
            assert_eq!(promises.power_fail, PowerFail::Lost);
        }
        let mut windows = mapped.windows(&[4096..4 << 20, 4 << 20..8 << 20]).unwrap();
        let sums: Vec<u64> = std::thread::scope(|scope| {
            let write = |window: &mut <MappedFile as Medium>::Window<'_>| {
                let sum = window.write(10, &data).unwrap();
                window.persist().unwrap();
                sum
            };
            let threads: Vec<_> = windows
                .iter_mut()
                .map(|w| scope.spawn(move || write(w)))
                .collect();
            threads.into_iter().map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(sums, [crc(&data); 2]);
        let seen = ReadOnlyMapping::open(&path).unwrap();
        assert_eq!(seen.promises(), mapped.promises());
        drop(mapped);
        let mut again = MappedFile::open(&path).unwrap();
        for at in [4096 + 10, (4 << 20) + 10] {
            let mut read = vec![0; data.len()];
            assert_eq!(seen.read(at, &mut read).unwrap(), sums[0]);
            assert_eq!(read, data);
            let window = &again.windows(std::slice::from_ref(&(at..8 << 20))).unwrap()[0];
            let mut read = vec![0; data.len()];
            assert_eq!(window.read(0, &mut read).unwrap(), sums[0]);
            assert_eq!(read, data);
        }
        let file = fs::read(&path).unwrap();
        assert_eq!(&file[4106..4106 + data.len()], &data[..]);
        assert!(file[..4096].iter().all(|b| *b == 0));
    }
}

#[test]
fn a_dax_device_holds_what_was_written() {
    let Some(path) = std::env::var_os("TARN_DAX").map(PathBuf::from) else {
        return eprintln!(
            "SKIPPED: a DAX device: set TARN_DAX to one (/dev/dax0.0) whose bytes may be lost; for one in ordinary memory boot with \
             memmap=1G!4G, then ndctl create-namespace --force --reconfig=namespace0.0 --mode=devdax"
        );
    };
    let data = bytes(3_000_001, 9);
    let mut device = MappedFile::open(&path).unwrap();
    device.populate().unwrap();
    let promises = device.promises();
    assert!(
        promises.persist_unit == 64 && promises.power_fail != PowerFail::Synced,
        "{promises:?}"
    );
    let message = MappedFile::open(&path).unwrap_err().to_string();
    assert!(message.contains("cannot lock"), "{message}");
    let size = device.size();
    assert!(device.grow(size + 1).is_err());
    // At both ends.
    let places = [10, size - data.len() as u64];
    let all = 0..size;
    {
        let window = &mut device.windows(from_ref(&all)).unwrap()[0];
        for at in places {
            assert_eq!(window.write(at, &data).unwrap(), crc(&data));
        }
        window.persist().unwrap();
        assert!(window.write(size - 1, &[0; 2]).is_err());
    }
    drop(device);
    let seen = ReadOnlyMapping::open(&path).unwrap();
    let mut again = MappedFile::open(&path).unwrap();
    let window = &again.windows(from_ref(&all)).unwrap()[0];
    for at in places {
        for stored in [&seen as &dyn ReadableMedium, window] {
            let mut read = vec![0; data.len()];
            assert_eq!(stored.read(at, &mut read).unwrap(), crc(&data));
            assert!(read == data);
        }
    }
}

#[test]
fn it_has_one_writer_and_its_windows_are_apart() {
    for folder in folders() {
        let path = folder.path().join("arena");
        let mut mapped = MappedFile::create(&path, 1 << 20).unwrap();
        assert!(
            MappedFile::create(&path, 1 << 20)
                .unwrap_err()
                .to_string()
                .contains("cannot make")
        );
        assert!(
            MappedFile::open(&path)
                .unwrap_err()
                .to_string()
                .contains("cannot lock")
        );
        for (ranges, taken) in [
            (&[(0, 4096), (4095, 5000)][..], true),
            (&[(5000, 6000), (0, 5001)], true),
            (&[(0, 100), (0, 100)], true),
            (&[(0, (1 << 20) + 1)], false),
            (&[(u64::MAX - 1, u64::MAX)], false),
        ] {
            let ranges: Vec<_> = ranges.iter().map(|(from, to)| *from..*to).collect();
            match mapped.windows(&ranges).unwrap_err() {
                MediumError::Taken(_) => assert!(taken, "{ranges:?}"),
                MediumError::Outside { .. } => assert!(!taken, "{ranges:?}"),
                other => panic!("{other}"),
            }
        }
        let mut windows = mapped.windows(&[100..200, 0..100]).unwrap();
        assert!(windows[0].write(90, &[0; 11]).is_err());
        assert!(windows[0].write(u64::MAX, &[0; 11]).is_err());
        assert!(windows[1].read(1, &mut [0; 100]).is_err());
        windows[0].write(0, b"second").unwrap();
        windows[1].write(94, b"first.").unwrap();
        let seen = ReadOnlyMapping::open(&path).unwrap();
        let mut both = [0; 12];
        seen.read(94, &mut both).unwrap();
        assert_eq!(&both, b"first.second");
        assert!(seen.read((1 << 20) - 1, &mut both).is_err());
    }
}

/// A child has the same open file from the moment that it is forked until it is another program.
#[test]
fn its_lock_goes_with_its_writer_though_a_child_that_is_being_forked_has_it_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("arena");
    let mut options = fs::File::options();
    let file = options.read(true).write(true).create_new(true).open(&path);
    let file = file.unwrap();
    let of_the_child = file.try_clone().unwrap();
    let mapped = MappedFile::make(file.into(), &path, 4096).unwrap();
    assert!(MappedFile::open(&path).is_err());
    drop(mapped);
    MappedFile::open(&path).unwrap();
    drop(of_the_child);
}

#[test]
fn what_cannot_be_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let assert_refused = |result: Result<MappedFile, MediumError>, words: &[&str]| {
        let message = result.unwrap_err().to_string();
        assert!(words.iter().all(|w| message.contains(w)), "{message}");
    };
    assert_refused(MappedFile::open(&at("none")), &["open", "none"]);
    fs::write(at("empty"), "").unwrap();
    assert_refused(MappedFile::open(&at("empty")), &["map", "empty"]);
    assert_refused(MappedFile::open(folder.path()), &["open"]);
    std::os::unix::fs::symlink(at("empty"), at("link")).unwrap();
    assert_refused(MappedFile::open(&at("link")), &["open", "link"]);
    assert_refused(
        MappedFile::open(&PathBuf::from("/dev/null")),
        &["examine", "/dev/null"],
    );
    assert_refused(MappedFile::create(&at("huge"), u64::MAX), &["huge"]);
    assert!(!at("huge").exists());
}

#[test]
fn a_slow_one_holds_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("arena");
    let profile = Profile {
        name: "nvram".into(),
        device: 1 << 30,
        core: 0,
        latency: 1000,
    };
    let device = Arc::new(Device::new(profile));
    let mut slow = EmulatedMedium::new(MappedFile::create(&path, 1 << 20).unwrap(), device);
    assert_eq!(slow.size(), 1 << 20);
    let data = bytes(10_000, 7);
    let mut windows = slow.windows(&[0..1 << 19, 1 << 19..1 << 20]).unwrap();
    let sum = windows[1].write(5, &data).unwrap();
    windows[1].persist().unwrap();
    let mut read = vec![0; data.len()];
    assert_eq!(windows[1].read(5, &mut read).unwrap(), sum);
    assert_eq!(read, data);
}

/// A device takes no more from many processes than from one: here two of them are played by two devices of one file.
#[test]
fn a_device_that_is_shared_is_one() {
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    let profile = Profile {
        name: "nvram".into(),
        device: 50_000_000,
        ..Profile::none()
    };
    let queue = folder.path().join("queue");
    let began = Instant::now();
    std::thread::scope(|scope| {
        for name in ["a", "b"] {
            let device = Device::shared(profile.clone(), &queue).unwrap();
            let medium = MappedFile::create(&folder.path().join(name), 1 << 20).unwrap();
            let mut slow = EmulatedMedium::new(medium, Arc::new(device));
            scope.spawn(move || {
                let mut windows = slow.windows(from_ref(&(0..1 << 20))).unwrap();
                let data = bytes(1 << 20, 1);
                for _ in 0..5 {
                    windows[0].write(0, &data).unwrap();
                }
            });
        }
    });
    // Ten times 1 MiB at 50 MB/s; never less, but for the lateness that is made up for.
    let least = Duration::from_millis(10 * 1048 / 50 - 5);
    assert!(began.elapsed() >= least, "{:?}", began.elapsed());
}

#[test]
fn a_medium_grows_and_keeps_what_it_holds() {
    for folder in folders() {
        let mut medium = MappedFile::create(&folder.path().join("m"), 5000).unwrap();
        let data = bytes(5000, 3);
        medium.windows(from_ref(&(0..5000))).unwrap()[0]
            .write(0, &data)
            .unwrap();
        medium.grow(3 << 20).unwrap();
        assert_eq!(medium.size(), 3 << 20);
        // Smaller is nothing to do.
        medium.grow(1).unwrap();
        let windows = medium.windows(from_ref(&(0..3 << 20))).unwrap();
        let mut read = vec![0xff; 3 << 20];
        windows[0].read(0, &mut read).unwrap();
        assert_eq!(read[..5000], data[..]);
        assert!(read[5000..].iter().all(|b| *b == 0));
        drop(windows);
        // More space than there is is not taken, and nothing is lost.
        assert!(medium.grow(1 << 55).is_err());
        assert_eq!(medium.size(), 3 << 20);
        let mut again = vec![0; 5000];
        medium.windows(from_ref(&(0..5000))).unwrap()[0]
            .read(0, &mut again)
            .unwrap();
        assert_eq!(again, data);
    }
}

#[test]
fn a_folder_keeps_media_under_their_names() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("a/b");
    let folder = Folder::new(&path, Arc::new(Device::new(Profile::none()))).unwrap();
    assert_eq!(folder.list().unwrap(), [""; 0]);
    let fill = |byte: u8| {
        move |medium: &mut <Folder as Vault>::Medium| {
            medium.windows(from_ref(&(0..4096)))?[0]
                .write(0, &[byte; 4096])
                .map(drop)
        }
    };
    let first = folder.create("3/7.arena", 4096, &mut fill(1)).unwrap();
    folder.create("x", 4096, &mut fill(2)).unwrap();
    assert_eq!(folder.list().unwrap(), ["3/7.arena", "x"]);
    // A killed process leaves the file that it was making; the next one that makes it removes that, and nothing of others.
    fs::write(path.join("x.12.0.part"), b"").unwrap();
    fs::write(path.join("xy.12.0.part"), b"").unwrap();
    folder.create("x", 4096, &mut fill(2)).unwrap();
    assert!(!path.join("x.12.0.part").exists() && path.join("xy.12.0.part").exists());
    // One writer at a time.
    let message = folder.open("3/7.arena").unwrap_err().to_string();
    assert!(message.contains("lock"), "{message}");
    drop(first);
    assert!(folder.open("3/7.arena").is_ok());
    // Its replacement is whole at once, and a holder of the old one keeps it.
    let seen = folder.see("3/7.arena").unwrap();
    folder.create("3/7.arena", 8192, &mut fill(3)).unwrap();
    let mut byte = [0];
    seen.read(0, &mut byte).unwrap();
    assert_eq!((byte, folder.see("3/7.arena").unwrap().size()), ([1], 8192));
    // A medium that cannot be filled leaves nothing.
    let failing = &mut |_: &mut <Folder as Vault>::Medium| Err(MediumError::Taken(0..1));
    assert!(folder.create("y", 4096, failing).is_err());
    assert_eq!(folder.list().unwrap(), ["3/7.arena", "x"]);
    for name in ["", "..", "../x", "/etc/passwd", "a/b/c", "./x"] {
        assert!(folder.see(name).is_err(), "{name:?}");
    }
    folder.remove("3/7.arena").unwrap();
    folder.remove("3/7.arena").unwrap();
    assert!(!path.join("3").exists());
    assert!(folder.remove("x").is_ok() && path.exists());
    let open = root.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    assert!(Folder::new(&open, Arc::new(Device::new(Profile::none()))).is_err());
    let link = root.path().join("link");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    assert!(Folder::new(&link, Arc::new(Device::new(Profile::none()))).is_err());
}
