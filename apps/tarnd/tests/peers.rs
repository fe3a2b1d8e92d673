//! Tasks between two tarnds of one user, as two nodes have them.

mod common;

use common::*;
use rustix::fd::AsFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tarn_client::Client;
use tarn_proto::local::*;

fn on(node: &str, path: &str) -> TaskLocation {
    TaskLocation::Node {
        node: node.into(),
        space: "fast".into(),
        path: path.as_bytes().into(),
    }
}

fn done(client: &Client, task: TaskSpec) -> TaskOutcome {
    let outcome = run(client, task);
    assert_eq!(outcome.end, TaskEnd::Done);
    outcome
}

#[test]
fn files_and_trees_go_to_another_node_and_back() {
    let (a, b) = pair(&[]);
    let client = a.client();
    let bytes = content(20_000_000, 1);
    std::fs::create_dir_all(a.path("fast/in/deep/er")).unwrap();
    std::fs::write(a.path("fast/in/deep/er/file"), &bytes).unwrap();
    std::fs::write(a.path("fast/in/empty"), b"").unwrap();
    symlink("deep/er/file", a.path("fast/in/link")).unwrap();

    // There: both notations, a tree and a file.
    let out = done(&client, copy(fast("in"), on("b", "x/tree")));
    assert_eq!(out.bytes, 20_000_000);
    assert_eq!(read(&b.path("fast/x/tree/link")), bytes);
    assert_eq!(
        code(&run(&client, copy(fast("in"), on("b", "x/tree")))),
        Some(Code::Exists)
    );
    let one = TaskSpec {
        verify: CopyVerification::Readback,
        durable: true,
        ..copy(on("a", "in/deep/er/file"), on("b", "one"))
    };
    assert_eq!(done(&client, one).checksum, Some(checksum(&bytes)));
    assert_eq!(read(&b.path("fast/one")), bytes);
    let seen = b.client().spaces().unwrap();
    assert!(seen[0].used > 40_000_000, "{seen:?}");

    // Back: data that another node wrote, whole and in part, into a space and outside.
    std::fs::write(b.path("fast/one"), b"changed there").unwrap();
    let replaced = TaskSpec {
        replace: true,
        ..copy(on("b", "one"), fast("in/empty"))
    };
    assert_eq!(
        done(&client, replaced).checksum,
        Some(checksum(b"changed there"))
    );
    assert_eq!(read(&a.path("fast/in/empty")), b"changed there");
    done(&client, copy(on("b", "x/tree"), a.outside("out/tree")));
    assert_eq!(read(&a.path("out/tree/deep/er/file")), bytes);
    let none = TaskSpec {
        verify: CopyVerification::None,
        ..copy(on("b", "x/tree/link"), fast("link"))
    };
    done(&client, none);
    assert_eq!(
        std::fs::read_link(a.path("fast/link")).unwrap(),
        Path::new("deep/er/file")
    );
    // From outside straight there, and between two places there.
    std::fs::write(a.path("source"), b"outside").unwrap();
    done(&client, moved(a.outside("source"), on("b", "fetched")));
    assert!(!a.path("source").exists());
    done(&client, moved(on("b", "fetched"), on("b", "y/renamed")));
    assert_eq!(read(&b.path("fast/y/renamed")), b"outside");
    done(&client, remove(on("b", "y")));
    assert!(!b.path("fast/y").exists());
    assert_eq!(
        code(&run(&client, remove(on("b", "y")))),
        Some(Code::NotFound)
    );
    assert_eq!((a.leftovers(), b.leftovers()), (Vec::new(), Vec::new()));
}

