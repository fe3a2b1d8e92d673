//! Unmodified programs of libibverbs, Debian's and small ones of their own, with tarn's RDMA device: among each other, and to storage memory.

#[path = "verbs/fixture.rs"]
mod fixture;
#[path = "../../../bindings/c/tests/common/mod.rs"]
#[allow(dead_code)]
mod linked;
#[path = "nodes/mod.rs"]
mod nodes;
#[path = "common/program.rs"]
mod program;
#[path = "verbs/storage.rs"]
mod storage;

use fixture::{Fixture, Talks, failed};
use linked::output_of;
use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

/// The functions of libibverbs that take no object of a device: strings and rates, libraries of other devices, and processes.
const NO_DEVICE: [&str; 17] = [
    "ibv_rate_to_mult",
    "mult_to_ibv_rate",
    "ibv_rate_to_mbps",
    "mbps_to_ibv_rate",
    "ibv_event_type_str",
    "ibv_node_type_str",
    "ibv_port_state_str",
    "ibv_wc_status_str",
    "ibv_fork_init",
    "ibv_is_fork_initialized",
    "ibv_dofork_range",
    "ibv_dontfork_range",
    "ibv_get_sysfs_path",
    "ibv_read_sysfs_file",
    "ibv_register_driver",
    // Between its own libraries, of structures that a program has filled.
    "ibv_copy_ah_attr_from_kern",
    "ibv_copy_path_rec_from_kern",
];
/// Those whose object the device never gives out: it refuses to make one. Or which takes a number of the kernel's.
const NEVER_MADE: [&str; 17] = [
    "ibv_import_device",
    "ibv_unimport_mr",
    "ibv_unimport_pd",
    "ibv_unimport_dm",
    "ibv_dm_export_dmabuf_fd",
    "ibv_dealloc_dmah",
    "ibv_destroy_comp_cntr",
    "ibv_set_comp_cntr",
    "ibv_set_err_comp_cntr",
    "ibv_inc_comp_cntr",
    "ibv_inc_err_comp_cntr",
    "ibv_read_comp_cntr",
    "ibv_read_err_comp_cntr",
    // Of an event, which never comes.
    "ibv_ack_async_event",
    "ibv_copy_path_rec_to_kern",
    "ibv_copy_qp_attr_from_kern",
    "ibv_query_gid_type",
];

/// The tests of `days`, without the one that needs another user.
const DAYS: [&str; 14] = [
    "target",
    "writer",
    "given-back",
    "words",
    "child",
    "shared",
    "nonsense",
    "writer-lost",
    "datagrams",
    "leaving",
    "swept",
    "nonsense-lost",
    "nonsense-datagrams",
    "nonsense-shared",
];

/// `VERSION NAME` of the symbols that a library defines (`is_undefined`: that a program requests).
fn symbols(file: &str, is_undefined: bool) -> BTreeSet<String> {
    let output = output_of(Command::new("objdump").args(["-T", file]));
    let lines = output
        .lines()
        .filter(|line| line.contains("*UND*") == is_undefined);
    let ends = lines.filter_map(|line| {
        let mut words = line.split_whitespace().rev();
        let name = words.next()?;
        let version = words.next()?.trim_matches(['(', ')']);
        let known = version.starts_with("IBVERBS_") && name != version;
        known.then(|| format!("{version} {name}"))
    });
    ends.collect()
}

#[test]
fn the_device_is_shown() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let output = output_of(&mut fixture.exec(&["ibv_devices"]));
    assert!(output.contains("tarn0"), "{output}");
    let output = output_of(&mut fixture.exec(&["ibv_devinfo", "-v"]));
    for part in [
        "hca_id:\ttarn0",
        "PORT_ACTIVE",
        "ATOMIC_HCA",
        concat!("fw_ver:\t\t\t\t", env!("CARGO_PKG_VERSION")),
        "link_layer:\t\tInfiniBand",
        "GID[  0]:",
    ] {
        assert!(output.contains(part), "{part}: {output}");
    }
    let doctor = output_of(&mut fixture.tarn(&["doctor"]));
    let line = doctor.lines().find(|line| line.contains("RDMA verbs"));
    assert!(line.is_some_and(|line| line.starts_with("yes")), "{doctor}");
    // Without the launcher there is none; without the plug-in, or with one of another version, the launcher says so.
    let output = Command::new("ibv_devices").output().unwrap().stdout;
    let output = String::from_utf8_lossy(&output);
    assert!(!output.contains("tarn0"), "{output}");
    let none = fixture.dir.path().join("none");
    let output = failed(fixture.exec(&["true"]).env("TARN_VERBS_PLUGIN", &none));
    assert!(
        output.contains("there is no libtarnverbs.so in"),
        "{output}"
    );
    fs::create_dir(&none).unwrap();
    fs::write(
        none.join("libtarnverbs.so"),
        "tarn-verbs-plugin-version=0.0.1",
    )
    .unwrap();
    fs::copy(
        linked::library().join("libtarn.so"),
        fixture.dir.path().join("libtarn.so"),
    )
    .unwrap();
    let output = failed(fixture.exec(&["true"]).env("TARN_VERBS_PLUGIN", &none));
    assert!(
        output.contains("is libtarnverbs.so of tarn 0.0.1"),
        "{output}"
    );
    let output = failed(&mut fixture.exec(&["/no/such/program"]));
    assert!(output.contains("cannot run /no/such/program"), "{output}");
}

