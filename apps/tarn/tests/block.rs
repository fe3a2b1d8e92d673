//! `tarn block serve` with real clients: nbdinfo, nbdcopy, nbdfuse, qemu-io, fio, the kernel.

#[path = "nbd/far.rs"]
mod far;
#[path = "nbd/hostile.rs"]
mod hostile;
#[path = "nbd/kernel.rs"]
mod kernel;
mod nbd;
mod nodes;
#[path = "common/program.rs"]
mod program;

use nbd::{Client, Fixture, SIZE, ends_well, fails, output_of};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tarn_partitions::Partition;

#[test]
fn clients_are_told_what_the_device_can_and_find_what_they_have_written() {
    let Some(fixture) = Fixture::new(&["nbdinfo", "qemu-io", "qemu-img", "nbdcopy"]) else {
        return;
    };
    let partition = fixture.partition("disk");
    let served = fixture.serve(&[&partition]);
    let info = output_of(Command::new("nbdinfo").args(["--json", &served.uri]));
    let info: serde_json::Value = serde_json::from_str(&info).unwrap();
    let export = &info["exports"][0];
    assert_eq!(export["export-size"], SIZE);
    for can in [
        "can_cache",
        "can_flush",
        "can_fua",
        "can_multi_conn",
        "can_trim",
        "can_zero",
    ] {
        assert_eq!(export[can], true, "{can}");
    }
    assert_eq!(export["is_read_only"], false);
    assert_eq!(export["block_size_minimum"], 1);

    served.io(&[
        "write -P 0x11 0 256k",
        "write -f -P 0x22 4097 3", // with FUA
        "write -z 64k 8k",
        "write -z -f 80k 4k",
        "write -P 0x33 1M 2M", // more than one piece of zeros over it
        "write -z 1M 1536k",
        "discard 128k 64k",
        "flush",
        "read -P 0x11 0 4097",
        "read -P 0x22 4097 3",
        "read -P 0x11 4100 61436",
        "read -P 0 64k 8k",
        "read -P 0x11 72k 8k",
        "read -P 0 80k 4k",
        "read -P 0x11 128k 64k", // nothing was taken away
        "read -P 0 1M 1536k",
        "read -P 0x33 2560k 512k",
    ]);
    // By several connections, in and out.
    let (image, again) = (fixture.path("image"), fixture.path("again"));
    let content: Vec<u8> = (0..SIZE).map(|at| (at / 7 + at / 4096) as u8).collect();
    fs::write(&image, &content).unwrap();
    let copy = |from: &str, to: &str| {
        output_of(Command::new("nbdcopy").args(["--connections=4", "--flush", from, to]));
    };
    copy(image.to_str().unwrap(), &served.uri);
    copy(&served.uri, again.to_str().unwrap());
    assert!(fs::read(&again).unwrap() == content);
    output_of(
        Command::new("qemu-img")
            .args(["compare", "-fraw", "-Fraw", &served.uri])
            .arg(&image),
    );
    // And it is what other programs see of the partition: its data are the last bytes of its file.
    let file = fs::read(fixture.file("disk")).unwrap();
    assert!(file.ends_with(&content));
}

