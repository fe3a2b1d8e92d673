//! Played machines: folders in the form of a kernel's `/sys`, as its documentation of powercap and hwmon gives it. They are
//! synthetic: nobody has copied them from a machine.

use std::path::Path;
use std::time::Duration;
use tarn_ports::Meter;
use tarn_power::{MachineMeter, Sensors};
use tarn_types::energy::{Draw, Energy, Power, Sensor, Source, Warmth};
use tempfile::TempDir;

/// A server with two packages, each with memory, and devices that show them a second time.
const SERVER: &[(&str, &str)] = &[
    ("class/powercap/intel-rapl/enabled", "1"),
    ("class/powercap/intel-rapl:0/name", "package-0"),
    ("class/powercap/intel-rapl:0/energy_uj", "1000000"),
    (
        "class/powercap/intel-rapl:0/max_energy_range_uj",
        "262143328850",
    ),
    ("class/powercap/intel-rapl:0:0/name", "dram"),
    ("class/powercap/intel-rapl:0:0/energy_uj", "500000"),
    (
        "class/powercap/intel-rapl:0:0/max_energy_range_uj",
        "65712999613",
    ),
    ("class/powercap/intel-rapl:0:1/name", "core"),
    ("class/powercap/intel-rapl:0:1/energy_uj", "77"),
    ("class/powercap/intel-rapl:1/name", "package-1"),
    ("class/powercap/intel-rapl:1/energy_uj", "262143328000"),
    (
        "class/powercap/intel-rapl:1/max_energy_range_uj",
        "262143328850",
    ),
    ("class/powercap/intel-rapl:2/name", "psys"),
    ("class/powercap/intel-rapl:2/energy_uj", "9999"),
    ("class/powercap/intel-rapl-mmio:0/name", "package-0"),
    ("class/powercap/intel-rapl-mmio:0/energy_uj", "8888"),
    ("class/hwmon/hwmon0/name", "coretemp"),
    ("class/hwmon/hwmon0/temp1_label", "Package id 0"),
    ("class/hwmon/hwmon0/temp1_input", "41000"),
    ("class/hwmon/hwmon0/temp2_label", "Core 0"),
    ("class/hwmon/hwmon0/temp2_input", "60000"),
    ("class/hwmon/hwmon1/name", "coretemp"),
    ("class/hwmon/hwmon1/temp1_label", "Package id 1"),
    ("class/hwmon/hwmon1/temp1_input", "47000"),
    ("class/hwmon/hwmon2/name", "nvme"),
    ("class/hwmon/hwmon2/temp1_label", "Composite"),
    ("class/hwmon/hwmon2/temp1_input", "70000"),
    ("class/hwmon/hwmon3/name", "amdgpu"),
    ("class/hwmon/hwmon3/power1_average", "120000000"),
];

/// Sensors that a board of the same server may have besides.
const BOARD: &[(&str, &str)] = &[
    ("class/hwmon/hwmon4/name", "power_meter"),
    ("class/hwmon/hwmon4/power1_average", "212000000"),
    ("class/hwmon/hwmon5/name", "nct6779"),
    ("class/hwmon/hwmon5/temp1_label", "Inlet Temp"),
    ("class/hwmon/hwmon5/temp1_input", "24000"),
];

fn played(parts: &[&[(&str, &str)]]) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    for (path, content) in parts.iter().copied().flatten() {
        set(root.path(), path, content);
    }
    root
}

fn set(root: &Path, path: &str, content: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, format!("{content}\n")).unwrap();
}

const SECOND: Duration = Duration::from_secs(1);

fn warmth(celsius: i32, sensor: Sensor) -> Option<Warmth> {
    let millicelsius = celsius * 1000;
    Some(Warmth {
        millicelsius,
        sensor,
    })
}

