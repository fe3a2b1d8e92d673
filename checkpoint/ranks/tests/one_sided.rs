//! Windows that ranks of different nodes keep for each other and read, by libfabric's providers that every machine has.

mod common;

use common::{LONG, far_program, folder};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};
use tarn_data_plane::{LIBRARY, Rma};
use tarn_ports::ranks::OpenWindow;
use tarn_ports::{
    Carried, ExposedExtent, KeepAliveGuard, OneSided, RankService, RankServiceError, Ranks,
};
use tarn_ranks::Meeting;
use tarn_types::crc::crc;

const PROVIDERS: [&str; 2] = ["tcp;ofi_rxm", "shm"];
const SIZE: usize = (9 << 20) + 11;

/// libfabric in the hands of one rank; `None` where its headers are not installed.
fn libfabric(provider: &str) -> Option<Arc<Rma>> {
    static BUILT: OnceLock<Option<PathBuf>> = OnceLock::new();
    let built = BUILT.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let built = Command::new(root.join("scripts/shim.sh"))
            .arg(folder)
            .status();
        match built.unwrap().code() {
            Some(3) => {
                eprintln!("SKIPPED: no libfabric-dev");
                None
            }
            code => {
                assert_eq!(code, Some(0));
                Some(folder.join(LIBRARY))
            }
        }
    });
    Some(Rma::load_as_guest(built.as_ref()?, provider).unwrap())
}

/// Memory for one rank and generation.
struct Granted {
    generation: u64,
    file: File,
    window: Option<KeepAliveGuard>,
}

/// Keeps its bytes in memory that others can map.
#[derive(Default)]
struct Memory(Mutex<Option<Granted>>);

impl Memory {
    fn granted(
        &self,
        generation: u64,
    ) -> Result<MutexGuard<'_, Option<Granted>>, RankServiceError> {
        let granted = self.0.lock().unwrap();
        match &*granted {
            Some(g) if g.generation == generation => Ok(granted),
            _ => Err(RankServiceError::Unserved("nothing was granted")),
        }
    }

    /// The bytes there now.
    fn bytes(&self, range: Range<usize>) -> Vec<u8> {
        let granted = self.0.lock().unwrap();
        let mut bytes = vec![0; range.len()];
        let file = &granted.as_ref().unwrap().file;
        file.read_exact_at(&mut bytes, range.start as u64).unwrap();
        bytes
    }
}

impl RankService for Memory {
    fn grant(&self, _: u32, generation: u64, bytes: u64) -> Result<String, RankServiceError> {
        let mut granted = self.0.lock().unwrap();
        *granted = None;
        let file = memfd_create("tarn-test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, bytes).unwrap();
        *granted = Some(Granted {
            generation,
            file: file.into(),
            window: None,
        });
        Ok("memory".into())
    }

    fn put(&self, _: u32, generation: u64, at: u64, bytes: &[u8]) -> Result<u64, RankServiceError> {
        let mut granted = self.granted(generation)?;
        let granted = granted.as_mut().unwrap();
        granted.window = None;
        granted.file.write_all_at(bytes, at).unwrap();
        Ok(crc(bytes))
    }

    fn window(
        &self,
        _: u32,
        generation: u64,
        open: &mut OpenWindow<'_>,
    ) -> Result<(), RankServiceError> {
        let mut granted = self.granted(generation)?;
        let granted = granted.as_mut().unwrap();
        let size = granted.file.metadata().unwrap().len();
        granted.window = Some(open(granted.file.as_fd(), size)?);
        Ok(())
    }

    fn landed(
        &self,
        _: u32,
        generation: u64,
        at: u64,
        bytes: u64,
    ) -> Result<u64, RankServiceError> {
        drop(self.granted(generation)?);
        let at = at as usize;
        Ok(crc(&self.bytes(at..at + bytes as usize)))
    }

    fn file(&self, _: &str) -> Result<OwnedFd, RankServiceError> {
        let granted = self.0.lock().unwrap();
        let granted = granted
            .as_ref()
            .ok_or(RankServiceError::Unserved("there is nothing"))?;
        Ok(granted.file.try_clone().unwrap().into())
    }
}

/// Bytes that differ at each place.
fn content(bytes: usize, seed: u32) -> Vec<u8> {
    let words = (seed..).map(|n| n.wrapping_mul(0x9e37_79b9).to_le_bytes());
    words.flatten().take(bytes).collect()
}

/// Two ranks on two nodes, of which the second keeps for the first.
struct Two {
    _folder: tempfile::TempDir,
    ranks: Vec<Arc<Meeting>>,
    memory: Arc<Memory>,
}

impl Two {
    fn by(of: impl Fn(u32) -> Option<Result<Arc<dyn OneSided>, &'static str>>) -> Option<Self> {
        let folder = folder();
        let ranks = far_program(folder.path(), 2);
        for rank in &ranks {
            match of(rank.rank())? {
                Ok(one_sided) => rank.reach_by(one_sided),
                Err(why) => rank.report_streams_only(why),
            }
        }
        let memory = Arc::new(Memory::default());
        ranks[1].serve(memory.clone());
        Some(Self {
            _folder: folder,
            ranks,
            memory,
        })
    }