/// A move leaves either source or destination, also when others write meanwhile.
#[test]
fn moves_between_nodes_remove_what_was_copied_and_nothing_else() {
    let (a, b) = pair(&[]);
    let client = a.client();
    let bytes = content(3_000_000, 2);
    std::fs::create_dir(a.path("fast/t")).unwrap();
    std::fs::write(a.path("fast/t/f"), &bytes).unwrap();
    let durable = |task: TaskSpec| TaskSpec {
        durable: true,
        ..task
    };
    done(&client, durable(moved(fast("t"), on("b", "t"))));
    assert!(!a.path("fast/t").exists());
    done(&client, moved(on("b", "t"), fast("back")));
    assert!(!b.path("fast/t").exists());
    assert_eq!(read(&a.path("fast/back/f")), bytes);
    done(&client, moved(fast("back/f"), on("b", "f")));
    done(&client, durable(moved(on("b", "f"), a.outside("out/f"))));
    assert!(!b.path("fast/f").exists() && read(&a.path("out/f")) == bytes);
    assert!(a.client().spaces().unwrap()[0].used < 100_000);

    // It grows while it is moved, slowly: the source stays.
    for (from, to, source) in [
        (fast("slow"), on("b", "slow"), a.path("fast/slow")),
        (on("b", "slow2"), fast("slow2"), b.path("fast/slow2")),
    ] {
        std::fs::create_dir(&source).unwrap();
        // Progress on large files is reported as it comes.
        for n in 0..2 {
            std::fs::write(source.join(n.to_string()), content(3_000_000, 3)).unwrap();
        }
        let first = source.join("0");
        let slow = TaskSpec {
            rate: 3_000_000,
            ..moved(from, to)
        };
        let id = submit(&client, slow).unwrap();
        let began = Instant::now();
        while client.status(&[id]).unwrap()[0].done < 200_000 {
            assert!(began.elapsed() < LONG);
            std::thread::sleep(Duration::from_millis(5));
        }
        let mut file = std::fs::OpenOptions::new()
            .append(true)
            .open(&first)
            .unwrap();
        std::io::Write::write_all(&mut file, b"more").unwrap();
        assert_eq!(code(&wait(&client, id)), Some(Code::Changed));
        assert_eq!(read(&first).len(), 3_000_004);
    }
    assert_eq!((a.leftovers(), b.leftovers()), (Vec::new(), Vec::new()));
}

#[test]
fn memory_goes_to_another_node_and_back() {
    let (a, b) = pair(&[]);
    let client = a.client();
    let bytes = content(9_000_000, 3);
    let memfd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memfd, 20_000_000).unwrap();
    rustix::io::pwrite(&memfd, &bytes, 100).unwrap();
    let region = client.register(memfd.as_fd(), 20_000_000).unwrap();
    let memory = |offset, length| TaskLocation::Memory {
        region,
        offset,
        length,
    };
    let hash = Some(checksum(&bytes));
    let saved = done(&client, copy(memory(100, 9_000_000), on("b", "dump/1")));
    assert_eq!((saved.bytes, saved.checksum), (9_000_000, hash));
    assert_eq!(read(&b.path("fast/dump/1")), bytes);
    let load = done(
        &client,
        copy(on("b", "dump/1"), memory(10_000_000, 10_000_000)),
    );
    assert_eq!((load.bytes, load.checksum), (9_000_000, hash));
    let mut back = vec![0; bytes.len()];
    rustix::io::pread(&memfd, &mut back[..], 10_000_000).unwrap();
    assert!(back == bytes);
    done(&client, moved(on("b", "dump/1"), memory(0, 10_000_000)));
    assert!(!b.path("fast/dump/1").exists());
    std::fs::write(b.path("fast/none"), b"").unwrap();
    assert_eq!(done(&client, copy(on("b", "none"), memory(0, 1))).bytes, 0);
    std::fs::write(b.path("fast/ten"), b"0123456789").unwrap();
    let small = run(&client, copy(on("b", "ten"), memory(0, 9)));
    assert_eq!(code(&small), Some(Code::NoSpace));
    assert_eq!(
        code(&run(&client, copy(on("b", "dump"), memory(0, 9)))),
        Some(Code::Invalid)
    );
    // Nobody can name memory whose task has ended.
    let gone = TaskLocation::Node {
        node: "a".into(),
        space: format!(".tarn-{}", saved.id),
        path: b"".into(),
    };
    let stolen = run(&b.client(), copy(gone, fast("stolen")));
    assert_eq!(code(&stolen), Some(Code::NotFound));
    client.unregister(region).unwrap();
}

