//! Unmodified programs with HDF5 whose files are partitions: they write the same as to files.

#[path = "hdf5/days.rs"]
mod days;
#[path = "hdf5/far.rs"]
mod far;
#[path = "hdf5/fixture.rs"]
mod fixture;
#[path = "hdf5/kills.rs"]
mod kills;
#[path = "../../../bindings/c/tests/common/mod.rs"]
#[allow(dead_code)]
mod linked;
#[path = "hdf5/names.rs"]
mod names;
mod nodes;
#[path = "common/program.rs"]
mod program;

use fixture::{Fixture, plugin};
use linked::{output_of, source};
use std::process::Command;

/// A script that writes and reads all kinds of HDF5 objects.
const RICH: &str = include_str!("hdf5/rich.py");

/// [`RICH`], whose file has this name.
fn rich(name: &str) -> String {
    format!("import sys\nsys.argv = ['', '{name}']\n{RICH}")
}

/// Both hold the same, and the tools read what is exported.
fn same(fixture: &Fixture, partitions: &str, exported: &str, plain: &str) {
    fixture.h5(&["export", partitions, exported]);
    output_of(Command::new("h5diff").args([plain, exported]));
    let dumped = output_of(Command::new("h5dump").args(["-d", "/rows", exported]));
    assert!(dumped.contains("SIMPLE { ( 50, 10 )"), "{dumped}");
    let packed = format!("{exported}.packed");
    output_of(Command::new("h5repack").args([exported, &packed]));
    output_of(Command::new("h5diff").args([&packed, plain]));
}

/// On a disk, where a partition is used in units and nothing ends within its doorbell.
#[test]
fn files_on_a_disk_go_in_and_out_too() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let name = |name: &str| disk.path().join(name).to_str().unwrap().to_owned();
    let config = ["--folder", disk.path().to_str().unwrap()];
    fixture.run("new", &config, &rich("result.h5"));
    fixture.h5(&["export", &name("result.h5"), &name("plain")]);
    fixture.h5(&["import", &name("plain"), &name("copy")]);
    fixture.h5(&["export", &name("copy"), &name("again")]);
    let read = |file: &str| std::fs::read(name(file)).unwrap();
    assert!(read("plain") == read("again") && read("plain").starts_with(b"\x89HDF"));
}

#[test]
fn h5py_writes_and_reads_what_it_would_write_to_a_file() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    for (which, hdf5) in [("old", "1.14."), ("new", "2.0.0\n")] {
        let plain = fixture.path(&format!("{which}.plain"));
        output_of(Command::new(fixture.python(which)).args(["-c", &rich(&plain)]));
        let name = format!("no/such/folder/{which}.h5");
        // Once more into the same partition, which holds an older file then.
        for _ in 0..2 {
            let output = fixture.run(which, &["folder"], &rich(&name));
            assert!(output.starts_with(hdf5), "{output}");
        }
        let exported = format!("{plain}.exported");
        same(
            &fixture,
            &format!("no/such/folder/{which}.h5"),
            &exported,
            &plain,
        );
    }
    let listed = fixture.h5(&["ls", "."]);
    assert_eq!(listed.lines().count(), 2, "{listed}");
    assert!(
        listed.contains("no/such/folder/new.h5  3.5") && listed.contains("changed 4 times"),
        "{listed}"
    );
    let output = fixture.refused(&["export", "./none.h5", "none.h5"]);
    assert!(output.contains("`tarn h5 ls .` shows"), "{output}");
}

