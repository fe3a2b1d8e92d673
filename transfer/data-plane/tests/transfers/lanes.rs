//! Storage memory of another node that is read and written by windows, with libfabric's providers that every machine has.

use crate::far::{Exporter, Hands, SIZE, exported};
use crate::rma::library;
use proptest::prelude::*;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::fs::File;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tarn_data_plane::{ContentTransport, DataServer, LIBRARY, Limits, RemoteStorage, Rma};
use tarn_ring::{Exposed, Level, Op, Sqe, StorageRequestError, Target};

const TCP: &str = "tcp;ofi_rxm";

/// A file in memory, and the number of its bytes that were requested on streams.
#[derive(Clone)]
struct Filed {
    file: Arc<File>,
    requests: Arc<AtomicUsize>,
    /// The bytes that windows show, and whether they may be written.
    shown: (usize, bool),
}

impl Filed {
    fn new(shown: (usize, bool)) -> Self {
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(SIZE as u64).unwrap();
        Self {
            file: Arc::new(file),
            requests: Arc::default(),
            shown,
        }
    }

    fn take_requests(&self) -> usize {
        self.requests.swap(0, Ordering::Relaxed)
    }

    fn count(&self) {
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    fn all(&self) -> Vec<u8> {
        let mut all = vec![0; SIZE];
        self.file.read_exact_at(&mut all, 0).unwrap();
        all
    }
}

impl Target for Filed {
    fn size(&mut self) -> u64 {
        SIZE as u64
    }

    fn read(&mut self, at: u64, to: &mut [u8]) -> Result<(), StorageRequestError> {
        self.count();
        self.file
            .read_exact_at(to, at)
            .map_err(|_| StorageRequestError::Io)
    }

    fn write(&mut self, at: u64, from: &[u8], _: bool) -> Result<(), StorageRequestError> {
        self.count();
        self.file
            .write_all_at(from, at)
            .map_err(|_| StorageRequestError::Io)
    }

    fn fetch_add(&mut self, at: u64, add: u64) -> Result<u64, StorageRequestError> {
        let mut word = [0; 8];
        self.read(at, &mut word)?;
        let was = u64::from_le_bytes(word);
        self.write(at, &was.wrapping_add(add).to_le_bytes(), false)?;
        Ok(was)
    }

    fn compare_swap(&mut self, _: u64, _: u64, _: u64) -> Result<u64, StorageRequestError> {
        Err(StorageRequestError::Invalid)
    }

    fn hold(&mut self, _: Option<bool>) -> Result<(), StorageRequestError> {
        Err(StorageRequestError::Busy)
    }

    fn flush(&mut self) -> Result<(), StorageRequestError> {
        self.count();
        Ok(())
    }

    fn file(&self) -> Option<Exposed<'_>> {
        let (size, writable) = self.shown;
        (size > 0).then(|| Exposed {
            file: self.file.as_fd(),
            from: 0,
            size: size as u64,
            writable,
        })
    }
}

/// A node that lends it, and the library that is used at both ends.
struct Bed {
    filed: Filed,
    server: DataServer,
    library: PathBuf,
    provider: &'static str,
    _folder: tempfile::TempDir,
}

impl Bed {
    fn new(provider: &'static str, shown: (usize, bool)) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let library = library(folder.path())?;
        let filed = Filed::new(shown);
        let registry = Arc::new(Exporter(filed.clone()));
        let way = ContentTransport::Windows(Rma::load(&library, provider).unwrap());
        let server = DataServer::start("127.0.0.1:0", registry, Limits::default(), way).unwrap();
        Some(Self {
            filed,
            server,
            library,
            provider,
            _folder: folder,
        })
    }

    fn far(&self, persistent: bool) -> RemoteStorage {
        let size = Arc::new((SIZE as u64).into());
        RemoteStorage::new(exported(&self.server).unwrap(), size, persistent).unwrap()
    }