/// Debian's programs find each function in the version that they ask for, and none that would get an object of ours is left to the system's
/// library, which would look for things of its own behind it.
#[test]
fn functions_have_the_versions_that_programs_ask_for() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let own = symbols(fixture.library().to_str().unwrap(), false);
    let found = output_of(Command::new("cc").arg("-print-file-name=libibverbs.so"));
    let theirs = symbols(found.trim(), false);
    // But what later versions have: the device is the same for all of them.
    let known: BTreeSet<_> = theirs
        .iter()
        .filter_map(|one| one.split(' ').next())
        .collect();
    let made_up: Vec<_> = own
        .difference(&theirs)
        .filter(|one| known.contains(one.split(' ').next().unwrap()))
        .collect();
    assert!(made_up.is_empty(), "{made_up:?}");
    let mut programs: Vec<_> =
        output_of(Command::new("dpkg").args(["-L", "ibverbs-utils", "perftest"]))
            .lines()
            .filter(|line| line.contains("/bin/ib"))
            .map(str::to_owned)
            .collect();
    // A library that uses it; its package has another name in each release of Debian.
    let manager = output_of(Command::new("cc").arg("-print-file-name=librdmacm.so.1"));
    programs.push(manager.trim().to_owned());
    programs.retain(|program| fs::read(program).is_ok_and(|bytes| bytes.starts_with(b"\x7fELF")));
    assert!(programs.len() > 10, "{programs:?}");
    let requested = programs.iter().flat_map(|program| symbols(program, true));
    // Beside what programs here ask for, all that the library has for programs, but of its time before 2008.
    let public = theirs
        .iter()
        .filter(|name| !name.starts_with("IBVERBS_PRIVATE_") && !name.starts_with("IBVERBS_1.0 "));
    let all: BTreeSet<_> = requested.chain(public.cloned()).collect();
    assert!(all.len() > 60, "{all:?}");
    for one in &all {
        let name = one.split(' ').nth(1).unwrap();
        let theirs = NO_DEVICE.contains(&name) || NEVER_MADE.contains(&name);
        assert!(own.contains(one) || theirs, "{one}");
    }
}

#[test]
fn messages_go_between_two_programs() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    for (program, options) in [
        ("ibv_rc_pingpong", &["-n", "100"][..]),
        ("ibv_rc_pingpong", &["-n", "300", "-e"]),
        ("ibv_rc_pingpong", &["-n", "100", "-N", "-g", "0"]),
        (
            "ibv_rc_pingpong",
            &["-n", "20", "-s", "1000000", "-r", "3", "-c", "-e"],
        ),
        ("ibv_uc_pingpong", &["-n", "100"]),
        ("ibv_uc_pingpong", &["-n", "100", "-s", "100000", "-e"]),
        ("ibv_ud_pingpong", &["-n", "100"]),
        ("ibv_ud_pingpong", &["-n", "100", "-e", "-g", "0"]),
        ("ibv_srq_pingpong", &["-n", "200"]),
        ("ibv_srq_pingpong", &["-n", "200", "-q", "4", "-e"]),
    ] {
        let outputs = fixture.both(program, options, &[]);
        for output in &outputs {
            assert!(output.contains(" iters in "), "{options:?}: {output}");
            assert!(!output.contains("invalid data"), "{options:?}: {output}");
        }
    }
    assert!(fixture.is_tidy());
}

#[test]
fn perftest_measures_writes_reads_messages_and_words() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    for (program, options) in [
        ("ib_write_bw", &["-n", "200"][..]),
        ("ib_write_bw", &["-n", "200", "-q", "4", "-b"]),
        ("ib_write_bw", &["-n", "10", "-a", "--use_old_post_send"]),
        ("ib_read_bw", &["-n", "200"]),
        ("ib_send_bw", &["-n", "200", "-e"]),
        ("ib_write_lat", &["-n", "20"]),
        ("ib_read_lat", &["-n", "50"]),
        ("ib_send_lat", &["-n", "20", "-e"]),
        ("ib_atomic_bw", &["-n", "100"]),
        ("ib_atomic_lat", &["-n", "50", "-A", "CMP_AND_SWAP"]),
        ("ib_send_bw", &["-c", "UC", "-n", "200"]),
        ("ib_send_lat", &["-c", "UC", "-n", "50"]),
        ("ib_write_bw", &["-c", "UC", "-n", "200"]),
        ("ib_send_bw", &["-c", "UD", "-n", "200"]),
        ("ib_send_lat", &["-c", "UD", "-n", "50"]),
        ("ib_send_bw", &["--use-srq", "-q", "4", "-n", "200"]),
        ("ib_send_lat", &["--use-srq", "-n", "50", "-e"]),
    ] {
        let outputs = fixture.both(program, options, &[]);
        assert!(
            outputs[1].contains("#bytes") && !outputs[1].contains("rror"),
            "{program}: {}",
            outputs[1]
        );
    }
    assert!(fixture.is_tidy());
}