#[test]
fn a_file_lies_in_several_partitions_block_by_block() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let [a, b, c] = ["a", "b", "c"].map(|name| fixture.path(name));
    let with = |names: [&String; 3], block: &str| {
        let mut config: Vec<_> = names
            .iter()
            .flat_map(|name| ["--partition", name])
            .map(str::to_owned)
            .collect();
        config.extend(["--set".into(), format!("block={block}")]);
        config
    };
    let right = with([&a, &b, &c], "64K");
    let right: Vec<_> = right.iter().map(String::as_str).collect();
    let plain = fixture.path("plain");
    output_of(Command::new(fixture.python("new")).args(["-c", &rich(&plain)]));
    fixture.run("new", &right, &rich("any"));
    same(&fixture, "./a,./b,./c", &fixture.path("exported"), &plain);
    let list = "print(len(h5py.File('any')))";
    assert_eq!(fixture.run("old", &right, list), "9\n");
    for (wrong, why) in [
        (
            with([&a, &c, &b], "64K"),
            "is not number 2 of the partitions",
        ),
        (with([&b, &a, &c], "64K"), "is number 2 of 3 partitions"),
        (with([&a, &b, &c], "32K"), "blocks of 65536 bytes"),
        (
            vec!["--partition".into(), a.clone()],
            "is number 1 of 3 partitions",
        ),
    ] {
        let wrong: Vec<_> = wrong.iter().map(String::as_str).collect();
        let output = fixture.fails("new", &wrong, list);
        assert!(output.contains(why), "{output}");
    }
    for wrong in ["./b,./a,./c", "./a,./b", "./a"] {
        let output = fixture.refused(&["export", wrong, "none"]);
        assert!(output.contains("hold a file"), "{output}");
    }
    assert!(fixture.h5(&["ls", "."]).contains("over 3 partitions"));
    // And from an ordinary file into others, and back.
    fixture.h5(&["import", "plain", "./x,./y", "--block", "128 KiB"]);
    let output = fixture.refused(&["import", "plain", "./z,./y", "--block", "128 KiB"]);
    assert!(output.contains("is there already"), "{output}");
    fixture.h5(&["export", "./x,./y", "again"]);
    assert_eq!(
        std::fs::read(&plain).unwrap(),
        std::fs::read(fixture.path("again")).unwrap()
    );
    let output = fixture.refused(&["export", "./x,./y", "again"]);
    assert!(output.contains("is there already"), "{output}");
    let output = fixture.refused(&["import", "a.partition", "./z"]);
    assert!(output.contains("is no HDF5 file"), "{output}");
    let more = [
        "a.partition",
        "again",
        "b.partition",
        "c.partition",
        "exported",
        "exported.packed",
        "plain",
    ];
    assert_eq!(
        fixture.names(),
        [&more[..], &["x.partition", "y.partition"]].concat()
    );
}

#[test]
fn netcdf_writes_and_reads_through_partitions() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let text = "
import netCDF4
with netCDF4.Dataset('weather.nc', 'w') as file:
    file.createDimension('time', None)
    file.createDimension('x', 100)
    t = file.createVariable('t', 'f8', ('time', 'x'), zlib=True)
    t.unit = 'K'
    for step in range(20):
        t[step] = np.arange(100) + step
# What netCDF looks at by itself; docs/guide/hdf5.md.
open('weather.nc', 'wb').write(b'\\x89HDF\\r\\n\\x1a\\n--------')
with netCDF4.Dataset('weather.nc') as file:
    assert (file['t'][7] == np.arange(100) + 7).all() and file['t'].unit == 'K'
    print(netCDF4.__hdf5libversion__, file['t'].shape)
";
    assert_eq!(fixture.run("new", &["folder"], text), "2.2.0 (20, 100)\n");
    fixture.h5(&["export", "./weather.nc", "weather"]);
    let dumped = output_of(Command::new("h5dump").args(["-H", &fixture.path("weather")]));
    assert!(dumped.contains("( 20, 100 )"), "{dumped}");
}

#[test]
fn what_is_not_kept_goes_with_the_last_who_has_it_open() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let text = "
with h5py.File('x', 'w') as file:
    file['a'] = np.ones(1 << 17)
";
    fixture.run("old", &["folder", "--set", "keep=no"], text);
    assert_eq!(fixture.names(), [""; 0]);
    fixture.run("old", &["folder", "--set", "size=64K"], text);
    // No more space than it needs.
    let size = std::fs::metadata(fixture.path("x.partition"))
        .unwrap()
        .len();
    assert!(size <= (2 << 20) + (1 << 20) + 8192, "{size}");
    let text = "
file = h5py.File('x', 'a')
other = h5py.File('x', 'a')
file['b'] = 1
assert 'b' in other
file.close()
other['c'] = 2
other.close()
print(list(h5py.File('x')))
";
    assert_eq!(fixture.run("new", &["folder"], text), "['a', 'b', 'c']\n");
}

#[test]
fn the_plug_in_needs_no_symbol_of_hdf5() {
    let folder = plugin("symbols", "");
    let library = folder.join("libh5fdtarn.so");
    let symbols = |which| output_of(Command::new("nm").args(["-D", which]).arg(&library));
    let needed = symbols("--undefined-only");
    let of_hdf5 = needed.lines().filter(|line| line.contains(" H5"));
    assert_eq!(of_hdf5.count(), 0, "{needed}");
    assert!(needed.contains("dsa_submit"), "{needed}");
    let given = symbols("--defined-only");
    assert_eq!(given.lines().count(), 2, "{given}");
}