    /// By a window.
    fn hands(&self, persistent: bool) -> Hands {
        let mut far = self.far(persistent);
        assert!(far.by_window(&self.library, self.provider).unwrap());
        Hands::with(far)
    }
}

#[test]
fn reads_and_writes_are_done_without_the_other_node_and_the_rest_by_it() {
    for provider in [TCP, "shm"] {
        let Some(bed) = Bed::new(provider, (SIZE, true)) else {
            return;
        };
        let mut hands = bed.hands(true);
        hands.fill(0, SIZE, 3);
        for (at, length) in [
            (1, 5_000_000),
            (5_500_000, 100),
            (5_999_980, 20),
            (6_000_000, 0),
        ] {
            hands.post(hands.request(Op::Write, at, length));
            assert_eq!(hands.ends(), [(0, length as u64)], "{provider}");
        }
        assert_eq!(bed.filed.take_requests(), 0);
        let all = bed.filed.all();
        let written = |at: &usize| {
            [1..5_000_001, 5_500_000..5_500_100, 5_999_980..6_000_000]
                .iter()
                .any(|r| r.contains(at))
        };
        for (at, byte) in all.iter().enumerate() {
            let there = if written(&at) {
                hands.cells[at].get()
            } else {
                0
            };
            assert_eq!(*byte, there, "{provider}: byte {at}");
        }
        hands.cells.iter().for_each(|cell| cell.set(0));
        hands.post(hands.request(Op::Read, 0, SIZE));
        assert_eq!(hands.ends(), [(0, SIZE as u64)]);
        assert!(all.iter().zip(hands.cells).all(|(b, c)| *b == c.get()));
        assert_eq!(bed.filed.take_requests(), 0);
        // Words, flushes, and requests for persistence, which this memory has.
        hands.post(Sqe {
            operand: 5,
            ..hands.request(Op::FetchAdd, SIZE - 8, 0)
        });
        hands.post(hands.request(Op::Flush, 0, 0));
        hands.post(Sqe {
            level: Level::Persistent as u8,
            ..hands.request(Op::Write, 0, 9)
        });
        assert_eq!(hands.ends(), [(0, 0), (0, 0), (0, 9)]);
        assert_eq!(bed.filed.take_requests(), 4);
    }
}

#[test]
fn where_nothing_outlives_a_loss_of_power_persistent_writes_take_the_window_too() {
    let Some(bed) = Bed::new(TCP, (SIZE, true)) else {
        return;
    };
    let mut far = bed.far(false);
    assert!(far.by_window(&bed.library, TCP).unwrap());
    let mut hands = Hands::accepting(far);
    hands.post(Sqe {
        level: Level::Persistent as u8,
        ..hands.request(Op::Write, 0, 9)
    });
    assert_eq!(hands.ends(), [(0, 9)]);
    assert_eq!(bed.filed.take_requests(), 0);
}

#[test]
fn what_a_window_does_not_show_and_what_it_may_not_write_goes_by_the_stream() {
    let Some(bed) = Bed::new(TCP, (SIZE / 2, false)) else {
        return;
    };
    let mut hands = bed.hands(true);
    hands.fill(0, SIZE, 9);
    hands.post(hands.request(Op::Write, SIZE / 2 - 100, 200));
    assert_eq!(hands.ends(), [(0, 200)]);
    hands.post(hands.request(Op::Read, SIZE / 2 - 10, 20));
    assert_eq!(hands.ends(), [(0, 20)]);
    assert_eq!(bed.filed.take_requests(), 2);
    hands.post(hands.request(Op::Read, SIZE / 2 - 20, 20));
    assert_eq!(hands.ends(), [(0, 20)]);
    assert_eq!(bed.filed.take_requests(), 0);
    // A word is whole for others.
    hands.post(hands.request(Op::Read, 8, 8));
    assert_eq!(hands.ends(), [(0, 8)]);
    assert_eq!(bed.filed.take_requests(), 1);
}

