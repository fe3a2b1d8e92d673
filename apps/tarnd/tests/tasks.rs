//! Tasks on files and memory, through the socket of a real tarnd.

mod common;

use common::*;
use rustix::fd::AsFd;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::os::unix::fs::{MetadataExt, symlink};
use std::time::{Duration, Instant};
use tarn_client::WaitCondition;
use tarn_proto::local::*;

#[test]
fn copies_moves_and_removes_files_and_trees() {
    let daemon = Daemon::start(&[]);
    let client = daemon.client();
    let bytes = content(300_000, 1);
    std::fs::create_dir_all(daemon.path("in/deep/er")).unwrap();
    std::fs::write(daemon.path("in/deep/er/file"), &bytes).unwrap();
    std::fs::write(daemon.path("in/empty"), b"").unwrap();
    symlink("deep/er/file", daemon.path("in/link")).unwrap();

    let done = run(&client, copy(daemon.outside("in"), fast("a/tree")));
    assert_eq!(
        (&done.end, done.bytes, done.late),
        (&TaskEnd::Done, 300_000, false)
    );
    assert_eq!(read(&daemon.path("fast/a/tree/link")), bytes);
    let again = run(&client, copy(daemon.outside("in"), fast("a/tree")));
    assert_eq!(code(&again), Some(Code::Exists));
    let one = run(&client, copy(fast("a/tree/deep/er/file"), fast("b/one")));
    let hash = checksum(&bytes);
    assert_eq!(
        (one.checksum, read(&daemon.path("fast/b/one"))),
        (Some(hash), bytes.clone())
    );

    // A move within the space is a rename: the inode stays. One to outside copies, reads back, and removes.
    let inode = daemon.path("fast/b/one").metadata().unwrap().ino();
    assert_eq!(code(&run(&client, moved(fast("b/one"), fast("c")))), None);
    assert_eq!(daemon.path("fast/c").metadata().unwrap().ino(), inode);
    assert!(!daemon.path("fast/b/one").exists());
    let url =
        TaskLocation::External(format!("file://{}", daemon.path("out/moved").display()).into());
    assert_eq!(code(&run(&client, moved(fast("a/tree"), url))), None);
    assert_eq!(read(&daemon.path("out/moved/deep/er/file")), bytes);
    assert!(!daemon.path("fast/a/tree").exists());

    // A replacement must be requested.
    std::fs::write(daemon.path("new"), b"new").unwrap();
    let replace = |task: TaskSpec| TaskSpec {
        replace: true,
        ..task
    };
    assert_eq!(
        code(&run(&client, copy(daemon.outside("new"), fast("c")))),
        Some(Code::Exists)
    );
    assert_eq!(
        code(&run(
            &client,
            replace(copy(daemon.outside("new"), fast("c")))
        )),
        None
    );
    assert_eq!(read(&daemon.path("fast/c")), b"new");
    assert_eq!(
        code(&run(
            &client,
            replace(moved(daemon.outside("new"), daemon.outside("out/moved")))
        )),
        None
    );
    assert_eq!(
        (read(&daemon.path("out/moved")), daemon.path("new").exists()),
        (b"new".to_vec(), false)
    );

    assert_eq!(code(&run(&client, remove(fast("c")))), None);
    assert_eq!(code(&run(&client, remove(fast("c")))), Some(Code::NotFound));
    assert_eq!(
        code(&run(&client, copy(fast("no/thing"), fast("x")))),
        Some(Code::NotFound)
    );
    assert_eq!(daemon.leftovers(), Vec::<std::path::PathBuf>::new());
    let spaces = client.spaces().unwrap();
    let stored = |path: &std::path::Path| path.metadata().unwrap().blocks() * 512;
    let folders = stored(&daemon.path("fast/a")) + stored(&daemon.path("fast/b"));
    assert!(
        spaces[0].used <= folders && spaces[0].reserved == 0,
        "{spaces:?}"
    );
}

/// No link and no `..` leads out of a space, by any user.
#[test]
fn nothing_leads_out_of_a_space() {
    let daemon = Daemon::start(&[]);
    let client = daemon.client();
    std::fs::create_dir(daemon.path("secret")).unwrap();
    std::fs::write(daemon.path("secret/key"), b"key").unwrap();
    symlink("../secret", daemon.path("fast/out")).unwrap();
    std::fs::write(daemon.path("fast/file"), b"x").unwrap();
    for task in [
        copy(fast("out/key"), fast("stolen")),
        copy(fast("file"), fast("out/planted")),
        moved(fast("file"), fast("out/planted")),
        remove(fast("out/key")),
    ] {
        assert_eq!(
            code(&run(&client, task.clone())),
            Some(Code::Denied),
            "{task:?}"
        );
    }
    let refused = submit(&client, copy(fast("../secret/key"), fast("stolen")));
    assert_eq!(refused.unwrap_err().code, Code::Invalid);
    // The link itself is a thing of the space, and can be removed.
    assert_eq!(code(&run(&client, remove(fast("out")))), None);
    assert_eq!(read(&daemon.path("secret/key")), b"key");
    assert!(!daemon.path("secret/planted").exists() && !daemon.path("fast/stolen").exists());
}

