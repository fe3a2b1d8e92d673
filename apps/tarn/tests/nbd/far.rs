//! Devices that are partitions in dataspaces of tarnd, of this node and of another one.

use crate::nbd::{Client, Fixture, SIZE, Served, output_of};
use crate::nodes::{Node, pair, pairs};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Makes partitions by their names.
fn make(node: &Node, names: &[&str]) {
    for name in names {
        node.tarn(&["partition", "create", name, &format!("{SIZE} B")]);
    }
}

fn content() -> Vec<u8> {
    (0..SIZE).map(|at| (at / 7 + at / 4096) as u8).collect()
}

/// By several connections.
fn copy(from: &str, to: &str) {
    output_of(Command::new("nbdcopy").args(["--connections=4", "--flush", from, to]));
}

fn in_and_out(fixture: &Fixture, served: &Served, image: &Path) {
    let again = fixture.path("again");
    copy(image.to_str().unwrap(), &served.uri);
    copy(&served.uri, again.to_str().unwrap());
    assert!(fs::read(&again).unwrap() == fs::read(image).unwrap());
}

#[test]
fn what_goes_in_comes_out_whatever_node_and_medium_it_lies_on() {
    let Some(fixture) = Fixture::new(&["nbdcopy", "qemu-io"]) else {
        return;
    };
    let image = fixture.path("image");
    fs::write(&image, content()).unwrap();
    for (nodes, _) in pairs() {
        come_out(&fixture, &nodes, &image);
    }
}

fn come_out(fixture: &Fixture, nodes: &[Node; 2], image: &Path) {
    let [here, there] = nodes
        .each_ref()
        .map(|node| fixture.with_tarnd(node.socket()));
    make(
        &nodes[0],
        &["fast/disk", "disk/disk", "b:fast/disk", "b:disk/disk"],
    );
    for (name, that_nodes) in [
        ("fast/disk", "a:fast/disk"),
        ("disk/disk", "a:disk/disk"),
        ("b:fast/disk", "fast/disk"),
        ("b:disk/disk", "disk/disk"),
    ] {
        let served = here.serve(&[name]);
        in_and_out(&here, &served, image);
        served.io(&[
            "write -f -P 0x22 4097 3", // a part of a unit, with FUA
            "write -z 64k 9001",
            "discard 128k 64k",
            "flush",
            "read -P 0x22 4097 3",
            "read -P 0 64k 9001",
        ]);
        // Both nodes serve the same, at the same time.
        let other = there.serve(&[that_nodes]);
        other.io(&[
            "read -P 0x22 4097 3",
            "read -P 0 64k 9001",
            "write -P 0x33 1M 5",
        ]);
        served.io(&["read -P 0x33 1M 5"]);
        let message = nodes[0].fails(&["partition", "rm", name]);
        assert!(message.contains("is open"), "{message}");
        drop((served, other));
        nodes[0].tarn(&["partition", "rm", name]);
    }
}

#[test]
fn partitions_of_two_nodes_are_one_device_block_by_block() {
    let Some(fixture) = Fixture::new(&["nbdcopy", "qemu-io"]) else {
        return;
    };
    let nodes = pair();
    let [here, there] = nodes
        .each_ref()
        .map(|node| fixture.with_tarnd(node.socket()));
    make(&nodes[0], &["fast/one", "b:fast/other"]);
    let image = fixture.path("image");
    fs::write(&image, [content(), content()].concat()).unwrap();
    let served = here.serve(&["fast/one", "b:fast/other", "--block", "64KiB"]);
    in_and_out(&here, &served, &image);
    let other = there.serve(&["a:fast/one", "fast/other", "--block", "64KiB"]);
    other.io(&["write -P 0x44 60k 8k"]);
    served.io(&["read -P 0x44 60k 8k"]);
    let file = fs::read(nodes[1].fast().join("other.partition")).unwrap();
    let data = &file[file.len() - SIZE as usize..];
    assert_eq!(
        (data[..4 << 10].to_vec(), data[4 << 10]),
        (vec![0x44; 4 << 10], content()[68 << 10])
    );
}

/// Several jobs, each with its part, in units that requests of others change at the same time.
#[test]
fn clients_of_a_disk_of_another_node_find_what_each_has_written() {
    let Some(fixture) = Fixture::new(&["fio"]) else {
        return;
    };
    let nodes = pair();
    let here = fixture.with_tarnd(nodes[0].socket());
    make(&nodes[0], &["b:disk/disk"]);
    let served = here.serve(&["b:disk/disk"]);
    // Where jobs meet, both change the same unit.
    let each = 1000 * 1000;
    served.clients(each, &["--rw=randwrite", "--bs=1000", "--number_ios=200"]);
}

#[test]
fn a_lost_node_is_an_error_of_the_client_and_no_end_of_the_server() {
    let Some(fixture) = Fixture::new(&["qemu-io", "nbdinfo"]) else {
        return;
    };
    let [a, mut b] = pair();
    let here = fixture.with_tarnd(a.socket());
    for name in ["b:fast/disk", "b:disk/disk"] {
        make(&a, &[name]);
        let mut served = here.serve(&[name]);
        let mut client = Client::new(&served);
        let line = client.io("write -f -P 0x55 0 1M");
        assert!(line.contains("wrote 1048576"), "{line}");
        b.kill();
        let since = Instant::now();
        // By threads that have a stream already, and by others.
        let output =
            client.rest("read 0 4k\nwrite 8M 4k\nwrite -f 9M 3\nwrite -z 3M 64k\nread 12M 1M\n");
        let shut = "transport endpoint shutdown";
        assert_eq!(output.matches(shut).count(), 5, "{output}");
        assert!(served.is_there());
        // Nor does a node that is back serve earlier clients: it may have lost data that was not flushed.
        b.start();
        crate::nbd::fails(Command::new("nbdinfo").args(["--size", &served.uri]));
        b.kill();
        served.terminate();
        let (status, _) = served.ended();
        assert_eq!(status, Some(0));
        assert!(since.elapsed() < Duration::from_secs(60));
        let message = here.refused(&[name]);
        assert!(message.contains("cannot be reached"), "{message}");
        // It is back, and so is what was written.
        b.start();
        let served = here.serve(&[name]);
        served.io(&[
            "read -P 0x55 0 1M",
            "write -P 0x66 8M 4k",
            "read -P 0x66 8M 4k",
        ]);
    }
}

/// A program that has a device open keeps it, whatever becomes of the tarnd that has opened it.
#[test]
fn a_device_of_this_node_outlives_its_tarnd() {
    let Some(fixture) = Fixture::new(&["qemu-io"]) else {
        return;
    };
    let [mut a, _b] = pair();
    let here = fixture.with_tarnd(a.socket());
    make(&a, &["fast/disk"]);
    let served = here.serve(&["fast/disk"]);
    served.io(&["write -P 0x55 0 1M"]);
    a.kill();
    served.io(&["read -P 0x55 0 1M", "write -P 0x66 1M 4k", "flush"]);
    a.start();
    served.io(&["read -P 0x66 1M 4k"]);
}
