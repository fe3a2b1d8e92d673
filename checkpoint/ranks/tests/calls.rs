//! Calls of ranks to each other.

mod common;

use common::{LONG, SHORT, all, far_program, far_program_at, folder, free_port, lost, program};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tarn_ports::RankServiceError::{self, Unserved};
use tarn_ports::{RankService, Ranks, RanksError};
use tarn_ranks::Meeting;
use tarn_types::crc::crc;

/// Keeps its bytes in memory, for one rank and generation at a time.
#[derive(Default)]
struct Memory(Mutex<(u32, u64, Vec<u8>)>);

impl RankService for Memory {
    fn grant(&self, of: u32, generation: u64, bytes: u64) -> Result<String, RankServiceError> {
        if bytes > 1 << 30 {
            return Err(Unserved("that's more than there is"));
        }
        *self.0.lock().unwrap() = (of, generation, vec![0; bytes as usize]);
        Ok(format!("staging of {of}"))
    }

    fn put(
        &self,
        of: u32,
        generation: u64,
        at: u64,
        bytes: &[u8],
    ) -> Result<u64, RankServiceError> {
        let mut memory = self.0.lock().unwrap();
        if (memory.0, memory.1) != (of, generation) {
            return Err(Unserved("nothing was granted"));
        }
        let place = memory.2.get_mut(at as usize..at as usize + bytes.len());
        place
            .ok_or(Unserved("less was granted"))?
            .copy_from_slice(bytes);
        Ok(crc(bytes))
    }

    fn file(&self, medium: &str) -> Result<OwnedFd, RankServiceError> {
        match medium {
            "0/0.staging" => Ok(file(&self.0.lock().unwrap().2)),
            _ => Err(io::Error::other(format!("there is no {medium}")).into()),
        }
    }
}

/// A file of these bytes.
fn file(bytes: &[u8]) -> OwnedFd {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(bytes).unwrap();
    file.into()
}

/// Bytes that differ at each place.
fn content(bytes: usize) -> Vec<u8> {
    let words =
        (0..bytes.div_ceil(4) as u32).flat_map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes());
    words.take(bytes).collect()
}

fn keep_and_read_back(ranks: &[Arc<Meeting>]) {
    let last = ranks.len() as u32 - 1;
    ranks[last as usize].serve(Arc::new(Memory::default()));
    let caller = &ranks[0];
    // Of one byte more than pieces, of none, and across them.
    let bytes = content((9 << 20) + 1);
    let name = caller
        .grant(last, 3, bytes.len() as u64 + 10, LONG)
        .unwrap();
    assert_eq!(name, "staging of 0");
    assert_eq!(caller.put(last, 3, 10, &bytes, LONG).unwrap(), crc(&bytes));
    assert_eq!(caller.put(last, 3, 7, b"", LONG).unwrap(), crc(b""));
    assert_eq!(
        caller.put(last, 3, 0, b"ten bytes.", LONG).unwrap(),
        crc(b"ten bytes.")
    );
    let mut back = vec![0; bytes.len()];
    let fetch = |at, into: &mut [u8]| {
        let (mut there, size) = (0, into.len());
        let mut arrived = |so_far: &[u8]| {
            // The bytes there are those that were kept, and more each time.
            let more = there..so_far.len();
            assert!(!more.is_empty() && (at < 10 || so_far[more.clone()] == bytes[more.clone()]));
            there = more.end;
        };
        caller
            .fetch(last, "0/0.staging", at, into, LONG, &mut arrived)
            .unwrap();
        assert_eq!(there, size);
    };
    fetch(10, &mut back);
    assert!(back == bytes);
    let mut few = [0; 12];
    fetch(0, &mut few);
    assert_eq!(few[..10], *b"ten bytes.");
    assert_eq!(few[10..], bytes[..2]);
    fetch(0, &mut []);
}

#[test]
fn a_rank_of_this_node_keeps_bytes_and_gives_them_back() {
    let folder = folder();
    keep_and_read_back(&program(folder.path(), 2));
}