#[test]
fn memory_goes_to_files_and_back() {
    let daemon = Daemon::start(&[]);
    let client = daemon.client();
    let bytes = content(1_000_000, 3);
    let memfd = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&memfd, 2_000_000).unwrap();
    rustix::io::pwrite(&memfd, &bytes, 100).unwrap();
    let region = client.register(memfd.as_fd(), 2_000_000).unwrap();
    let memory = |offset, length| TaskLocation::Memory {
        region,
        offset,
        length,
    };
    let save = TaskSpec {
        verify: CopyVerification::Readback,
        ..copy(memory(100, 1_000_000), fast("dump/1"))
    };
    let saved = run(&client, save);
    let hash = checksum(&bytes);
    assert_eq!(
        (code(&saved), saved.checksum, saved.bytes),
        (None, Some(hash), 1_000_000)
    );
    assert_eq!(read(&daemon.path("fast/dump/1")), bytes);
    assert!(client.spaces().unwrap()[0].used >= 1_000_000);

    let load = run(&client, copy(fast("dump/1"), memory(1_000_000, 1_000_000)));
    assert_eq!((code(&load), load.checksum), (None, Some(hash)));
    let mut back = vec![0; 1_000_000];
    rustix::io::pread(&memfd, &mut back[..], 1_000_000).unwrap();
    assert!(back == bytes);

    assert_eq!(
        code(&run(&client, copy(fast("dump/1"), memory(0, 9)))),
        Some(Code::NoSpace)
    );
    let beyond = submit(&client, copy(memory(1_999_999, 2), fast("x")));
    assert_eq!(beyond.unwrap_err().code, Code::Invalid);
    // A program that shrinks its memory while it is read harms its own task only.
    ftruncate(&memfd, 1000).unwrap();
    assert_eq!(
        code(&run(&client, copy(memory(0, 2_000_000), fast("y")))),
        Some(Code::Changed)
    );
    assert!(!daemon.path("fast/y").exists() && daemon.leftovers().is_empty());
    client.unregister(region).unwrap();
    assert_eq!(client.unregister(region).unwrap_err().code, Code::NotFound);
    let file = std::fs::File::open(daemon.path("fast/dump/1")).unwrap();
    assert_eq!(
        client.register(file.as_fd(), 1).unwrap_err().code,
        Code::Invalid
    );
}

/// Capacity and quota are enforced by the real content, also after a restart.
#[test]
fn space_is_enforced() {
    let mut daemon = Daemon::start_in(tempfile::tempdir().unwrap(), "4MiB:3MiB", &[]);
    let client = daemon.client();
    std::fs::write(daemon.path("large"), content(5 << 20, 1)).unwrap();
    std::fs::write(daemon.path("two"), content(2 << 20, 1)).unwrap();
    assert_eq!(
        code(&run(&client, copy(daemon.outside("large"), fast("large")))),
        Some(Code::Quota)
    );
    assert_eq!(
        code(&run(&client, copy(daemon.outside("two"), fast("two")))),
        None
    );
    drop(client);
    assert!(daemon.terminate().success());
    daemon.again();
    let client = daemon.client();
    let full = run(&client, copy(daemon.outside("two"), fast("again")));
    assert_eq!(code(&full), Some(Code::Quota), "{full:?}");
    assert!(!daemon.path("fast/again").exists());
    // A queued removal frees space for later tasks.
    let ids: Vec<TaskId> = client
        .submit(&[
            remove(fast("two")),
            copy(daemon.outside("two"), fast("again")),
        ])
        .unwrap()
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let ends = client.wait(&ids, WaitCondition::All, Some(LONG)).unwrap();
    assert!(ends.iter().all(|o| o.end == TaskEnd::Done), "{ends:?}");
    // tarnd notices a file that somebody removes without it.
    std::fs::remove_file(daemon.path("fast/again")).unwrap();
    assert_eq!(
        code(&run(
            &client,
            copy(daemon.outside("two"), fast("once-more"))
        )),
        None
    );
}