#[test]
fn without_a_window_that_can_be_used_all_goes_by_the_stream() {
    let Some(bed) = Bed::new(TCP, (SIZE, true)) else {
        return;
    };
    let none = Bed::new(TCP, (0, true)).unwrap();
    let elsewhere = bed.library.with_file_name("none").join(LIBRARY);
    let ways = [
        (&none, bed.library.clone(), TCP),
        (&bed, bed.library.clone(), "sockets"),
        (&bed, elsewhere, TCP),
    ];
    for (bed, library, provider) in ways {
        let mut far = bed.far(true);
        assert!(!far.by_window(&library, provider).unwrap());
        let mut hands = Hands::with(far);
        hands.post(hands.request(Op::Write, 7, 1000));
        hands.post(hands.request(Op::Read, 7, 1000));
        assert_eq!(hands.ends(), [(0, 1000), (0, 1000)]);
        assert_eq!(bed.filed.take_requests(), 2);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(6))]

    /// Many at the same time, which do not overlap, by the window, the stream, or both.
    #[test]
    fn whatever_is_written_at_once_is_read_at_once(
        lengths in prop::collection::vec((1..200_000_usize, any::<bool>()), 1..60),
        shown in 0..SIZE,
    ) {
        let Some(bed) = Bed::new(TCP, (shown + 1, true)) else { return Ok(()) };
        let mut hands = bed.hands(true);
        hands.fill(0, SIZE, 77);
        let mut at = 0;
        let mut places = Vec::new();
        for (length, persistent) in lengths {
            if at + length > SIZE {
                break;
            }
            places.push((at, length, if persistent { Level::Persistent } else { Level::Visible }));
            at += length;
        }
        for (at, length, level) in &places {
            let write = Sqe { level: *level as u8, ..hands.request(Op::Write, *at, *length) };
            prop_assert!(hands.queue.rings().prepare(write));
        }
        hands.queue.submit();
        prop_assert_eq!(hands.ends().iter().map(|(code, bytes)| i64::from(*code) * 1000 + *bytes as i64).sum::<i64>(), at as i64);
        prop_assert!(bed.filed.all()[..at].iter().zip(hands.cells).all(|(b, c)| *b == c.get()));
        hands.cells.iter().for_each(|cell| cell.set(0));
        for (at, length, _) in &places {
            let read = hands.request(Op::Read, *at, *length);
            prop_assert!(hands.queue.rings().prepare(read));
        }
        hands.queue.submit();
        prop_assert!(hands.ends().iter().all(|(code, _)| *code == 0));
        prop_assert!(bed.filed.all()[..at].iter().zip(hands.cells).all(|(b, c)| *b == c.get()));
    }
}

