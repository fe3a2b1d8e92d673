//! Bad days: killed, full, vanished, garbage, strangers.

mod common;

use common::*;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect,
    socket_with,
};
use std::os::fd::OwnedFd;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tarn_client::{Client, WaitCondition};
use tarn_proto::local::*;

fn raw(daemon: &Daemon) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC;
    let fd = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).unwrap();
    connect(&fd, &SocketAddrUnix::new(daemon.socket()).unwrap()).unwrap();
    fd
}

fn ask(fd: &OwnedFd, bytes: &[u8]) -> Option<Reply> {
    rustix::net::send(fd, bytes, SendFlags::NOSIGNAL).ok()?;
    let mut buffer = vec![0; MAX_PACKET];
    let (n, _) = rustix::net::recv(fd, &mut buffer[..], RecvFlags::empty()).ok()?;
    Some(decode::<Reply>(&buffer[..n]).ok()?.message)
}

fn packet(request: &LocalRequest) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(VERSION, 1, request, &mut bytes).unwrap();
    bytes
}

/// Garbage costs its sender the connection, with a text; others notice nothing.
#[test]
fn garbage_and_rudeness() {
    let daemon = Daemon::start(&[]);
    let client = daemon.client();
    let code = |reply: Option<Reply>| match reply {
        Some(Reply::Refused(why)) => why.code,
        other => panic!("{other:?}"),
    };
    let hello = |oldest, newest| {
        packet(&LocalRequest::Hello {
            oldest,
            newest,
            job: None,
        })
    };
    assert_eq!(code(ask(&raw(&daemon), b"garbage!")), Code::Version);
    assert_eq!(
        code(ask(&raw(&daemon), &[1, 0, 0, 0, 0, 0, 99])),
        Code::Invalid
    );
    assert_eq!(code(ask(&raw(&daemon), &[1])), Code::Invalid);
    assert_eq!(
        code(ask(&raw(&daemon), &vec![1; MAX_PACKET + 5])),
        Code::Invalid
    );
    assert_eq!(
        code(ask(&raw(&daemon), &packet(&LocalRequest::Stats))),
        Code::Invalid
    );
    assert_eq!(code(ask(&raw(&daemon), &hello(7, 9))), Code::Version);
    let fd = raw(&daemon);
    assert!(matches!(
        ask(&fd, &hello(1, 99)),
        Some(Reply::Welcome {
            version: VERSION,
            ..
        })
    ));
    let many = LocalRequest::Wait {
        ids: vec![1; MAX_IDS + 1],
        any: false,
        timeout: 0,
    };
    assert_eq!(code(ask(&fd, &packet(&many))), Code::Invalid);
    let none = LocalRequest::Register { length: 10 };
    assert_eq!(code(ask(&fd, &packet(&none))), Code::Invalid);
    assert!(submit(&client, TaskSpec::new(TaskOperation::Nothing)).is_ok());
}

/// Every rank of a large node has its connection. A program that comes when all are taken waits for one, and other nodes are served
/// meanwhile.
#[test]
fn all_connections_taken() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let all = getrlimit(Resource::Nofile);
    let current = all.maximum;
    setrlimit(Resource::Nofile, Rlimit { current, ..all }).unwrap();
    let (a, b) = pair(&[]);
    let hello = packet(&LocalRequest::Hello {
        oldest: 1,
        newest: 99,
        job: None,
    });
    let mut crowd = Vec::new();
    let refused = loop {
        let fd = raw(&b);
        match ask(&fd, &hello) {
            Some(Reply::Welcome { .. }) => crowd.push(fd),
            // The refusal may come before the request.
            None => continue,
            Some(other) => break other,
        }
        assert!(crowd.len() <= 1024);
    };
    assert!(
        matches!(&refused, Reply::Refused(why) if why.code == Code::Busy),
        "{refused:?}"
    );
    assert_eq!(crowd.len(), 1016);
    // A task that another node hands over needs a connection as well: there is one.
    std::fs::write(a.path("f"), b"handed over").unwrap();
    let there = TaskLocation::Node {
        node: "b".into(),
        space: "fast".into(),
        path: b"f".into(),
    };
    assert_eq!(code(&run(&a.client(), copy(a.outside("f"), there))), None);
    let leaving = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        let left = Instant::now();
        drop(crowd);
        left
    });
    Client::connect(&b.socket(), None).unwrap();
    let came = Instant::now();
    assert!(leaving.join().unwrap() <= came);
}