#[test]
fn progress_time_left_and_cancellation() {
    let daemon = Daemon::start(&["--external-rate", "8 MB/s"]);
    let client = daemon.client();
    std::fs::write(daemon.path("big"), content(32_000_000, 1)).unwrap();
    let started = Instant::now();
    let id = submit(&client, copy(daemon.outside("big"), fast("big"))).unwrap();
    let slow = TaskSpec {
        rate: 1_000_000,
        ..copy(fast("big2"), fast("x"))
    };
    std::fs::write(daemon.path("fast/big2"), content(10_000_000, 1)).unwrap();
    let slow = submit(&client, slow).unwrap();
    // How soon both have progress depends more on the machine.
    let status = loop {
        let status = client.status(&[id, slow, 99]).unwrap();
        if status[..2].iter().all(|s| s.done > 0) {
            break status;
        }
        assert!(started.elapsed() < LONG, "{status:?}");
        std::thread::sleep(Duration::from_millis(100));
    };
    let seconds = started.elapsed().as_secs_f64();
    assert_eq!(
        (status[0].state, status[0].all),
        (TaskState::Running, Some(32_000_000))
    );
    for (status, rate) in status.iter().zip([8e6, 1e6]) {
        let done = status.done as f64 / rate;
        assert!(
            done < 1.2 * seconds + 0.5,
            "{status:?} after {seconds} s at {rate}"
        );
    }
    let left = status[0].left.unwrap() as f64 / 1e9;
    assert!(left > 0.5, "{left} s left after {seconds} s");
    assert_eq!(status[2].state, TaskState::Unknown);
    let stats = client.stats().unwrap();
    assert!(
        stats.running == 2 && stats.left.unwrap() > 1_000_000_000,
        "{stats:?}"
    );

    let over = client.wait(&[id], WaitCondition::All, Some(Duration::from_millis(20)));
    assert_eq!(over.unwrap_err().code, Code::TimedOut);
    let results = client.cancel(&[id, slow, 99]).unwrap();
    use CancelResult::{Cancelled, Over, Unknown};
    assert_eq!(results, [Cancelled, Cancelled, Unknown]);
    for id in [id, slow] {
        assert_eq!(code(&wait(&client, id)), Some(Code::Cancelled));
    }
    assert_eq!(client.cancel(&[id]).unwrap(), [Over]);
    assert!(!daemon.path("fast/big").exists() && daemon.leftovers().is_empty());
}

