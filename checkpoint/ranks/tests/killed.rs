//! Ranks as processes, which are killed.

mod common;

use common::{LONG, folder, here, lost, texts};
use std::io::{BufRead, BufReader, Lines, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tarn_ports::{RankProgress, Ranks};
use tarn_ranks::{Meeting, Options};

/// The variables with the folder in which the child meets others, and with its rank.
const FOLDER: &str = "TARN_TEST_RANKS_FOLDER";
const RANK: &str = "TARN_TEST_RANKS_RANK";
/// HOST:PORT, if they meet over TCP.
const MEET: &str = "TARN_TEST_RANKS_MEET";
const RANKS: u32 = 3;

/// Not a test: the process that is killed. It runs its commands, line by line.
#[test]
#[ignore = "run by the others"]
fn does_as_it_is_told() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let rank: u32 = std::env::var(RANK).unwrap().parse().unwrap();
    let options = match std::env::var(MEET) {
        Ok(meet) => common::there(Path::new(&folder), &meet, rank, RANKS),
        Err(_) => here(Path::new(&folder), rank, RANKS),
    };
    let met = Meeting::join(options).unwrap();
    println!("\nmet");
    for line in std::io::stdin().lines() {
        let done = match line.unwrap().as_str() {
            "exchange" => met
                .exchange(rank.to_string().as_bytes(), LONG)
                .map(|words| texts(words).join(" ")),
            "wait" => {
                let reached = RankProgress {
                    committed: 1,
                    durable: 1,
                    ..RankProgress::default()
                };
                met.wait(reached, LONG).map(|()| "all".to_owned())
            }
            other => panic!("{other}"),
        };
        match done {
            Ok(reply) => println!("{reply}"),
            Err(e) => println!("{} lost", lost(&e)),
        }
    }
}

struct Rank {
    child: Child,
    stdin: ChildStdin,
    stdout: Lines<BufReader<ChildStdout>>,
}