#[test]
fn a_rank_of_another_node_keeps_bytes_and_gives_them_back() {
    let folder = folder();
    keep_and_read_back(&far_program(folder.path(), 2));
}

#[test]
fn a_rank_0_that_is_known_by_a_name_is_reached_as_are_the_others_of_its_node() {
    let folder = folder();
    let meet = free_port().replace("127.0.0.1", "localhost");
    let ranks = far_program_at(folder.path(), &meet, 2);
    keep_and_read_back(&ranks);
    let e = ranks[1].grant(0, 1, 1, LONG).unwrap_err().to_string();
    assert_eq!(e, "rank 0 refused: it does not serve others yet");
}

#[test]
fn what_a_rank_refuses_is_said_in_its_words_and_the_next_call_is_done() {
    let folder = folder();
    let ranks = program(folder.path(), 2);
    let refused = |result: Result<(), RanksError>, why: &str| {
        let text = result.unwrap_err().to_string();
        assert_eq!(text, format!("rank 1 refused: {why}"));
    };
    let grant = |bytes| ranks[0].grant(1, 1, bytes, LONG).map(drop);
    let put = |generation, at, bytes: &[u8]| ranks[0].put(1, generation, at, bytes, LONG).map(drop);
    let fetch = |medium, at| ranks[0].fetch(1, medium, at, &mut [0; 8], LONG, &mut |_| ());
    refused(grant(1), "it does not serve others yet");
    ranks[1].serve(Arc::new(Memory::default()));
    refused(grant(u64::MAX), "that's more than there is");
    refused(put(1, 0, b"bytes"), "nothing was granted");
    grant(4 << 20).unwrap();
    refused(put(2, 0, b"bytes"), "nothing was granted");
    // In the middle of a transfer of many pieces.
    refused(put(1, 2 << 20, &[7; 16 << 20]), "less was granted");
    refused(fetch("1/1.arena", 0), "there is no 1/1.arena");
    refused(fetch("0/0.staging", (4 << 20) - 1), "it ends before that");
    put(1, 0, b"bytes").unwrap();
    fetch("0/0.staging", 0).unwrap();
    for wrong in [
        put(1, u64::MAX, b"bytes"),
        fetch("0/0.staging", u64::MAX),
        fetch(&"long".repeat(2000), 0),
        ranks[0].put(2, 1, 0, b"", LONG).map(drop),
    ] {
        assert!(matches!(wrong, Err(RanksError::Invalid(_))), "{wrong:?}");
    }
}

#[test]
fn threads_of_one_rank_ask_at_the_same_time_and_a_rank_asks_itself() {
    let folder = folder();
    let ranks = program(folder.path(), 2);
    for rank in &ranks {
        rank.serve(Arc::new(Memory::default()));
    }
    let bytes = content(256 << 10);
    for to in 0..2 {
        ranks[0].grant(to, 1, 8 << 20, LONG).unwrap();
    }
    all((0..8u64).collect(), |n| {
        for _ in 0..20 {
            let to = n as u32 % 2;
            let at = n * bytes.len() as u64;
            assert_eq!(ranks[0].put(to, 1, at, &bytes, LONG).unwrap(), crc(&bytes));
        }
    });
}

/// Does not answer until its flag is set.
#[derive(Default)]
struct Slow(AtomicBool);

impl RankService for Slow {
    fn grant(&self, _: u32, _: u64, _: u64) -> Result<String, RankServiceError> {
        while !self.0.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(String::new())
    }

    fn put(&self, _: u32, _: u64, _: u64, _: &[u8]) -> Result<u64, RankServiceError> {
        panic!("a host that has an error")
    }

    fn file(&self, _: &str) -> Result<OwnedFd, RankServiceError> {
        Ok(file(&[0; 100]))
    }
}