/// The target's space and quotas hold, its names lead nowhere else, and a client that is none of the nodes gets nothing.
#[test]
fn the_target_decides() {
    let (a, b) = pair(&[]);
    let client = a.client();
    std::fs::write(a.path("large"), content(49 << 20, 1)).unwrap();
    let full = run(&client, copy(a.outside("large"), on("b", "large")));
    let TaskEnd::Failed(why) = &full.end else {
        panic!("{full:?}")
    };
    assert!(
        why.code == Code::Quota && why.text.contains("node b"),
        "{why:?}"
    );
    std::fs::create_dir(b.path("secret")).unwrap();
    std::fs::write(b.path("secret/key"), b"key").unwrap();
    symlink("../secret", b.path("fast/out")).unwrap();
    std::fs::write(a.path("fast/file"), b"x").unwrap();
    for (task, expected) in [
        (copy(on("b", "out/key"), fast("stolen")), Code::Denied),
        (copy(fast("file"), on("b", "out/planted")), Code::Denied),
        (copy(on("b", "none"), fast("stolen")), Code::NotFound),
        (remove(on("b", "out/key")), Code::Denied),
    ] {
        assert_eq!(
            code(&run(&client, task.clone())),
            Some(expected),
            "{task:?}"
        );
    }
    let no_space = TaskLocation::Node {
        node: "b".into(),
        space: "none".into(),
        path: b"x".into(),
    };
    for task in [
        copy(no_space.clone(), fast("x")),
        copy(fast("file"), no_space),
    ] {
        assert_eq!(code(&run(&client, task)), Some(Code::NotFound));
    }
    for (place, expected) in [
        (on("c", "x"), Code::Unsupported),
        (on("b", "../x"), Code::Invalid),
    ] {
        assert_eq!(
            submit(&client, copy(fast("file"), place)).unwrap_err().code,
            expected
        );
    }
    // A space that was made later is seen, and one that was removed is not.
    std::fs::create_dir(b.path("later")).unwrap();
    let spec = SpaceSpec {
        root: b.path("later").to_string_lossy().as_bytes().into(),
        capacity: 1 << 20,
        quota: 0,
        slots: 0,
        everyone: Access::default(),
        users: Vec::new(),
    };
    let name = "later".to_owned();
    let later = || TaskLocation::Node {
        node: "b".into(),
        space: "later".into(),
        path: b"f".into(),
    };
    let there = b.client();
    there
        .change_space(SpaceChange::Make {
            name: name.clone(),
            spec,
        })
        .unwrap();
    done(&client, copy(fast("file"), later()));
    done(&client, copy(later(), fast("again")));
    there.change_space(SpaceChange::Remove { name }).unwrap();
    assert_eq!(
        code(&run(&client, copy(later(), fast("third")))),
        Some(Code::NotFound)
    );
    // Another key: no reply, and no data.
    let [port] = ports();
    let text = std::fs::read_to_string(b.path("peers.toml")).unwrap();
    let of_b = text.split("[nodes.b]").nth(1).unwrap();
    let port_b: u16 = of_b.split(['"', ':']).nth(2).unwrap().parse().unwrap();
    let stranger = start_peer(
        "a",
        &KEY.replace('5', "6"),
        &[("a", port, ""), ("b", port_b, "")],
        &[],
    );
    let began = Instant::now();
    let refused = run(&stranger.client(), copy(on("b", "again"), fast("x")));
    let TaskEnd::Failed(why) = refused.end else {
        panic!("it has another key")
    };
    // At once, with the likeliest cause, and short enough for C.
    assert!(began.elapsed() < Duration::from_secs(10));
    assert!(
        why.code == Code::Io
            && why.text.contains("does not know the key")
            && why.text.contains("file of peers")
            && why.text.len() < 191,
        "{why:?}"
    );
}