/// Without a descriptor for another connection tarnd neither spins nor ends, and continues when there are some again.
#[test]
fn out_of_descriptors() {
    use rustix::process::{Pid, Resource, Rlimit, getrlimit, prlimit};
    let daemon = Daemon::start(&[]);
    let client = daemon.client();
    let pid = Pid::from_raw(daemon.pid() as i32);
    let proc = format!("/proc/{}", daemon.pid());
    let open = std::fs::read_dir(format!("{proc}/fd")).unwrap().count() as u64;
    let all = getrlimit(Resource::Nofile);
    let few = Rlimit {
        current: Some(open + 5),
        maximum: all.maximum,
    };
    let before = prlimit(pid, Resource::Nofile, few).unwrap();
    let crowd: Vec<OwnedFd> = (0..20).map(|_| raw(&daemon)).collect();
    // In clock ticks of 10 ms.
    let used = || {
        let stat = std::fs::read_to_string(format!("{proc}/stat")).unwrap();
        let (_, fields) = stat.rsplit_once(')').unwrap();
        let fields: Vec<&str> = fields.split_whitespace().collect();
        [fields[11], fields[12]]
            .map(|n| n.parse::<u64>().unwrap())
            .iter()
            .sum::<u64>()
    };
    let start = used();
    std::thread::sleep(Duration::from_secs(1));
    assert!(
        used() - start < 20,
        "{} ms of CPU in a second",
        10 * (used() - start)
    );
    assert!(submit(&client, TaskSpec::new(TaskOperation::Nothing)).is_ok());
    prlimit(pid, Resource::Nofile, before).unwrap();
    let hello = packet(&LocalRequest::Hello {
        oldest: 1,
        newest: 99,
        job: None,
    });
    for waiting in &crowd {
        assert!(matches!(ask(waiting, &hello), Some(Reply::Welcome { .. })));
    }
}