#[test]
fn a_peer_that_dies_ends_what_is_under_way_by_its_window() {
    // Not by shared memory: within one process, its provider forgets that a peer may be gone.
    let Some(bed) = Bed::new(TCP, (SIZE, true)) else {
        return;
    };
    let mut hands = bed.hands(true);
    hands.post(hands.request(Op::Write, 0, 100));
    assert_eq!(hands.ends(), [(0, 100)]);
    drop(bed.server);
    let begun = Instant::now();
    // A request under way may still be done: nobody can know.
    let lost = StorageRequestError::Lost.code();
    for _ in 0..30 {
        hands.post(hands.request(Op::Read, 0, 3_000_000));
    }
    let ends = hands.ends();
    assert!(
        ends.iter().all(|(code, _)| [0, lost].contains(code)),
        "{ends:?}"
    );
    while {
        hands.post(hands.request(Op::Read, 0, 1));
        hands.ends() != [(lost, 0)]
    } {
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}

/// Any process that may write to a partition can cut its file. The node that shows it lives, and serves others.
#[test]
fn a_file_that_is_cut_under_a_window_ends_its_stream_and_nothing_else() {
    for provider in [TCP, "shm"] {
        for (op, length) in [(Op::Write, 100), (Op::Write, 300_000), (Op::Read, 100)] {
            let Some(bed) = Bed::new(provider, (SIZE, true)) else {
                return;
            };
            let mut hands = bed.hands(true);
            hands.post(hands.request(op, 2 << 20, length));
            assert_eq!(hands.ends(), [(0, length as u64)]);
            bed.filed.file.set_len(1 << 20).unwrap();
            let begun = Instant::now();
            let lost = StorageRequestError::Lost.code();
            while {
                hands.post(hands.request(op, 2 << 20, length));
                hands.ends() != [(lost, 0)]
            } {
                assert!(
                    begun.elapsed() < Duration::from_secs(30),
                    "{provider} {op:?}"
                );
            }
            let mut others = Hands::with(bed.far(true));
            others.post(others.request(Op::Read, 0, 100));
            assert_eq!(others.ends(), [(0, 100)], "{provider} {op:?}");
        }
    }
}

#[test]
fn memory_of_a_queue_pair_that_was_given_back_is_not_written_to() {
    for provider in [TCP, "shm"] {
        let Some(bed) = Bed::new(provider, (SIZE, true)) else {
            return;
        };
        bed.filed.file.write_all_at(&vec![1; SIZE], 0).unwrap();
        for _ in 0..5 {
            let mut hands = bed.hands(true);
            for number in 0..60 {
                let read = hands.request(Op::Read, number * 100_000, 100_000);
                assert!(hands.queue.rings().prepare(read));
            }
            hands.queue.submit();
            let cells = hands.cells;
            drop(hands);
            cells.iter().for_each(|cell| cell.set(7));
            std::thread::sleep(Duration::from_millis(20));
            assert!(cells.iter().all(|cell| cell.get() == 7), "{provider}");
        }
    }
}

#[test]
fn who_sleeps_is_woken_by_what_ends_on_the_stream_or_by_the_window() {
    let Some(bed) = Bed::new(TCP, (SIZE, true)) else {
        return;
    };
    let mut hands = bed.hands(true);
    let event = eventfd(0, EventfdFlags::NONBLOCK).unwrap();
    let all = epoll::create(CreateFlags::CLOEXEC).unwrap();
    epoll::add(&all, &event, EventData::new_u64(0), EventFlags::IN).unwrap();
    let is_ready = |millis| {
        let timeout = Duration::from_millis(millis).try_into().unwrap();
        let ready = poll(&mut [PollFd::new(&all, PollFlags::IN)], Some(&timeout));
        ready.unwrap() == 1
    };
    let is_registered = hands.queue.notify(event.as_fd(), all.as_fd());
    assert!(
        is_registered && hands.queue.notify(event.as_fd(), all.as_fd()),
        "asked twice"
    );
    for (op, length) in [
        (Op::Read, 3_000_000),
        (Op::Flush, 0),
        (Op::Write, 70_000),
        (Op::Read, 1),
    ] {
        let request = hands.request(op, 0, length);
        assert!(hands.queue.rings().prepare(request));
        hands.queue.submit();
        let mut ended = None;
        while ended.is_none() {
            assert!(is_ready(20_000), "{op:?}");
            let _ = rustix::io::read(&event, &mut [0; 8]);
            hands.queue.poll();
            hands.queue.submit();
            ended = hands.queue.rings().reap();
        }
        assert_eq!(ended.unwrap().code, 0, "{op:?}");
    }
    // And not when there is nothing.
    assert!(!is_ready(50));
    // A peer that is gone is reported once, not for ever.
    drop(bed.server);
    hands.post(hands.request(Op::Flush, 0, 0));
    assert_eq!(hands.ends(), [(StorageRequestError::Lost.code(), 0)]);
    let _ = rustix::io::read(&event, &mut [0; 8]);
    assert!(!is_ready(0));
}