/// A copy that is paused stops, keeps its bytes, gives its slot away, and resumes: over a restart too.
#[test]
fn a_paused_copy_goes_on_where_it_was() {
    let mut daemon = Daemon::start(&["--external-slots", "1"]);
    let client = daemon.client();
    let bytes = content(1_000_000, 9);
    std::fs::create_dir(daemon.path("big")).unwrap();
    for n in 0..40 {
        std::fs::write(daemon.path(&format!("big/{n}")), &bytes).unwrap();
    }
    std::fs::write(daemon.path("small"), b"small").unwrap();
    let slow = TaskSpec {
        rate: 20_000_000,
        durable: true,
        ..copy(daemon.outside("big"), fast("big"))
    };
    let id = submit(&client, slow).unwrap();
    let status = |client: &tarn_client::Client, id| client.status(&[id]).unwrap().remove(0);
    let until = |what: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !what() {
            assert!(began.elapsed() < LONG);
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    until(&|| status(&client, id).done > 20_000_000);
    assert_eq!(
        client.pause(&[id, 7]).unwrap(),
        [PauseResult::Done, PauseResult::Unknown]
    );
    until(&|| status(&client, id).state == TaskState::Paused);
    assert!(!daemon.path("fast/big").exists());
    let inodes = |folder: &std::path::Path| -> Vec<u64> {
        let files = std::fs::read_dir(folder).unwrap();
        files
            .map(|f| f.unwrap().metadata().unwrap().ino())
            .collect()
    };
    let half = daemon.leftovers().into_iter().find(|p| p.is_dir());
    let half = inodes(&half.unwrap());
    // The only slot is free.
    assert_eq!(
        code(&run(&client, copy(daemon.outside("small"), fast("small")))),
        None
    );
    client.pause_all(true).unwrap();
    drop(client);
    daemon.kill();
    daemon.again();
    let client = daemon.client();
    assert_eq!(status(&client, id).state, TaskState::Paused);
    client.resume(&[id]).unwrap();
    assert_eq!(status(&client, id).state, TaskState::Queued);
    client.pause_all(false).unwrap();
    assert_eq!(code(&wait(&client, id)), None);
    let whole = inodes(&daemon.path("fast/big"));
    let stayed = whole.iter().filter(|inode| half.contains(inode)).count();
    assert!(stayed >= 15, "{stayed} of {}", half.len());
    for n in 0..40 {
        assert_eq!(read(&daemon.path(&format!("fast/big/{n}"))), bytes);
    }
    // A task that is cancelled while it is paused leaves nothing.
    assert_eq!(code(&run(&client, remove(fast("big")))), None);
    let slow = TaskSpec {
        rate: 1_000_000,
        ..copy(daemon.outside("big"), fast("again"))
    };
    let id = submit(&client, slow).unwrap();
    until(&|| status(&client, id).done > 0);
    client.pause(&[id]).unwrap();
    until(&|| status(&client, id).state == TaskState::Paused);
    client.cancel(&[id]).unwrap();
    assert_eq!(code(&wait(&client, id)), Some(Code::Cancelled));
    until(&|| daemon.leftovers().is_empty());
    assert_eq!(client.spaces().unwrap()[0].reserved, 0);
}

#[test]
fn spaces_are_made_changed_and_removed() {
    let mut daemon = Daemon::start(&[]);
    let client = daemon.client();
    std::fs::create_dir(daemon.path("other")).unwrap();
    let mut spec = SpaceSpec {
        root: daemon.path("other").to_string_lossy().as_bytes().into(),
        capacity: 1 << 20,
        quota: 0,
        slots: 0,
        everyone: Access::default(),
        users: Vec::new(),
    };
    let name = "other".to_owned();
    let make = SpaceChange::Make {
        name: name.clone(),
        spec: spec.clone(),
    };
    client.change_space(make.clone()).unwrap();
    assert_eq!(client.change_space(make).unwrap_err().code, Code::Exists);
    std::fs::write(daemon.path("fast/f"), content(600_000, 1)).unwrap();
    let other = |path: &str| TaskLocation::Space {
        name: name.clone(),
        path: path.as_bytes().into(),
    };
    assert_eq!(code(&run(&client, copy(fast("f"), other("f")))), None);
    // It is remembered, and its content is found again.
    drop(client);
    daemon.kill();
    daemon.again();
    let client = daemon.client();
    assert_eq!(
        code(&run(&client, copy(fast("f"), other("g")))),
        Some(Code::NoSpace)
    );
    spec.capacity = 2 << 20;
    client
        .change_space(SpaceChange::Change {
            name: name.clone(),
            spec,
        })
        .unwrap();
    assert_eq!(code(&run(&client, copy(fast("f"), other("g")))), None);
    let infos = client.spaces().unwrap();
    assert!(
        infos.len() == 2 && infos[1].used > 1_200_000 && infos[1].own == infos[1].used,
        "{infos:?}"
    );
    client
        .change_space(SpaceChange::Remove { name: name.clone() })
        .unwrap();
    assert_eq!(
        submit(&client, remove(other("f"))).unwrap_err().code,
        Code::NotFound
    );
    assert!(daemon.path("other/f").exists());
    let elsewhere = TaskLocation::Node {
        node: "n2".into(),
        space: "fast".into(),
        path: b"f".into(),
    };
    let refused = submit(&client, copy(elsewhere, fast("x"))).unwrap_err();
    assert!(
        refused.code == Code::Unsupported && refused.text.contains("n2"),
        "{refused:?}"
    );
}

#[test]
fn processes_belong_to_jobs() {
    let mut daemon = Daemon::start(&["--jobs-only"]);
    let client = daemon.client();
    let nothing = || TaskSpec::new(TaskOperation::Nothing);
    // The user that runs tarnd may always.
    assert!(submit(&client, nothing()).is_ok());
    let own = rustix::process::getuid().as_raw();
    let limits = vec![Limit {
        space: "fast".into(),
        quota: 1 << 20,
    }];
    client
        .change_job(JobChange::Register {
            job: 4,
            user: own,
            limits,
        })
        .unwrap();
    let socket = daemon.socket();
    let connect = |job| tarn_client::Client::connect(&socket, job).map(drop);
    assert_eq!(connect(Some(4)).unwrap_err().code, Code::Denied);
    let add = |pid| client.change_job(JobChange::AddProcess { job: 4, pid });
    assert_eq!(add(1).unwrap_err().code, Code::Invalid);
    assert_eq!(add(i32::MAX).unwrap_err().code, Code::NotFound);
    // This process is added: so are processes that it starts.
    let pid = std::process::id().cast_signed();
    client
        .change_job(JobChange::AddProcess { job: 4, pid })
        .unwrap();
    connect(Some(4)).unwrap();
    // It is known again after a restart.
    daemon.kill();
    daemon.again();
    let client = daemon.client();
    connect(Some(4)).unwrap();
    assert_eq!(connect(Some(5)).unwrap_err().code, Code::Denied);
    let of_job = tarn_client::Client::connect(&daemon.socket(), None).unwrap();
    std::fs::write(daemon.path("f"), content(700_000, 1)).unwrap();
    assert_eq!(
        code(&run(&of_job, copy(daemon.outside("f"), fast("1")))),
        None
    );
    assert_eq!(
        code(&run(&of_job, copy(daemon.outside("f"), fast("2")))),
        Some(Code::Quota)
    );
    client
        .change_job(JobChange::RemoveProcess { job: 4, pid })
        .unwrap();
    client.change_job(JobChange::Unregister { job: 4 }).unwrap();
    assert_eq!(submit(&of_job, nothing()).unwrap_err().code, Code::NotFound);
}