impl Rank {
    fn start(folder: &Path, rank: u32, meet: Option<&str>) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "does_as_it_is_told", "--ignored", "--nocapture"])
            .env(FOLDER, folder)
            .env(RANK, rank.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(meet) = meet {
            child.env(MEET, meet);
        }
        let mut child = child.spawn().unwrap();
        Self {
            stdin: child.stdin.take().unwrap(),
            stdout: BufReader::new(child.stdout.take().unwrap()).lines(),
            child,
        }
    }

    fn program(folder: &Path, meet: Option<&str>) -> Vec<Self> {
        let mut ranks: Vec<_> = (0..RANKS).map(|r| Self::start(folder, r, meet)).collect();
        for rank in &mut ranks {
            while rank.receive() != "met" {}
        }
        ranks
    }

    fn send(&mut self, what: &str) {
        writeln!(self.stdin, "{what}").unwrap();
    }

    fn receive(&mut self) -> String {
        self.stdout.next().expect("it has ended").unwrap()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn exchange(ranks: &mut [Rank]) -> Vec<String> {
    ranks.iter_mut().for_each(|r| r.send("exchange"));
    ranks.iter_mut().map(Rank::receive).collect()
}

#[test]
fn who_is_killed_in_an_exchange_is_known_to_all_others_at_once_and_for_ever() {
    for meet in [None, Some(common::free_port())] {
        for dead in [0, 1] {
            let folder = folder();
            let mut ranks = Rank::program(folder.path(), meet.as_deref());
            assert_eq!(exchange(&mut ranks), ["0 1 2"; 3]);
            let mut killed = ranks.remove(dead);
            ranks[0].send("exchange");
            ranks[1].send("wait");
            killed.kill();
            let gone = format!("rank {dead} lost");
            for _ in 0..2 {
                assert_eq!([ranks[0].receive(), ranks[1].receive()], [&*gone, &*gone]);
                ranks[0].send("wait");
                ranks[1].send("exchange");
            }
        }
    }
}

#[test]
fn what_a_killed_program_has_left_is_in_nobodys_way() {
    let folder = folder();
    for _ in 0..2 {
        let mut ranks = Rank::program(folder.path(), None);
        ranks.iter_mut().for_each(Rank::kill);
        assert!(folder.path().join("0.sock").exists());
    }
    let mut ranks = Rank::program(folder.path(), None);
    assert_eq!(exchange(&mut ranks), ["0 1 2"; 3]);
}

#[test]
fn a_program_takes_over_from_one_that_is_dying() {
    let folder = folder();
    let mut first = Rank::program(folder.path(), None);
    let options: Vec<Options> = (0..RANKS).map(|r| here(folder.path(), r, RANKS)).collect();
    std::thread::scope(|scope| {
        let second = scope.spawn(|| common::all(options, |o| Meeting::join(o).unwrap()));
        std::thread::sleep(common::SHORT);
        // From the last to the first: those of the second that have a place meet the hub of the first.
        for rank in first.iter_mut().rev() {
            rank.kill();
        }
        let second = second.join().unwrap();
        assert_eq!(
            common::round(&second, "rank")[1],
            ["rank 0", "rank 1", "rank 2"]
        );
        let holder = std::fs::read_to_string(folder.path().join("1.lock")).unwrap();
        assert_eq!(holder, std::process::id().to_string());
    });
}

#[test]
fn a_program_that_runs_is_named_by_its_process() {
    let folder = folder();
    let mut ranks = Rank::program(folder.path(), None);
    let again = Options {
        timeout: common::SHORT,
        ..here(folder.path(), 1, RANKS)
    };
    let e = Meeting::join(again).unwrap_err().to_string();
    let own = format!("(process {} is its rank 1)", ranks[1].child.id());
    assert!(e.contains(&own), "{e}");
    ranks[1].kill();
    // Its place is free; but the hub knows that it is gone.
    let e = Meeting::join(here(folder.path(), 1, RANKS))
        .unwrap_err()
        .to_string();
    assert!(e.contains("restart all ranks"), "{e}");
}

#[test]
fn who_is_stopped_is_named_and_nobody_waits_for_it_for_ever() {
    let folder = folder();
    let first = Rank::start(folder.path(), 0, None);
    let options = [1, 2].map(|r| here(folder.path(), r, RANKS));
    let ranks = common::all(options.into(), |o| Meeting::join(o).unwrap());
    let id = rustix::process::Pid::from_child(&first.child);
    rustix::process::kill_process(id, rustix::process::Signal::STOP).unwrap();
    // More than there is space for on the way.
    for n in 0..200_000 {
        ranks[0].report_progress(RankProgress {
            committed: n,
            durable: n,
            ..RankProgress::default()
        });
    }
    let e = ranks[0]
        .exchange(&[0; 1 << 20], common::SHORT)
        .unwrap_err()
        .to_string();
    assert!(e.starts_with("rank 0 did not answer"), "{e}");
    let e = ranks[1]
        .grant(0, 1, 1, common::SHORT)
        .unwrap_err()
        .to_string();
    assert!(e.starts_with("rank 0 did not answer"), "{e}");
    // Their ends take a few seconds, not as long as it is stopped.
    common::all(ranks, drop);
}

/// The descriptors of this process that a child has: one line for each.
fn inherited() -> String {
    let mut list = Command::new("ls");
    list.args(["-l", "/proc/self/fd"]).stdin(Stdio::null());
    String::from_utf8(list.output().unwrap().stdout).unwrap()
}

#[test]
fn no_child_has_its_sockets() {
    let folder = folder();
    let sockets = |of: &str| of.matches("socket:").count();
    let before = inherited();
    let ranks = common::program(folder.path(), 2);
    let after = inherited();
    assert_eq!(sockets(&after), sockets(&before), "{after}");
    assert!(!after.contains(".lock"), "{after}");
    assert_eq!(common::round(&ranks, "rank").len(), 2);
}