#[test]
fn packages_and_their_memory_are_counted_once_and_over_their_range() {
    let root = played(&[SERVER]);
    let found = Sensors::find(root.path());
    assert_eq!(found.source(), Some(Source::Rapl));
    assert!(found.closed.is_empty(), "{:?}", found.closed);
    assert_eq!(found.warmth(), warmth(47, Sensor::Processor));
    let before = found.read(Duration::ZERO).unwrap();
    set(
        root.path(),
        "class/powercap/intel-rapl:0/energy_uj",
        "1000700",
    );
    set(
        root.path(),
        "class/powercap/intel-rapl:0:0/energy_uj",
        "500020",
    );
    // The second package's counter starts again, 850 before that and 150 after it.
    set(root.path(), "class/powercap/intel-rapl:1/energy_uj", "150");
    set(
        root.path(),
        "class/powercap/intel-rapl:2/energy_uj",
        "99999",
    );
    let after = found.read(SECOND).unwrap();
    assert_eq!(found.between(&before, &after), Some(700 + 20 + 1000));
}

#[test]
fn a_meter_of_the_node_goes_before_counters_of_its_processors() {
    let root = played(&[SERVER, BOARD]);
    let machine = MachineMeter::new(root.path());
    let draw = machine.draw();
    let power = Power {
        milliwatts: 212_000,
        source: Source::Hwmon,
    };
    assert_eq!(
        draw,
        Draw {
            power: Some(power),
            warmth: warmth(24, Sensor::Inlet),
        }
    );
    let found = machine.sensors();
    let before = found.read(SECOND).unwrap();
    set(
        root.path(),
        "class/hwmon/hwmon4/power1_average",
        "312000000",
    );
    let after = found.read(3 * SECOND).unwrap();
    assert_eq!(found.between(&before, &after), Some(2 * 262_000_000));
}

#[test]
fn a_cray_and_old_and_other_drivers() {
    let cray = played(&[
        SERVER,
        BOARD,
        &[
            ("cray/pm_counters/energy", "52417 J 1700000000000000 us"),
            ("cray/pm_counters/power", "317 W 1700000000000000 us"),
        ],
    ]);
    let machine = MachineMeter::new(cray.path());
    let power = machine.draw().power.unwrap();
    assert_eq!(
        (power.milliwatts, power.source),
        (317_000, Source::PmCounters)
    );
    let before = machine.sensors().read(SECOND).unwrap();
    set(
        cray.path(),
        "cray/pm_counters/energy",
        "52420 J 1700000009000000 us",
    );
    let after = machine.sensors().read(SECOND).unwrap();
    assert_eq!(machine.sensors().between(&before, &after), Some(3_000_000));
    // A counter without a range that falls was set back.
    assert_eq!(machine.sensors().between(&after, &before), None);

    let amd = played(&[&[
        ("class/hwmon/hwmon0/name", "amd_energy"),
        ("class/hwmon/hwmon0/energy1_label", "Ecore000"),
        ("class/hwmon/hwmon0/energy1_input", "5"),
        ("class/hwmon/hwmon0/energy65_label", "Esocket0"),
        ("class/hwmon/hwmon0/energy65_input", "1000"),
        ("class/hwmon/hwmon1/name", "k10temp"),
        ("class/hwmon/hwmon1/temp1_label", "Tctl"),
        ("class/hwmon/hwmon1/temp1_input", "38250"),
        ("class/hwmon/hwmon1/temp2_label", "Tdie"),
        ("class/hwmon/hwmon1/temp2_input", "28250"),
    ]]);
    let found = Sensors::find(amd.path());
    assert_eq!(found.source(), Some(Source::HwmonCpu));
    let before = found.read(SECOND).unwrap();
    set(amd.path(), "class/hwmon/hwmon0/energy1_input", "900000");
    set(amd.path(), "class/hwmon/hwmon0/energy65_input", "1600");
    let after = found.read(SECOND).unwrap();
    assert_eq!(found.between(&before, &after), Some(600));
    assert_eq!(found.warmth().unwrap().millicelsius, 38_250);

    let aem = played(&[&[
        ("class/hwmon/hwmon0/device/name", "aem1"),
        ("class/hwmon/hwmon0/device/energy1_input", "7000000"),
        ("class/hwmon/hwmon0/device/power1_average", "300000000"),
    ]]);
    let machine = MachineMeter::new(aem.path());
    assert_eq!(machine.draw().power.unwrap().milliwatts, 300_000);
    assert_eq!(machine.sensors().source(), Some(Source::Hwmon));
}