/// Of the first and the newest HDF5 that has this kind of plug-ins in a crate with HDF5's sources.
#[test]
fn the_plug_in_declares_what_hdf5s_own_headers_declare() {
    let fixture = tempfile::tempdir().unwrap();
    let config = "#define H5_SIZEOF_LONG 8\n#define H5_SIZEOF_LONG_LONG 8\n#define H5_SIZEOF_SIZE_T 8\n#define H5_SIZEOF_SSIZE_T 8\n";
    std::fs::write(fixture.path().join("H5pubconf.h"), config).unwrap();
    for (version, major, minor) in [("0.9.0", 1, 14), ("0.10.4", 2, 2)] {
        let package = fixture.path().join(version);
        std::fs::create_dir_all(package.join("src")).unwrap();
        std::fs::write(package.join("src/lib.rs"), "").unwrap();
        let text = format!(
            "[package]\nname = \"headers\"\nedition = \"2024\"\n[dependencies]\nhdf5-metno-src = \"={version}\"\n[workspace]\n"
        );
        std::fs::write(package.join("Cargo.toml"), text).unwrap();
        let cargo = |arguments: &[&str]| {
            let mut command = Command::new(env!("CARGO"));
            let output = command
                .args(arguments)
                .current_dir(&package)
                .output()
                .unwrap();
            assert!(
                output.status.success(),
                "{}",
                String::from_utf8_lossy(&output.stderr)
            );
            output.stdout
        };
        cargo(&["fetch"]);
        let metadata = cargo(&["metadata", "--format-version", "1", "--offline"]);
        let metadata: serde_json::Value = serde_json::from_slice(&metadata).unwrap();
        let packages = metadata["packages"].as_array().unwrap();
        let found = packages
            .iter()
            .find(|package| package["name"] == "hdf5-metno-src");
        let manifest = found.unwrap()["manifest_path"].as_str().unwrap();
        let headers = std::path::Path::new(manifest).with_file_name("ext/hdf5/src");
        let public = std::fs::read_to_string(headers.join("H5public.h")).unwrap();
        for number in [format!("MAJOR {major}"), format!("MINOR {minor}")] {
            assert!(
                public.contains(&format!("H5_VERS_{number}")),
                "{version}: {number}"
            );
        }
        output_of(
            Command::new("cc")
                .args([
                    "-std=c11",
                    "-Wall",
                    "-Wextra",
                    "-Werror",
                    "-fsyntax-only",
                    "-I",
                ])
                .arg(fixture.path())
                .arg("-I")
                .arg(&headers)
                .arg("-I")
                .arg(headers.join("H5FDsubfiling"))
                .arg(source("../../plugins/hdf5/tests/headers.c")),
        );
    }
}

#[test]
fn the_plug_in_does_nothing_that_sanitizers_find() {
    let Some(mut fixture) = Fixture::new() else {
        return;
    };
    let flags = "-fsanitize=address,undefined -fno-sanitize-recover=all -g";
    fixture.plugin = plugin("checked", flags);
    let asan = output_of(Command::new("cc").arg("-print-file-name=libasan.so"));
    let ubsan = output_of(Command::new("cc").arg("-print-file-name=libubsan.so"));
    for config in [
        &["folder"][..],
        &[
            "--partition",
            "./a",
            "--partition",
            "./b",
            "--set",
            "block=8K",
        ],
    ] {
        let mut command = fixture.script("old", config, &rich("x"));
        command.env("LD_PRELOAD", format!("{} {}", asan.trim(), ubsan.trim()));
        let output = output_of(command.env("ASAN_OPTIONS", "detect_leaks=0"));
        assert!(output.starts_with("1.14."), "{output}");
    }
}

#[test]
fn the_benchmark_compares_it_with_hdf5s_own_drivers_and_leaves_nothing() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let mut bench = fixture.command(&["bench", "hdf5", "--json", "--rounds", "1", "--mib", "4"]);
    bench.args(["--operations", "50", "--partitions", "1,2", "--dir", "."]);
    let output = bench
        .args(["--python", &fixture.python("new")])
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{stderr}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let results = report["results"].as_array().unwrap();
    for result in results {
        assert!(result["ratio"].as_f64().unwrap() > 0.0, "{result}");
    }
    let named = |name: &str| {
        let names = results
            .iter()
            .map(|result| result["name"].as_str().unwrap());
        names.filter(|found| found.starts_with(name)).count()
    };
    // Beside sec2, or sec2 and another one, and by the number of partitions in C.
    assert_eq!(
        [named("seq-write,"), named("seq-read,"), named("random-4k ")],
        [2, 4, 8]
    );
    assert_eq!([named("cold-"), named("h5py-")], [2, 7]);
    assert_eq!(fixture.names(), [""; 0]);
}