    fn of(provider: &str) -> Option<Self> {
        Self::by(|_| Some(Ok(libfabric(provider)?)))
    }

    fn grant(&self, generation: u64) {
        self.ranks[0]
            .grant(1, generation, SIZE as u64, LONG)
            .unwrap();
    }

    fn put(&self, generation: u64, at: usize, bytes: &[u8]) {
        let sum = self.ranks[0].put(1, generation, at as u64, bytes, LONG);
        assert_eq!(sum.unwrap(), crc(bytes));
        assert!(self.memory.bytes(at..at + bytes.len()) == bytes);
    }

    fn fetch(&self, at: usize, bytes: usize) -> Vec<u8> {
        let (mut into, mut seen) = (vec![0; bytes], 0);
        let mut arrived = |there: &[u8]| {
            assert!(there.len() > seen);
            seen = there.len();
        };
        let fetched = self.ranks[0].fetch(1, "m", at as u64, &mut into, LONG, &mut arrived);
        fetched.unwrap();
        assert_eq!(seen, bytes);
        into
    }

    fn carried(&self) -> Carried {
        self.ranks[0].carried()
    }
}

#[test]
fn ranks_write_to_each_others_memory_and_read_from_it() {
    for provider in PROVIDERS {
        let Some(two) = Two::of(provider) else { return };
        two.grant(1);
        let bytes = content(SIZE, 1);
        two.put(1, 0, &bytes);
        two.put(1, 100, &bytes[7..7 + 4096]);
        let all = (SIZE + 4096) as u64;
        let carried = Carried {
            put: all,
            ..Carried::default()
        };
        assert_eq!(two.carried(), carried, "{provider}");
        let bytes = two.memory.bytes(0..SIZE);
        assert!(two.fetch(0, SIZE) == bytes, "{provider}");
        assert!(two.fetch(4321, 1 << 20) == bytes[4321..][..1 << 20]);
        // Not worth a window.
        assert!(two.fetch(9, 512) == bytes[9..][..512]);
        let carried = Carried {
            fetched: SIZE as u64 + (1 << 20),
            fetched_by_stream: 512,
            ..carried
        };
        assert_eq!(two.carried(), carried, "{provider}");
        assert_eq!(two.ranks[0].detour(), None);
        // A refusal has the same text as by the stream.
        let late = two.ranks[0].put(1, 2, 0, &bytes, LONG).unwrap_err();
        assert_eq!(late.to_string(), "rank 1 refused: nothing was granted");
        let beyond = two.ranks[0].fetch(1, "m", 1, &mut vec![0; SIZE], LONG, &mut |_| ());
        let text = beyond.unwrap_err().to_string();
        assert_eq!(text, "rank 1 refused: it ends before that");
        assert!(two.fetch(0, SIZE) == bytes);
        assert_eq!(two.carried().fetched, carried.fetched + SIZE as u64);
    }
}

/// Nothing makes progress but while something is announced.
#[test]
fn ranks_that_compute_have_no_thread_for_it() {
    for provider in PROVIDERS {
        let Some(one) = libfabric(provider) else {
            return;
        };
        let other = libfabric(provider).unwrap();
        let ends = [one, other];
        let two = Two::by(|rank| Some(Ok(ends[rank as usize].clone()))).unwrap();
        two.grant(1);
        two.put(1, 0, &content(SIZE, 1));
        two.fetch(0, SIZE);
        let idle = || ends.iter().all(|e| e.threads() == 0);
        let since = Instant::now();
        common::until("all idle", idle);
        assert!(since.elapsed() < Duration::from_secs(5), "{provider}");
    }
}

/// A late write that a rank has given up lands nowhere once the bytes have come by the stream, or the memory is another's.
#[test]
fn what_comes_late_lands_nowhere() {
    for provider in PROVIDERS {
        let Some(kept) = libfabric(provider) else {
            return;
        };
        let stale = libfabric(provider).unwrap();
        let stalling = [&stale, &kept].map(|rma| Arc::new(Stalls(rma.clone(), Mutex::default())));
        let two = Two::by(|rank| Some(Ok(stalling[rank as usize].clone()))).unwrap();
        let here: IpAddr = "127.0.0.1".parse().unwrap();
        let attended = kept.attend(here).unwrap();
        let late = |n: usize, bytes: &[u8], within: Duration| {
            let words = stalling[1].1.lock().unwrap()[n].clone();
            let until = Instant::now() + within;
            let mut waits = || match Instant::now() < until {
                true => Ok(()),
                false => Err(io::ErrorKind::TimedOut.into()),
            };
            stale.write(here, &words, 0, bytes, &mut waits).is_ok()
        };
        let nothing = vec![0; 1 << 20];
        let short = Duration::from_secs(1);
        let [bytes, other] = [5, 99].map(|seed| content(1 << 20, seed));
        two.grant(1);
        assert!(late(0, &other, LONG), "{provider}");
        assert!(two.memory.bytes(0..1 << 20) == other);
        // It stalls here, and the bytes come by the stream.
        two.put(1, 0, &bytes);
        assert_eq!(two.carried().put_by_stream, 1 << 20);
        let why = two.ranks[0].detour().unwrap();
        let expected = "rank 1 by TCP, not by means that stall: it stalls";
        assert!(why.contains(expected), "{why}");
        late(0, &other, short);
        assert!(two.memory.bytes(0..1 << 20) == bytes, "{provider}");
        // The window of the generation before does not lead to the memory of this one.
        two.grant(2);
        two.grant(3);
        late(1, &other, short);
        assert!(two.memory.bytes(0..1 << 20) == nothing, "{provider}");
        assert!(late(2, &other, LONG), "{provider}");
        assert!(two.memory.bytes(0..1 << 20) == other, "{provider}");
        drop(attended);
    }
}

/// Notes the words of windows that are open here, and lets nothing through.
struct Stalls(Arc<Rma>, Mutex<Vec<Box<[u8]>>>);

impl OneSided for Stalls {
    fn name(&self) -> &str {
        "means that stall"
    }