#[test]
fn what_arrives_is_what_was_sent() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    assert_eq!(
        output_of(&mut fixture.exec(&[&fixture.program("data", "")])),
        "ok\n"
    );
    assert!(fixture.is_tidy());
}

#[test]
fn what_is_refused_ends_as_verbs_say() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    assert_eq!(
        output_of(&mut fixture.exec(&[&fixture.program("errors", "")])),
        "ok\n"
    );
    assert!(fixture.is_tidy());
}

/// With a libibverbs that is older, too: a program that was made for a later one finds the device.
#[test]
fn what_later_versions_have_brought_is_there() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    assert_eq!(
        output_of(&mut fixture.exec(&[&fixture.program("later", "")])),
        "ok\n"
    );
    assert!(fixture.is_tidy());
}

#[test]
fn what_is_unreliable_arrives_or_is_lost() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let program = fixture.program("unreliable", "");
    assert_eq!(output_of(&mut fixture.exec(&[&program])), "ok\n");
    assert!(fixture.is_tidy());
}

#[test]
fn queue_pairs_share_receive_requests() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    assert_eq!(
        output_of(&mut fixture.exec(&[&fixture.program("shared", "")])),
        "ok\n"
    );
    assert!(fixture.is_tidy());
}

/// A peer that is killed, memory that is given back, nonsense in shared memory, a child.
#[test]
fn bad_days_end_requests_and_nobody_else() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let days = fixture.program("days", "");
    for day in DAYS {
        assert_eq!(output_of(&mut fixture.exec(&[&days, day])), "ok\n", "{day}");
        // The next program removes the leftovers of killed ones.
        output_of(&mut fixture.exec(&["ibv_devinfo"]));
        assert!(fixture.is_tidy(), "{day}");
    }
}

#[test]
fn attack_another_users_process_reaches_no_memory() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    if !rustix::process::getuid().is_root() {
        eprintln!("SKIPPED: another user takes root");
        return;
    }
    let days = fixture.program("days", "");
    let other = tempfile::tempdir_in("/dev/shm").unwrap();
    for folder in [other.path(), fixture.dir.path()] {
        fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    }
    let nobody = |command: &mut Command| {
        use std::os::unix::process::CommandExt;
        command.uid(65534).gid(65534);
    };
    // Its folder is not for others, and no folder of others is for this one.
    let mut intrudes = fixture.exec(&["ibv_devinfo"]);
    output_of(&mut fixture.exec(&["ibv_devinfo"]));
    nobody(&mut intrudes);
    let output = failed(&mut intrudes);
    assert!(output.contains("Failed to open device"), "{output}");
    let mut first = Talks::begin(fixture.exec(&[&days, "stranger"]));
    let mut second = fixture.exec(&[&days, "stranger", "other"]);
    let own = other.path().join("own");
    nobody(second.env("TARN_VERBS_DIR", &own));
    fs::set_permissions(
        other.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o777),
    )
    .unwrap();
    let mut second = Talks::begin(second);
    let (one, two) = (first.line(), second.line());
    first.message(&two);
    second.message(&one);
    assert_eq!(second.end(), "ok\n");
    assert_eq!(first.end(), "ok\n");
    assert!(own.is_dir());
}

#[test]
fn sanitizers_find_nothing() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let flags = "-fsanitize=address,undefined -fno-sanitize-recover=all -g -O1";
    let plugin = fixture::plugin("sanitized", flags).unwrap();
    let sanitizer = output_of(Command::new("cc").arg("-print-file-name=libasan.so"));
    let partition = fixture.path("field");
    output_of(&mut fixture.tarn(&["partition", "create", &partition, "2 MiB"]));
    let run = |name: &str, arguments: &[&str]| {
        let mut command = fixture.tarn(&["verbs", "exec", "--partition", &partition, "--"]);
        command
            .arg(fixture.program(name, flags))
            .args(arguments)
            .env("TARN_VERBS_PLUGIN", &plugin)
            // Rust's own, in the launcher too, never gives some memory back.
            .env("ASAN_OPTIONS", "detect_leaks=0")
            .env("LD_PRELOAD", sanitizer.trim());
        assert_eq!(output_of(&mut command), "ok\n", "{name} {arguments:?}");
    };
    run("storage", &["check", &partition]);
    run("storage", &["own", &partition]);
    run("data", &[]);
    run("errors", &[]);
    run("later", &[]);
    run("unreliable", &[]);
    run("shared", &[]);
    for day in DAYS {
        run("days", &[day]);
    }
}

/// The device is nothing to programs that do not ask for it.
#[test]
fn other_programs_do_not_notice() {
    let Some(fixture) = Fixture::new() else {
        return;
    };
    let output = fixture
        .exec(&["sh", "-c", "exec cat /proc/self/maps"])
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let maps = String::from_utf8_lossy(&output.stdout);
    assert!(
        maps.contains("libtarnverbs.so") && !maps.contains("libibverbs"),
        "{maps}"
    );
    assert!(!fixture.devices().exists());
}