/// A task that was handed over is given up with its original, and resumes after either tarnd was killed if it is durable.
#[test]
fn cancelled_paused_killed() {
    let (mut a, mut b) = pair(&[]);
    let client = a.client();
    let bytes = content(8_000_000, 4);
    std::fs::write(a.path("fast/f"), &bytes).unwrap();
    let slow = |to: &str| TaskSpec {
        rate: 4_000_000,
        durable: true,
        ..copy(fast("f"), on("b", to))
    };
    let until_moves = |client: &Client, id| {
        let began = Instant::now();
        while client.status(&[id]).unwrap()[0].done < 1_000_000 {
            assert!(began.elapsed() < LONG);
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    let id = submit(&client, slow("1")).unwrap();
    until_moves(&client, id);
    client.cancel(&[id]).unwrap();
    assert_eq!(code(&wait(&client, id)), Some(Code::Cancelled));
    let began = Instant::now();
    while !b.leftovers().is_empty() || b.client().stats().unwrap().running > 0 {
        assert!(began.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(!b.path("fast/1").exists());
    // Paused, it has ended there; resumed, it begins there again.
    let id = submit(&client, slow("paused")).unwrap();
    until_moves(&client, id);
    assert_eq!(client.pause(&[id]).unwrap(), [PauseResult::Done]);
    let began = Instant::now();
    while client.status(&[id]).unwrap()[0].state != TaskState::Paused {
        assert!(began.elapsed() < LONG);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(b.leftovers().is_empty() && !b.path("fast/paused").exists());
    client.resume(&[id]).unwrap();
    assert_eq!(code(&wait(&client, id)), None);
    assert_eq!(read(&b.path("fast/paused")), bytes);
    // Each is killed once.
    for (to, which) in [("2", true), ("3", false)] {
        let client = a.client();
        let id = submit(&client, slow(to)).unwrap();
        until_moves(&client, id);
        match which {
            true => {
                b.kill();
                b.again();
            }
            false => {
                drop(client);
                a.kill();
                a.again();
            }
        }
        assert_eq!(code(&wait(&a.client(), id)), None, "{to}");
        assert_eq!(read(&b.path(&format!("fast/{to}"))), bytes);
    }
    // One that is not there.
    b.kill();
    let client = a.client();
    let lost = run(&client, copy(fast("f"), on("b", "4")));
    let TaskEnd::Failed(why) = lost.end else {
        panic!()
    };
    assert!(
        why.code == Code::Io && why.text.contains("node b"),
        "{why:?}"
    );
}

/// Many tasks both ways at once do not wait for each other in a circle.
#[test]
fn crossing_tasks_all_end() {
    let (a, b) = pair(&["--slots", "1"]);
    for node in [&a, &b] {
        std::fs::write(node.path("fast/f"), content(100_000, 5)).unwrap();
    }
    let ends: Vec<_> = [(&a, "b"), (&b, "a")]
        .map(|(node, other)| {
            let client = node.client();
            let each = |n: usize| match n % 2 {
                0 => copy(fast("f"), on(other, &format!("to/{n}"))),
                _ => copy(on(other, "f"), fast(&format!("from/{n}"))),
            };
            let tasks: Vec<_> = (0..60).map(each).collect();
            let ids = client
                .submit(&tasks)
                .unwrap()
                .into_iter()
                .map(Result::unwrap);
            (client, ids.collect::<Vec<_>>())
        })
        .into_iter()
        .collect();
    for (client, ids) in ends {
        for id in ids {
            assert_eq!(wait(&client, id).end, TaskEnd::Done);
        }
    }
}

/// A link's rate holds for all that comes over it together, and slows no other link.
#[test]
fn links_have_rates_of_their_own() {
    let [a, b, c] = ports();
    let nodes = [("a", a, ""), ("b", b, "rate = \"500 kB/s\""), ("c", c, "")];
    let [a, b, c] = ["a", "b", "c"].map(|name| start_peer(name, KEY, &nodes, &[]));
    for (node, bytes) in [(&b, 750_000), (&c, 4_000_000)] {
        std::fs::write(node.path("fast/f"), content(bytes, 6)).unwrap();
    }
    let client = a.client();
    let began = Instant::now();
    let slow = [copy(on("b", "f"), fast("1")), copy(on("b", "f"), fast("2"))];
    let slow = client.submit(&slow).unwrap();
    for n in 0..4 {
        done(&client, copy(on("c", "f"), fast(&format!("c{n}"))));
    }
    let others = began.elapsed();
    for id in slow {
        assert_eq!(wait(&client, id.unwrap()).end, TaskEnd::Done);
    }
    let both = began.elapsed();
    // 1.5 MB at 500 kB/s.
    assert!(both >= Duration::from_millis(2900), "{both:?}");
    // 16 MB at that rate would take 32 s.
    assert!(others < Duration::from_secs(30), "{others:?}");
    // The node that takes a task over limits its rate.
    std::fs::write(c.path("fast/g"), content(2_000_000, 7)).unwrap();
    let began = Instant::now();
    done(&b.client(), copy(fast("f"), on("c", "from-b")));
    assert!(
        began.elapsed() >= Duration::from_millis(700),
        "{:?}",
        began.elapsed()
    );
    assert_eq!(c.path("fast/from-b").metadata().unwrap().size(), 750_000);
}

/// A node that follows a task of another node uses one connection.
#[test]
fn a_task_is_followed_on_one_connection() {
    let [a_port, b_port] = ports();
    let wire = TcpListener::bind("127.0.0.1:0").unwrap();
    let seen = ("b", wire.local_addr().unwrap().port(), "");
    let a = start_peer("a", KEY, &[("a", a_port, ""), seen], &[]);
    let nodes = [("a", a_port, ""), ("b", b_port, "")];
    let _b = start_peer("b", KEY, &nodes, &[]);
    let connections = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&connections);
    // The messages of `a` to `b` go by here; it ends with the test's process.
    std::thread::spawn(move || {
        for near in wire.incoming().map_while(Result::ok) {
            counted.fetch_add(1, Ordering::Relaxed);
            let far = TcpStream::connect(("127.0.0.1", b_port)).unwrap();
            let ends = [(&near, &far), (&far, &near)];
            for (from, to) in ends.map(|(f, t)| (f.try_clone().unwrap(), t.try_clone().unwrap())) {
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut &from, &mut &to);
                    let _ = to.shutdown(Shutdown::Write);
                });
            }
        }
    });
    std::fs::write(a.path("fast/f"), content(6_000_000, 1)).unwrap();
    let slow = TaskSpec {
        rate: 3_000_000,
        ..copy(fast("f"), on("b", "f"))
    };
    let began = Instant::now();
    done(&a.client(), slow);
    // Looks come four times a second.
    assert!(began.elapsed() > Duration::from_millis(1500));
    let connections = connections.load(Ordering::Relaxed);
    assert!((1..=2).contains(&connections), "{connections}");
}

#[test]
fn a_file_of_peers_that_cannot_be_used_ends_tarnd() {
    let dir = tempfile::tempdir().unwrap();
    let [port] = ports();
    let file = peers(dir.path(), KEY, &[("a", port, "")]);
    let mut daemon = Daemon::start_in(dir, "1MiB", &["--node-name", "a", "--peers", &file]);
    assert!(daemon.terminate().success());
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o640)).unwrap();
    let ended = daemon
        .command()
        .stderr(std::process::Stdio::piped())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&ended.stderr);
    assert!(
        !ended.status.success() && text.contains("chmod 600") && !text.contains(KEY),
        "{text}"
    );
}