    fn open(
        &self,
        here: IpAddr,
        file: BorrowedFd<'_>,
        stretch: Range<u64>,
        writable: bool,
    ) -> io::Result<ExposedExtent> {
        let open = self.0.open(here, file, stretch, writable)?;
        self.1.lock().unwrap().push(open.1.clone());
        Ok(open)
    }

    fn attend(&self, here: IpAddr) -> io::Result<KeepAliveGuard> {
        self.0.attend(here)
    }

    fn write(
        &self,
        _: IpAddr,
        _: &[u8],
        _: u64,
        _: &[u8],
        waits: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        waits()?;
        Err(io::Error::other("it stalls"))
    }

    fn read(
        &self,
        _: IpAddr,
        _: &[u8],
        into: &mut [u8],
        waits: &mut dyn FnMut() -> io::Result<()>,
        arrived: &mut dyn FnMut(&[u8]),
    ) -> io::Result<()> {
        // Some of it comes.
        let some = into.len() / 2;
        into[..some].fill(0);
        arrived(&into[..some]);
        loop {
            waits()?;
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn close(&self) {
        self.0.close();
    }
}

/// A peer that stalls takes half of the time at most, and the bytes that have come stay.
#[test]
fn what_stands_still_goes_on_by_the_stream_in_time() {
    let Some(rma) = libfabric(PROVIDERS[0]) else {
        return;
    };
    let stalls: Arc<dyn OneSided> = Arc::new(Stalls(rma.clone(), Mutex::default()));
    let two = Two::by(|rank| {
        let fine: Arc<dyn OneSided> = rma.clone();
        Some(Ok(if rank == 0 { stalls.clone() } else { fine }))
    });
    let two = two.unwrap();
    two.grant(1);
    let since = Instant::now();
    let within = Duration::from_secs(4);
    let mut into = vec![7; SIZE];
    let fetched = two.ranks[0].fetch(1, "m", 0, &mut into, within, &mut |_| ());
    fetched.unwrap();
    assert!(since.elapsed() > Duration::from_secs(1) && since.elapsed() < within);
    assert!(into.iter().all(|b| *b == 0));
    let carried = two.carried();
    let (half, rest) = ((SIZE / 2) as u64, SIZE.div_ceil(2) as u64);
    assert_eq!((carried.fetched, carried.fetched_by_stream), (half, rest));
    let why = two.ranks[0].detour().unwrap();
    assert!(
        why.contains("means that stall: nothing came through in time"),
        "{why}"
    );
    // It is not tried again.
    let since = Instant::now();
    assert_eq!(two.fetch(0, SIZE).len(), SIZE);
    assert!(since.elapsed() < Duration::from_secs(1));
}

#[test]
fn where_one_end_has_it_not_all_goes_by_streams_and_that_is_said() {
    let only = |who: u32| {
        Two::by(|rank| match rank == who {
            true => Some(Ok(libfabric(PROVIDERS[0])?)),
            false => Some(Err("there is no such network")),
        })
    };
    let of_two_kinds = Two::by(|rank| {
        let provider = PROVIDERS[rank as usize];
        Some(Ok(libfabric(provider)?))
    });
    for (two, expected) in [
        (
            only(0),
            "rank 1 by TCP, not by libfabric:tcp;ofi_rxm: it goes by TCP alone",
        ),
        (only(1), "by TCP: there is no such network"),
        (of_two_kinds, "it has shm, and this rank tcp;ofi_rxm"),
    ] {
        let Some(two) = two else { return };
        two.grant(1);
        let bytes = content(SIZE, 3);
        two.put(1, 0, &bytes);
        assert!(two.fetch(0, SIZE) == bytes);
        let carried = Carried {
            put_by_stream: SIZE as u64,
            fetched_by_stream: SIZE as u64,
            ..Carried::default()
        };
        assert_eq!(two.carried(), carried);
        let why = two.ranks[0].detour().unwrap();
        assert!(why.contains(expected), "{why}");
        assert_eq!(two.ranks[0].detour(), None);
    }
}