/// tarnd reads no more requests of a program that never reads its replies: memory stays bounded, others are served.
#[test]
fn a_program_that_never_reads() {
    let daemon = Daemon::start(&[]);
    let fd = raw(&daemon);
    ask(
        &fd,
        &packet(&LocalRequest::Hello {
            oldest: 1,
            newest: 1,
            job: None,
        }),
    );
    let tasks = LocalRequest::Submit(vec![TaskSpec::new(TaskOperation::Nothing); MAX_BATCH]);
    let request = packet(&tasks);
    // Some hundred replies fit into the socket and the bound; then nothing more is taken, though others are answered and all that
    // was taken is done. Requests beyond the bound stay in the socket.
    let client = daemon.client();
    let end = Instant::now() + 2 * LONG;
    let (mut sent, mut done, mut quiet) = (0, 0, 0);
    while quiet < 4 {
        let before = (sent, done);
        while rustix::net::send(&fd, &request, SendFlags::DONTWAIT).is_ok() {
            sent += 1;
            assert!(sent < 5000, "it takes all");
        }
        done = client.stats().unwrap().done;
        quiet = if before == (sent, done) { quiet + 1 } else { 0 };
        assert!(Instant::now() < end, "it goes on: {sent} requests");
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!(sent > 10, "{sent} requests");
    assert!(done < (sent * MAX_BATCH) as u64, "all of {sent} requests");
    assert!(memory_of(daemon.pid()) < 60 << 20);
    // Once it reads, it is served again.
    let mut buffer = vec![0; MAX_PACKET];
    for _ in 0..sent {
        let (n, _) = rustix::net::recv(&fd, &mut buffer[..], RecvFlags::empty()).unwrap();
        assert!(n > MAX_BATCH);
    }
}

/// Bytes of resident memory of its own, without files that it maps: of its program, a build that is not optimized has much more.
fn memory_of(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/statm")).unwrap();
    let pages: Vec<u64> = text.split(' ').map(|n| n.trim().parse().unwrap()).collect();
    (pages[1] - pages[2]) * 4096
}

#[test]
fn ten_thousand_queued_transfers() {
    // In memory, as a node's fast tier is: ext4 takes its time over inodes that were removed just before.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let daemon = Daemon::start_in(dir, "64MiB", &[]);
    let client = daemon.client();
    std::fs::create_dir(daemon.path("in")).unwrap();
    for n in 0..100 {
        std::fs::write(daemon.path(&format!("in/{n}")), content(100 + n, n as u8)).unwrap();
    }
    let task = |n: usize| {
        copy(
            daemon.outside(&format!("in/{}", n % 100)),
            fast(&format!("{}/{n}", n % 50)),
        )
    };
    let tasks: Vec<TaskSpec> = (0..10_000).map(task).collect();
    let ids: Vec<TaskId> = client
        .submit(&tasks)
        .unwrap()
        .into_iter()
        .map(Result::unwrap)
        .collect();
    let stats = client.stats().unwrap();
    assert!(stats.queued > 1000, "{stats:?}");
    let ahead = client.status(&ids[9_999..]).unwrap()[0].ahead;
    assert!(ahead > 100, "{ahead}");
    // Seconds on a quiet machine.
    let ends = client
        .wait(&ids, WaitCondition::All, Some(6 * LONG))
        .unwrap();
    assert!(ends.len() == 10_000 && ends.iter().all(|o| o.end == TaskEnd::Done));
    for n in [0, 77, 9_999] {
        let there = read(&daemon.path(&format!("fast/{}/{n}", n % 50)));
        assert_eq!(there, content(100 + n % 100, (n % 100) as u8));
    }
    assert!(daemon.leftovers().is_empty());
}

/// A program that dies leaves its tasks to be done; memory that it had registered stays until then.
#[test]
fn a_client_killed_in_the_middle() {
    let daemon = Daemon::start(&["--external-rate", "20 MB/s"]);
    std::fs::write(daemon.path("big"), content(4_000_000, 1)).unwrap();
    let script = "import os, socket, struct, sys, time\n\
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
        s.connect(sys.argv[1])\n\
        s.send(bytes([1,0, 1,0,0,0, 0, 1, 1, 0])); s.recv(9999)\n\
        m = os.memfd_create('m'); os.truncate(m, 4_000_000)\n\
        socket.send_fds(s, [bytes([1,0, 2,0,0,0, 5]) + b'\\x80\\x92\\xf4\\x01'], [m]); s.recv(9999)\n\
        out = sys.argv[2].encode()\n\
        # One task: copy memory 0 [0, +4000000] to an external path.\n\
        place = bytes([1, 1, 0, 0]) + b'\\x80\\x92\\xf4\\x01' + bytes([3, len(out)]) + out\n\
        s.send(bytes([1,0, 3,0,0,0, 1, 1]) + place + bytes([100, 0, 1, 0, 0, 0, 0])); r = s.recv(9999)\n\
        print(r[6], flush=True); time.sleep(60)\n";
    let mut child = Command::new("/usr/bin/python3")
        .args(["-c", script])
        .arg(daemon.socket())
        .arg(daemon.path("out/dump"))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(
        &mut std::io::BufReader::new(child.stdout.take().unwrap()),
        &mut line,
    )
    .unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(line.trim(), "3", "the answer is Submitted");
    let until = Instant::now() + LONG;
    while !daemon.path("out/dump").exists() {
        assert!(Instant::now() < until);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(read(&daemon.path("out/dump")) == vec![0; 4_000_000]);
    let client = daemon.client();
    while client.stats().unwrap().connections > 1 {
        assert!(Instant::now() < until, "it is taken for alive");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// `kill -9` with durable tasks under way: the next tarnd resumes them, under their ids; a copy continues from
/// where it was. Tasks that were not durable are forgotten, and their half-done work is gone.
#[test]
fn killed_with_durable_tasks() {
    let mut daemon = Daemon::start(&["--external-rate", "16 MB/s"]);
    let client = daemon.client();
    let bytes = content(12_000_000, 5);
    std::fs::write(daemon.path("big"), &bytes).unwrap();
    std::fs::write(daemon.path("small"), b"small").unwrap();
    let durable = |task: TaskSpec| TaskSpec {
        durable: true,
        ..task
    };
    let done = submit(
        &client,
        durable(copy(daemon.outside("small"), fast("first"))),
    )
    .unwrap();
    assert_eq!(code(&wait(&client, done)), None);
    let big = submit(&client, durable(copy(daemon.outside("big"), fast("big")))).unwrap();
    // From another file system, where there is one: a move there is a copy, read back, and then a removal.
    let shm = tempfile::tempdir_in("/dev/shm").unwrap();
    let moved_from = shm.path().join("m");
    std::fs::write(&moved_from, &bytes).unwrap();
    let from = TaskLocation::External(moved_from.to_string_lossy().as_bytes().into());
    let gone = submit(&client, durable(moved(from, fast("moved")))).unwrap();
    let volatile = submit(&client, copy(daemon.outside("big"), fast("volatile"))).unwrap();
    let next = TaskSpec {
        after: vec![big],
        ..durable(copy(fast("big"), daemon.outside("out/again")))
    };
    let next = submit(&client, next).unwrap();
    while client.status(&[big]).unwrap()[0].done < 1_500_000 {
        std::thread::sleep(Duration::from_millis(5));
    }
    daemon.kill();
    assert!(!daemon.path("fast/big").exists() && !daemon.leftovers().is_empty());
    assert_eq!(
        submit(&client, remove(fast("big"))).unwrap_err().code,
        Code::Lost
    );
    daemon.again();
    let client = daemon.client();
    let ends = client
        .wait(&[done, big, gone, next], WaitCondition::All, Some(LONG))
        .unwrap();
    assert!(
        ends.len() == 4 && ends.iter().all(|o| o.end == TaskEnd::Done),
        "{ends:?}"
    );
    assert_eq!(
        client.status(&[volatile]).unwrap()[0].state,
        TaskState::Unknown
    );
    assert!(read(&daemon.path("fast/big")) == bytes && read(&daemon.path("out/again")) == bytes);
    assert!(!moved_from.exists() && read(&daemon.path("fast/moved")) == bytes);
    assert!(!daemon.path("fast/volatile").exists());
    assert_eq!(daemon.leftovers(), Vec::<std::path::PathBuf>::new());
    // New ids are not those of before.
    let new = submit(&client, TaskSpec::new(TaskOperation::Nothing)).unwrap();
    assert!(new > next);
    assert!(daemon.terminate().success() && !daemon.socket().exists());
}

/// Killed again and again at any moment: no durable task is lost, none is done halfway, whatever the moment.
#[test]
fn killed_again_and_again() {
    let mut daemon = Daemon::start(&[]);
    let mut ids: Vec<(TaskId, usize)> = Vec::new();
    let mut count = 0;
    std::fs::create_dir(daemon.path("in")).unwrap();
    for round in 0..12u64 {
        let client = daemon.client();
        let began = Instant::now();
        // A moment that differs from round to round.
        while began.elapsed() < Duration::from_micros(500 + round * 3700) {
            let name = format!("in/{count}");
            std::fs::write(daemon.path(&name), content(5000, count as u8)).unwrap();
            let task = moved(daemon.outside(&name), fast(&format!("{count}")));
            if let Ok(id) = submit(
                &client,
                TaskSpec {
                    durable: true,
                    ..task
                },
            ) {
                ids.push((id, count));
            }
            count += 1;
        }
        daemon.kill();
        daemon.again();
    }
    let client = daemon.client();
    let all: Vec<TaskId> = ids.iter().map(|(id, _)| *id).collect();
    assert!(all.len() > 12, "{}", all.len());
    let ends = client.wait(&all, WaitCondition::All, Some(LONG)).unwrap();
    assert_eq!(ends.len(), all.len());
    for (end, (_, n)) in ends.iter().zip(&ids) {
        assert_eq!(end.end, TaskEnd::Done, "{n}");
        assert!(read(&daemon.path(&format!("fast/{n}"))) == content(5000, *n as u8));
        assert!(!daemon.path(&format!("in/{n}")).exists());
    }
    let until = Instant::now() + LONG;
    while !daemon.leftovers().is_empty() {
        assert!(Instant::now() < until, "{:?}", daemon.leftovers());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// SIGTERM with tasks under way: it ends soon and cleanly, and durable tasks resume.
#[test]
fn terminated_with_tasks_under_way() {
    let mut daemon = Daemon::start(&["--external-rate", "2 MB/s"]);
    let client = daemon.client();
    std::fs::write(daemon.path("big"), content(5_000_000, 5)).unwrap();
    let task = |to: &str, durable| TaskSpec {
        durable,
        ..copy(daemon.outside("big"), fast(to))
    };
    let kept = submit(&client, task("kept", true)).unwrap();
    submit(&client, task("lost", false)).unwrap();
    let until = Instant::now() + LONG;
    while client.stats().unwrap().running < 2 {
        assert!(Instant::now() < until, "they do not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(daemon.terminate().success());
    assert!(!daemon.path("fast/kept").exists(), "it has waited for them");
    let lost = client
        .wait(&[kept], WaitCondition::All, Some(LONG))
        .unwrap_err();
    assert_eq!(lost.code, Code::Lost);
    daemon.again();
    assert_eq!(code(&wait(&daemon.client(), kept)), None);
    assert!(daemon.leftovers().is_empty() && !daemon.path("fast/lost").exists());
}

#[test]
fn the_source_vanishes_or_changes() {
    let daemon = Daemon::start(&["--external-rate", "4 MB/s"]);
    let client = daemon.client();
    std::fs::create_dir(daemon.path("in")).unwrap();
    for n in 0..3 {
        std::fs::write(daemon.path(&format!("in/{n}")), content(5_000_000, n)).unwrap();
    }
    let id = submit(&client, copy(daemon.outside("in"), fast("in"))).unwrap();
    let until = Instant::now() + LONG;
    while client.status(&[id]).unwrap()[0].done == 0 {
        assert!(Instant::now() < until, "it does not begin");
        std::thread::sleep(Duration::from_millis(5));
    }
    for n in 0..3 {
        std::fs::write(daemon.path(&format!("in/{n}")), b"shorter").unwrap();
    }
    std::fs::remove_file(daemon.path("in/1")).unwrap();
    let end = wait(&client, id);
    assert_eq!(code(&end), Some(Code::Changed), "{end:?}");
    let TaskEnd::Failed(why) = &end.end else {
        unreachable!()
    };
    assert!(
        why.text.contains(&*daemon.path("in").to_string_lossy()),
        "{why}"
    );
    assert!(!daemon.path("fast/in").exists() && daemon.leftovers().is_empty());
}

/// The file system is full before the space's capacity is: the error has figures, nothing is left.
#[test]
fn a_file_system_full_in_the_middle() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root to mount a small file system");
        return;
    }
    // In a mount namespace of its own, which ends with the shell.
    let dir = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=2m none \"$1/fast\" && exec \"$0\" --socket \"$1/socket\" --state \"$1/state\" --space \"fast=$1/fast:1GiB\"";
    std::fs::create_dir(dir.path().join("fast")).unwrap();
    std::fs::write(dir.path().join("big"), content(8_000_000, 1)).unwrap();
    let mut child = Command::new("unshare")
        .args(["--mount", "--propagation", "private", "sh", "-c", script])
        .arg(env!("CARGO_BIN_EXE_tarnd"))
        .arg(dir.path())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let until = Instant::now() + LONG;
    let client = loop {
        match Client::connect(&dir.path().join("socket"), None) {
            Ok(client) => break client,
            Err(e) => assert!(Instant::now() < until, "{e}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    use std::os::unix::ffi::OsStrExt;
    let big = TaskLocation::External(dir.path().join("big").as_os_str().as_bytes().into());
    let end = run(&client, copy(big, fast("big")));
    let spaces = client.spaces().unwrap();
    let after = run(&client, copy(fast("big"), fast("other")));
    child.kill().unwrap();
    child.wait().unwrap();
    let TaskEnd::Failed(why) = &end.end else {
        panic!("{end:?}")
    };
    assert!(
        why.code == Code::NoSpace && why.text.contains("free"),
        "{why:?}"
    );
    assert_eq!((spaces[0].used, spaces[0].reserved), (0, 0));
    assert_eq!(code(&after), Some(Code::NotFound));
}

/// Another user is refused with a text that says so, in both directions.
#[test]
fn attack_strangers_are_refused() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: needs root to become another user");
        return;
    }
    let daemon = Daemon::start(&[]);
    let reach = |path: &std::path::Path, mode| {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    reach(daemon.dir.path(), 0o711);
    let script = "import socket, sys\n\
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
        s.connect(sys.argv[1])\n\
        r = s.recv(9999)\n\
        print(r[6], r[7], r[9:].decode())\n";
    let ask = |socket: &std::path::Path, user: &str| {
        let command = Command::new("setpriv")
            .args([
                "--reuid",
                user,
                "--regid",
                user,
                "--clear-groups",
                "/usr/bin/python3",
                "-c",
                script,
            ])
            .arg(socket)
            .output()
            .unwrap();
        let text = [command.stdout, command.stderr].concat();
        String::from_utf8_lossy(&text).into_owned()
    };
    // The socket's mode keeps strangers out; if it is opened up, the peer's credentials do.
    assert!(ask(&daemon.socket(), "65534").contains("PermissionError"));
    reach(&daemon.socket(), 0o666);
    let text = ask(&daemon.socket(), "65534");
    assert!(text.starts_with("1 3 ") && text.contains("65534"), "{text}");
    assert_eq!(daemon.client().stats().unwrap().connections, 1);
}

/// An idle tarnd sleeps: no wake-ups, little memory; also after it has worked.
#[test]
fn idle_it_sleeps() {
    let daemon = Daemon::start(&[]);
    let client = daemon.client();
    std::fs::write(daemon.path("f"), content(100_000, 1)).unwrap();
    for n in 0..20 {
        run(&client, copy(daemon.outside("f"), fast(&format!("{n}"))));
    }
    let task = TaskSpec {
        durable: true,
        ..copy(daemon.outside("f"), fast("durable"))
    };
    assert_eq!(code(&run(&client, task)), None);
    let switches = || -> u64 {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", daemon.pid())).unwrap();
        tasks
            .map(|t| std::fs::read_to_string(t.unwrap().path().join("status")).unwrap())
            .flat_map(|text| {
                let lines = text.lines().filter(|l| l.contains("ctxt_switches"));
                lines
                    .map(|l| l.rsplit('\t').next().unwrap().parse::<u64>().unwrap())
                    .collect::<Vec<_>>()
            })
            .sum()
    };
    // Its pending work ends sooner or later, as the machine is busy or not; then it sleeps on.
    let until = Instant::now() + LONG;
    let mut before = switches();
    loop {
        std::thread::sleep(Duration::from_secs(2));
        let now = switches();
        if std::mem::replace(&mut before, now) == now {
            break;
        }
        assert!(Instant::now() < until, "it never sleeps for 2 s");
    }
    let memory = memory_of(daemon.pid());
    assert!(memory < 8 << 20, "{memory} bytes of memory");
}

/// A file that is no socket is not taken for the leftover of one.
#[test]
fn a_socket_that_is_a_file() {
    let daemon = Daemon::start(&[]);
    for name in ["results", "folder", "link"] {
        let socket = daemon.path(name);
        match name {
            "results" => std::fs::write(&socket, b"precious").unwrap(),
            "folder" => std::fs::create_dir(&socket).unwrap(),
            _ => std::os::unix::fs::symlink(daemon.path("results"), &socket).unwrap(),
        }
        let ended = Command::new("timeout")
            .args(["20", env!("CARGO_BIN_EXE_tarnd"), "--socket"])
            .arg(&socket)
            .arg("--state")
            .arg(daemon.path("other"))
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&ended.stderr);
        assert_eq!(ended.status.code(), Some(2), "{text}");
        assert!(text.contains(name) && text.contains("--socket"), "{text}");
    }
    assert_eq!(read(&daemon.path("results")), b"precious");
    assert!(daemon.path("folder").is_dir() && daemon.path("link").is_symlink());
}

/// The terminal goes: it ends as by SIGTERM; under `nohup` it stays.
#[test]
fn the_terminal_goes() {
    use rustix::process::{Pid, Signal, kill_process};
    let mut daemon = Daemon::start(&[]);
    daemon.terminate();
    // Independent of the way in which these tests were started.
    let start = |daemon: &mut Daemon, by: &[&str]| {
        let command = daemon.command();
        let mut through = Command::new(by[0]);
        through.args(&by[1..]).arg(command.get_program());
        through.args(command.get_args());
        daemon.start_by(through.stdout(Stdio::null()).stderr(Stdio::null()));
    };
    let hang_up = |daemon: &Daemon| {
        let pid = Pid::from_raw(daemon.pid().cast_signed()).unwrap();
        kill_process(pid, Signal::HUP).unwrap();
    };
    start(&mut daemon, &["env", "--default-signal=HUP"]);
    hang_up(&daemon);
    assert_eq!(daemon.ends().code(), Some(0));
    assert!(!daemon.socket().exists());
    start(&mut daemon, &["nohup"]);
    hang_up(&daemon);
    std::thread::sleep(Duration::from_millis(200));
    assert!(submit(&daemon.client(), TaskSpec::new(TaskOperation::Nothing)).is_ok());
}

#[test]
fn exit_codes() {
    let mut daemon = Daemon::start(&[]);
    let status = |command: &mut Command| command.status().unwrap().code();
    // The same state folder, and the same socket.
    let second = daemon.command().stderr(Stdio::piped()).output().unwrap();
    let text = String::from_utf8_lossy(&second.stderr);
    assert_eq!(second.status.code(), Some(6));
    assert!(
        text.contains("another tarnd (process") && !text.contains("workflow"),
        "{text}"
    );
    let other = daemon.path("other");
    let mut same_socket = Command::new(env!("CARGO_BIN_EXE_tarnd"));
    same_socket
        .arg("--socket")
        .arg(daemon.socket())
        .arg("--state")
        .arg(&other)
        .stderr(Stdio::null());
    assert_eq!(status(&mut same_socket), Some(6));
    let mut wrong = Command::new(env!("CARGO_BIN_EXE_tarnd"));
    assert_eq!(
        status(wrong.arg("--space").arg("x").stderr(Stdio::null())),
        Some(2)
    );
    let mut help = Command::new(env!("CARGO_BIN_EXE_tarnd"));
    assert_eq!(status(help.arg("--help").stdout(Stdio::null())), Some(0));
    daemon.kill();
    // A leftover socket is no obstacle; a damaged journal is.
    daemon.again();
    daemon.kill();
    let journal = daemon.path("state/tasks.log");
    std::fs::write(&journal, "00000000 something else\n").unwrap();
    assert_eq!(status(&mut daemon.command()), Some(5));
    std::fs::remove_file(&journal).unwrap();
    daemon.again();
    assert_eq!(daemon.terminate().code(), Some(0));
}