#[test]
fn a_rank_that_does_not_answer_is_given_up_and_another_answer_is_not_taken_for_this_one() {
    let folder = folder();
    let ranks = program(folder.path(), 2);
    let slow = Arc::new(Slow::default());
    ranks[1].serve(slow.clone());
    let text = ranks[0].grant(1, 1, 1, SHORT).unwrap_err().to_string();
    assert!(text.starts_with("rank 1 did not answer within"), "{text}");
    let fetched = ranks[0].fetch(1, "medium", 0, &mut [0; 100], LONG, &mut |_| ());
    fetched.unwrap();
    slow.0.store(true, Ordering::Relaxed);
    assert_eq!(ranks[0].grant(1, 1, 1, LONG).unwrap(), "");
}

/// A thread that serves sends from files, and SIGPIPE, the kernel's signal that nobody receives, ends a program.
#[test]
fn threads_that_serve_take_no_signals() {
    let folder = folder();
    let ranks = program(folder.path(), 2);
    ranks[1].serve(Arc::new(Memory::default()));
    ranks[0].grant(1, 1, 1, LONG).unwrap();
    const SIGPIPE: u64 = 1 << 12;
    // A thread of another test may have just begun, or be gone.
    common::until("all have blocked them", || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap();
        let status = |task: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(task.unwrap().path().join("status")).ok()
        };
        let serving: Vec<String> = tasks
            .filter_map(status)
            .filter(|text| text.starts_with("Name:\ttarn-rank-call\n"))
            .collect();
        let blocks = |text: &String| {
            let blocked = text.lines().find_map(|l| l.strip_prefix("SigBlk:\t"));
            u64::from_str_radix(blocked.unwrap(), 16).unwrap() & SIGPIPE != 0
        };
        !serving.is_empty() && serving.iter().all(blocks)
    });
}

#[test]
fn a_host_that_panics_costs_one_call() {
    let folder = folder();
    let ranks = program(folder.path(), 2);
    ranks[1].serve(Arc::new(Slow::default()));
    let e = ranks[0].put(1, 1, 0, b"bytes", LONG).unwrap_err();
    assert_eq!(lost(&e), "rank 1");
    let fetched = ranks[0].fetch(1, "medium", 0, &mut [0; 100], LONG, &mut |_| ());
    fetched.unwrap();
}

#[test]
fn who_has_ended_is_asked_in_vain() {
    let folder = folder();
    for mut ranks in [program(folder.path(), 3), far_program(folder.path(), 3)] {
        ranks[2].serve(Arc::new(Memory::default()));
        // One has a connection, the other has not.
        ranks[0].grant(2, 1, 1, LONG).unwrap();
        drop(ranks.pop());
        for rank in &ranks {
            let e = rank.grant(2, 1, 1, LONG).unwrap_err();
            assert_eq!(lost(&e), "rank 2", "{e}");
        }
    }
}

/// Has the rank that it serves.
struct Owner(Mutex<Option<Arc<Meeting>>>);

impl RankService for Owner {
    fn grant(&self, _: u32, _: u64, _: u64) -> Result<String, RankServiceError> {
        drop(self.0.lock().unwrap().take());
        Ok("the last".into())
    }

    fn put(&self, _: u32, _: u64, _: u64, _: &[u8]) -> Result<u64, RankServiceError> {
        Ok(0)
    }

    fn file(&self, _: &str) -> Result<OwnedFd, RankServiceError> {
        Ok(file(&[0; 100]))
    }
}

#[test]
fn a_rank_may_end_in_what_it_serves() {
    let folder = folder();
    let mut ranks = program(folder.path(), 2);
    let served = ranks.pop().unwrap();
    let weak = Arc::downgrade(&served);
    let owner = Arc::new(Owner(Mutex::default()));
    served.serve(owner.clone());
    *owner.0.lock().unwrap() = Some(served);
    let e = ranks[0].grant(1, 1, 1, LONG).unwrap_err();
    assert_eq!(lost(&e), "rank 1");
    common::until("the rank ends", || weak.upgrade().is_none());
}