#[test]
fn a_machine_without_meters_knows_nothing() {
    let empty = played(&[]);
    for root in [empty.path(), &empty.path().join("none")] {
        let machine = MachineMeter::new(root);
        assert!(machine.draw().is_unknown());
        assert!(machine.begin(1).is_none());
        assert!(machine.sensors().closed.is_empty());
    }
    // Parts of a machine are not the machine, and a sensor that is not connected has no temperature.
    let parts = played(&[&[
        ("class/hwmon/hwmon0/name", "amdgpu"),
        ("class/hwmon/hwmon0/power1_average", "120000000"),
        ("class/hwmon/hwmon1/name", "coretemp"),
        ("class/hwmon/hwmon1/temp1_label", "Package id 0"),
        ("class/hwmon/hwmon1/temp1_input", "-273150"),
        ("class/hwmon/hwmon2/power1_average", "1"),
    ]]);
    assert!(MachineMeter::new(parts.path()).draw().is_unknown());
}

#[test]
fn what_cannot_be_read_is_said_and_the_next_source_taken() {
    let root = played(&[SERVER, BOARD]);
    set(root.path(), "class/hwmon/hwmon4/power1_average", "lots");
    let found = Sensors::find(root.path());
    assert_eq!(found.source(), Some(Source::Rapl));
    assert!(
        found.closed.len() == 1 && found.closed[0].contains("`lots` is no number"),
        "{:?}",
        found.closed
    );
    // One package of two is not the machine.
    std::fs::remove_file(root.path().join("class/powercap/intel-rapl:1/energy_uj")).unwrap();
    let found = Sensors::find(root.path());
    assert_eq!((found.source(), found.closed.len()), (None, 2));
}

#[test]
fn what_only_root_may_read_is_said() {
    use std::os::unix::fs::PermissionsExt;
    let root = played(&[SERVER]);
    let file = root.path().join("class/powercap/intel-rapl:0/energy_uj");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o000)).unwrap();
    if std::fs::read(&file).is_ok() {
        eprintln!("SKIPPED: this user may read everything: rights are not tried");
        return;
    }
    let found = Sensors::find(root.path());
    assert_eq!(found.source(), None);
    assert!(
        found.closed[0].contains("let only root"),
        "{:?}",
        found.closed
    );
}

#[test]
fn steps_share_what_is_drawn_while_they_run() {
    let root = played(&[SERVER]);
    let machine = MachineMeter::new(root.path());
    let package = |uj: u64| {
        let file = "class/powercap/intel-rapl:0/energy_uj";
        set(root.path(), file, &uj.to_string());
    };
    let energy = |millijoules| {
        Some(Energy {
            millijoules,
            source: Source::Rapl,
        })
    };
    let one = machine.begin(1).unwrap();
    package(5_000_000);
    let three = machine.begin(3).unwrap();
    package(13_000_000);
    assert_eq!(one.end(), energy(4_000 + 2_000));
    // One that is given up takes its share along.
    let given_up = machine.begin(5).unwrap();
    package(21_000_000);
    drop(given_up);
    assert_eq!(three.end(), energy(6_000 + 3_000));
    // Nothing runs: nobody's.
    package(90_000_000);
    let last = machine.begin(1).unwrap();
    package(91_000_000);
    assert_eq!(last.end(), energy(1_000));
}

#[test]
fn a_meter_that_vanishes_leaves_the_step_without_a_figure() {
    let root = played(&[SERVER]);
    let machine = MachineMeter::new(root.path());
    let file = root.path().join("class/powercap/intel-rapl:0/energy_uj");
    let before = machine.begin(1).unwrap();
    std::fs::remove_file(&file).unwrap();
    let meanwhile = machine.begin(1).unwrap();
    set(root.path(), "class/powercap/intel-rapl:0/energy_uj", "5");
    let after = machine.begin(1).unwrap();
    assert_eq!(before.end(), None);
    assert_eq!(meanwhile.end(), None);
    assert!(after.end().is_some());
}