#[test]
fn a_file_system_is_made_and_checked_on_it() {
    let Some(fixture) = Fixture::new(&["nbdfuse", "mke2fs", "e2fsck", "debugfs", "umount"]) else {
        return;
    };
    let partition = fixture.partition("disk");
    let served = fixture.serve(&[&partition]);
    let (tree, mount) = (fixture.path("tree"), fixture.path("mount"));
    fs::create_dir(&tree).unwrap();
    fs::create_dir(&mount).unwrap();
    let content: Vec<u8> = (0..1 << 20).map(|at: u32| (at % 251) as u8).collect();
    fs::write(tree.join("field"), &content).unwrap();
    let device = mount.join("nbd");
    let mut fuse = Command::new("nbdfuse")
        .arg(&device)
        .arg(&served.uri)
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    while !device.exists() {
        if fuse.try_wait().unwrap().is_some() {
            eprintln!("SKIPPED: nothing can be mounted here by nbdfuse");
            return;
        }
        assert!(Instant::now() < until, "nbdfuse mounts nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
    let made = ends_well(
        Command::new("mke2fs")
            .args(["-q", "-t", "ext4", "-d"])
            .arg(&tree)
            .arg(&device),
    );
    let checked = ends_well(Command::new("e2fsck").args(["-f", "-n"]).arg(&device));
    let (dump, out) = (fixture.path("dump"), device.display());
    let request = format!("dump /field {}", dump.display());
    let dumped = ends_well(Command::new("debugfs").args(["-R", &request, &out.to_string()]));
    output_of(Command::new("umount").arg(&mount));
    fuse.wait().unwrap();
    assert!(made && checked && dumped);
    assert!(fs::read(dump).unwrap() == content);
}

#[test]
fn several_clients_at_once_find_what_each_has_written() {
    let Some(fixture) = Fixture::new(&["fio"]) else {
        return;
    };
    let partition = fixture.partition("disk");
    let served = fixture.serve(&[&partition]);
    let options = ["--rw=randrw", "--bsrange=1k-64k", "--fsync=16"];
    served.clients(SIZE / 4, &options);
}

#[test]
fn several_partitions_are_one_device_block_by_block() {
    let Some(fixture) = Fixture::new(&["qemu-io"]) else {
        return;
    };
    let (one, other) = (fixture.partition("one"), fixture.partition("other"));
    let served = fixture.serve(&[&one, &other, "--block", "64KiB"]);
    served.io(&["write -P 0x44 60k 8k", "read -P 0x44 60k 8k"]);
    drop(served);
    let last = |name: &str| {
        let file = fs::read(fixture.file(name)).unwrap();
        file[file.len() - SIZE as usize..].to_vec()
    };
    let (one, other) = (last("one"), last("other"));
    assert_eq!(one[60 << 10..64 << 10], [0x44; 4 << 10]);
    assert_eq!(other[..4 << 10], [0x44; 4 << 10]);
    assert_eq!((one[60 << 10..][4 << 10], other[4 << 10]), (0, 0));
    let output = fixture.refused(&["one", "other"].map(|name| fixture.name(name)));
    assert!(output.contains("give it with several"), "{output}");
}

#[test]
fn what_was_flushed_is_there_after_servers_were_killed() {
    let Some(fixture) = Fixture::new(&["qemu-io", "nbdinfo"]) else {
        return;
    };
    let partition = fixture.partition("disk");
    let socket = fixture.path("the socket");
    let listen = ["--socket", socket.to_str().unwrap()];
    let mut served = fixture.serve(&[&partition, listen[0], listen[1]]);
    assert!(served.uri.ends_with("the%20socket"), "{}", served.uri);
    let mode = fs::metadata(&socket).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    served.io(&["write -P 0x55 0 1M", "flush", "write -f -P 0x66 1M 4k"]);
    // nbdkit is killed: `tarn` says so, and takes its socket away.
    served.kill_nbdkit();
    let (status, stderr) = served.ended();
    assert_eq!(status, Some(5), "{stderr}");
    assert!(stderr.contains("nbdkit has ended by itself"), "{stderr}");
    assert!(!socket.exists());

    // `tarn` is killed: nbdkit goes with it, the socket stays, and the next one replaces it.
    let mut served = fixture.serve(&[&partition, listen[0], listen[1]]);
    served.io(&[
        "read -P 0x55 0 1M",
        "read -P 0x66 1M 4k",
        "write -P 0x77 0 4k",
    ]);
    let output = fixture.refused(&[&*partition, listen[0], listen[1]]);
    assert!(output.contains("a server listens at"), "{output}");
    served.kill();
    assert!(socket.exists());
    let served = fixture.serve(&[&partition, listen[0], listen[1]]);
    served.io(&["read -P 0x77 0 4k"]);
    drop(served);
    assert!(!socket.exists());
}

#[test]
fn the_folder_of_a_killed_server_is_removed_by_the_next_start() {
    let Some(fixture) = Fixture::new(&["nbdinfo"]) else {
        return;
    };
    let partition = fixture.partition("disk");
    let folders = || {
        let entries = fs::read_dir(fixture.path("run")).unwrap();
        let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
        let mut all: Vec<_> = names.filter(|n| n.starts_with("tarn-block-")).collect();
        all.sort();
        all
    };
    let mut killed = fixture.serve(&[&partition]);
    let left = folders();
    assert_eq!(left.len(), 1, "{left:?}");
    killed.kill();
    assert_eq!(folders(), left);
    let served = fixture.serve(&[&partition]);
    let own = folders();
    assert!(own.len() == 1 && own != left, "{left:?}, then {own:?}");
    // One that serves stays when another one starts.
    let other = fixture.partition("other");
    let beside = fixture.serve(&[&other]);
    assert_eq!(folders().len(), 2);
    output_of(Command::new("nbdinfo").arg(&served.uri));
    drop((served, beside));
    assert_eq!(folders(), Vec::<String>::new());
}

#[test]
fn it_ends_when_it_is_told_to_though_clients_stay() {
    let Some(fixture) = Fixture::new(&["qemu-io"]) else {
        return;
    };
    let partition = fixture.partition("disk");
    let mut served = fixture.serve(&[&partition]);
    let mut client = Client::new(&served);
    let line = client.io("write -P 0x12 0 4k");
    assert!(line.contains("wrote 4096"), "{line}");
    served.terminate();
    let (status, stderr) = served.ended();
    assert_eq!(status, Some(0), "{stderr}");
    client.rest("");
    fixture.serve(&[&partition]).io(&["read -P 0x12 0 4k"]);
}

#[test]
fn a_partition_that_is_served_stays_and_one_that_is_read_only_is_not_written() {
    let Some(fixture) = Fixture::new(&["qemu-io", "nbdinfo"]) else {
        return;
    };
    let partition = fixture.partition("disk");
    let served = fixture.serve(&[&partition, "--read-only"]);
    assert!(ends_well(Command::new("nbdinfo").args([
        "--is",
        "read-only",
        &served.uri
    ])));
    let output =
        fails(Command::new("qemu-io").args(["-f", "raw", "-c", "write 0 4k", &served.uri]));
    assert!(output.contains("Permission denied"), "{output}");
    let refused = Partition::delete(&fixture.file("disk").with_extension("")).unwrap_err();
    assert_eq!(refused.code, tarn_partitions::Code::Busy);
    drop(served);
    Partition::delete(&fixture.file("disk").with_extension("")).unwrap();
    let output = fixture.refused(&[&*partition]);
    assert!(
        output.contains("disk") && output.contains("does not serve"),
        "{output}"
    );
}

#[test]
fn a_partition_that_has_grown_is_larger_for_the_next_client() {
    let Some(fixture) = Fixture::new(&["qemu-io", "nbdinfo"]) else {
        return;
    };
    let partition = fixture.partition("disk");
    let served = fixture.serve(&[&partition]);
    let path = fixture.file("disk").with_extension("");
    let open = Partition::open(&path, tarn_partitions::OpenOptions::default()).unwrap();
    assert_eq!(open.grow(2 * SIZE).unwrap(), 2 * SIZE);
    let size = output_of(Command::new("nbdinfo").args(["--size", &served.uri]));
    assert_eq!(size.trim(), (2 * SIZE).to_string());
    served.io(&["write -P 0x13 17M 4k", "read -P 0x13 17M 4k"]);
}

#[test]
fn a_file_made_shorter_by_force_is_an_error_of_the_client_and_no_end_of_the_server() {
    let Some(fixture) = Fixture::new(&["qemu-io", "nbdinfo"]) else {
        return;
    };
    let partition = fixture.partition("disk");
    let served = fixture.serve(&[&partition]);
    let mut client = Client::new(&served);
    let line = client.io("read 8M 4k");
    assert!(line.contains("read 4096"), "{line}");
    let file = fs::File::options()
        .write(true)
        .open(fixture.file("disk"))
        .unwrap();
    file.set_len(3 << 20).unwrap();
    let output = client.rest("read 12M 4k\nread 8M 4k\n");
    assert_eq!(output.matches("Input/output error").count(), 2, "{output}");
    // The server refuses a new client, and gives the reason.
    fails(Command::new("nbdinfo").args(["--size", &served.uri]));
    assert!(served.is_there());
}

#[test]
fn memory_is_refused_by_who_does_not_want_it() {
    let Some(fixture) = Fixture::new(&[]) else {
        return;
    };
    let partition = fixture.partition("disk");
    let output = fixture.refused(&[&*partition, "--no-volatile"]);
    assert!(
        output.contains("does not outlive a loss of power"),
        "{output}"
    );
}

#[test]
fn attack_another_users_partition_is_refused() {
    let Some(fixture) = Fixture::new(&["setpriv"]) else {
        return;
    };
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can be another user");
        return;
    }
    let partition = fixture.partition("disk");
    // A folder that nobody can enter, with all that it needs.
    let folder = fixture.path("theirs");
    fs::create_dir(&folder).unwrap();
    for open in [fixture.path(""), folder.clone()] {
        fs::set_permissions(open, fs::Permissions::from_mode(0o755)).unwrap();
    }
    for file in [fixture.plugin(), fixture.library()] {
        fs::copy(&file, folder.join(file.file_name().unwrap())).unwrap();
    }
    // A socket of its own: by the name `-`, one that is refused leaves a folder behind.
    let own = folder.join("own");
    fs::create_dir(&own).unwrap();
    chown(&own, Some(65534), Some(65534)).unwrap();
    let serve = |partition: &str| {
        let mut command = Command::new("setpriv");
        command
            .args([
                "--reuid=65534",
                "--regid=65534",
                "--clear-groups",
                "nbdkit",
                "-U",
            ])
            .arg(own.join("socket"))
            .arg(folder.join("nbdkit-tarn-plugin.so"))
            .arg(format!("partition={partition}"))
            .args(["--run", "true"])
            .env("LD_LIBRARY_PATH", &folder);
        command
    };
    let output = fails(&mut serve(&partition));
    assert!(
        output.contains("ermission denied") || output.contains("not allowed"),
        "{output}"
    );
    // Its own it would have.
    chown(fixture.file("disk"), Some(65534), Some(65534)).unwrap();
    output_of(&mut serve(&partition));
}

#[test]
fn over_tcp_only_who_has_a_certificate_or_a_key_comes_in() {
    let Some(fixture) = Fixture::new(&["certtool", "psktool", "nbdinfo"]) else {
        return;
    };
    let partition = fixture.partition("disk");
    let output = fixture.refused(&[&*partition, "--listen", "127.0.0.1:1"]);
    assert!(output.contains("--insecure"), "{output}");
    let info = |uri: &str| {
        let mut command = Command::new("nbdinfo");
        command.args(["--size", uri]);
        command
    };

    let (ours, strangers) = (fixture.authority("ours"), fixture.authority("strangers"));
    let address = nbd::free_address();
    let served = fixture.serve(&[
        &partition,
        "--listen",
        &address,
        "--tls-certificates",
        ours.to_str().unwrap(),
    ]);
    assert_eq!(served.uri, format!("nbds://{address}/"));
    let certificates =
        |folder: &std::path::Path| format!("{}?tls-certificates={}", served.uri, folder.display());
    assert_eq!(
        output_of(&mut info(&certificates(&ours))).trim(),
        SIZE.to_string()
    );
    fails(&mut info(&certificates(&strangers)));
    fails(&mut info(&served.uri));
    fails(&mut info(&format!("nbd://{address}/")));
    drop(served);

    let keys = |name: &str| {
        let file = fixture.path(name);
        output_of(
            Command::new("psktool")
                .args(["-u", "alice", "-p"])
                .arg(&file),
        );
        file.display().to_string()
    };
    let (key, other) = (keys("key"), keys("other"));
    let address = nbd::free_address();
    let served = fixture.serve(&[&partition, "--listen", &address, "--tls-psk", &key]);
    let by = |key: &str| format!("nbds://alice@{address}/?tls-psk-file={key}");
    assert_eq!(output_of(&mut info(&by(&key))).trim(), SIZE.to_string());
    fails(&mut info(&by(&other)));
    fails(&mut info(&format!("nbd://{address}/")));
    drop(served);

    let address = nbd::free_address();
    let served = fixture.serve(&[&partition, "--listen", &address, "--insecure"]);
    assert_eq!(output_of(&mut info(&served.uri)).trim(), SIZE.to_string());
}

#[test]
fn what_is_missing_or_of_another_version_is_named() {
    let Some(fixture) = Fixture::new(&["cc"]) else {
        return;
    };
    let partition = fixture.partition("disk");
    // `tarn` alone in a folder.
    let (tarn, plugin) = fixture.alone();
    let serve = || {
        let mut command = nbd::program(&tarn);
        command.args(["block", "serve", &partition]);
        command
    };
    let output = fails(&mut serve());
    assert!(output.contains("`make build` makes it"), "{output}");

    fixture.compile(&["-DTARN_VERSION=\"9.9.9\""], &plugin);
    let output = fails(&mut serve());
    assert!(
        output.contains("of tarn 9.9.9, and this is tarn"),
        "{output}"
    );
    let own = format!("partition={partition}");
    let output = fails(
        Command::new("nbdkit")
            .args(["-f", "-U"])
            .arg(fixture.path("socket"))
            .arg(&plugin)
            .arg(own),
    );
    let version = env!("CARGO_PKG_VERSION");
    assert!(
        output.contains("9.9.9") && output.contains(version),
        "{output}"
    );

    fs::copy(fixture.plugin(), &plugin).unwrap();
    let output = fails(serve().env("PATH", "/nowhere"));
    assert!(output.contains("apt-get install nbdkit"), "{output}");
    // Its library is not where it is looked for.
    let output = fails(&mut serve());
    assert!(output.contains("libtarn.so"), "{output}");
}

#[test]
fn the_plug_in_is_sound_where_sanitizers_look() {
    let Some(fixture) = Fixture::new(&["cc", "qemu-io", "nbdcopy"]) else {
        return;
    };
    let own = format!("-DTARN_VERSION=\"{}\"", env!("CARGO_PKG_VERSION"));
    let plugin = fixture.path("checked.so");
    let checked = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];
    fixture.compile(&[&own, checked[0], checked[1]], &plugin);
    let sanitizer = output_of(Command::new("cc").arg("-print-file-name=libasan.so"));
    let (partition, image) = (fixture.partition("disk"), fixture.path("image"));
    let clients = format!(
        "unset LD_PRELOAD
        qemu-io -f raw -c 'write -f -P 1 1 70001' -c 'write -z -f 9 3M' -c 'discard 0 1M' -c flush \
            -c 'read -P 0 9 3M' \"$uri\" && nbdcopy --connections=4 \"$uri\" {0} && nbdcopy --flush {0} \"$uri\"",
        image.display()
    );
    let mut command = Command::new("nbdkit");
    command
        .env("LD_PRELOAD", sanitizer.trim())
        .env("ASAN_OPTIONS", "detect_leaks=0")
        .args(["-U", "-"])
        .arg(&plugin)
        .arg(format!("partition={partition}"));
    let text = output_of(command.args(["--run", &clients]));
    assert!(!text.contains("verification failed"), "{text}");
    assert_eq!(fs::metadata(image).unwrap().len(), SIZE);
}

#[test]
fn a_served_device_leaves_nothing() {
    let Some(fixture) = Fixture::new(&[]) else {
        return;
    };
    let partition = fixture.partition("disk");
    let served = fixture.serve(&[&partition]);
    assert_eq!(fs::read_dir(fixture.path("run")).unwrap().count(), 1);
    drop(served);
    assert_eq!(fs::read_dir(fixture.path("run")).unwrap().count(), 0);
}
