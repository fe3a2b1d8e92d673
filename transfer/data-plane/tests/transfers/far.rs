//! Storage memory of another node, used by a queue pair.

use crate::common::*;
use crate::strangers::until;
use proptest::prelude::*;
use std::cell::Cell;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tarn_data_plane::{
    Called, ContentTransport, DataClient, DataServer, Key, Limits, MakeTarget, Registry,
    RegistryError, RemoteStorage, RunId, Served, Tree, Wire,
};
use tarn_ports::Control;
use tarn_proto::storage::{StorageReply, StorageRequest, Verb};
use tarn_queue::{Options, Queue};
use tarn_ring::{Flags, Level, Op, ProgramMemory, Sqe, StorageRequestError, Target};

pub(crate) const SIZE: usize = 6 << 20;

/// Some bytes, and how often they were flushed.
#[derive(Clone, Default)]
struct Bytes(Arc<Mutex<(Vec<u8>, u64)>>);

impl Bytes {
    fn with<T>(&self, does: impl FnOnce(&mut (Vec<u8>, u64)) -> T) -> T {
        does(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn range(&self, at: u64, length: usize) -> Result<std::ops::Range<usize>, StorageRequestError> {
        let at = usize::try_from(at).map_err(|_| StorageRequestError::Invalid)?;
        let end = at.checked_add(length).filter(|end| *end <= SIZE);
        end.map(|end| at..end).ok_or(StorageRequestError::Invalid)
    }

    fn word(&self, at: u64, new: impl FnOnce(u64) -> u64) -> Result<u64, StorageRequestError> {
        let range = self.range(at, 8)?;
        Ok(self.with(|(bytes, _)| {
            let word: [u8; 8] = bytes[range.clone()].try_into().unwrap();
            let was = u64::from_le_bytes(word);
            bytes[range].copy_from_slice(&new(was).to_le_bytes());
            was
        }))
    }
}

impl Target for Bytes {
    fn size(&mut self) -> u64 {
        SIZE as u64
    }

    fn read(&mut self, at: u64, to: &mut [u8]) -> Result<(), StorageRequestError> {
        let range = self.range(at, to.len())?;
        self.with(|(bytes, _)| to.copy_from_slice(&bytes[range]));
        Ok(())
    }

    fn write(&mut self, at: u64, from: &[u8], persistent: bool) -> Result<(), StorageRequestError> {
        let range = self.range(at, from.len())?;
        self.with(|(bytes, flushed)| {
            bytes[range].copy_from_slice(from);
            *flushed += u64::from(persistent);
        });
        Ok(())
    }

    fn fetch_add(&mut self, at: u64, add: u64) -> Result<u64, StorageRequestError> {
        self.word(at, |was| was.wrapping_add(add))
    }

    fn compare_swap(
        &mut self,
        at: u64,
        expected: u64,
        new: u64,
    ) -> Result<u64, StorageRequestError> {
        self.word(at, |was| if was == expected { new } else { was })
    }

    fn hold(&mut self, alone: Option<bool>) -> Result<(), StorageRequestError> {
        alone.map_or(Ok(()), |_| Err(StorageRequestError::Busy))
    }

    fn flush(&mut self) -> Result<(), StorageRequestError> {
        self.with(|(_, flushed)| *flushed += 1);
        Ok(())
    }
}

/// Gives streams over to the same storage memory.
pub(crate) struct Exporter<T>(pub(crate) T);

impl<T: Target + Clone + Send + Sync + 'static> Registry for Exporter<T> {
    fn key(&self, run: &RunId) -> Option<Key> {
        (*run == RUN).then_some(KEY)
    }

    fn tree(&self, _: &RunId, _: &Tree) -> Result<Served, RegistryError> {
        Err(RegistryError("nothing".into()))
    }

    fn call(&self, _: &RunId, body: &[u8], _: &Control) -> Result<Called, RegistryError> {
        let target = self.0.clone();
        let make: MakeTarget = Box::new(move |_| Ok(Box::new(target)));
        match body {
            b"lend" => Ok(Called::Storage(b"lent".to_vec(), make)),
            _ => Err(RegistryError("it is not that".into())),
        }
    }
}

fn lender(storages: usize) -> (Bytes, DataServer) {
    lender_by(storages, ContentTransport::Clear)
}

fn lender_by(storages: usize, way: ContentTransport) -> (Bytes, DataServer) {
    let bytes = Bytes::default();
    bytes.with(|(bytes, _)| bytes.resize(SIZE, 0));
    let limits = Limits {
        storages,
        ..Limits::default()
    };
    let registry = Arc::new(Exporter(bytes.clone()));
    let server = DataServer::start("127.0.0.1:0", registry, limits, way);
    (bytes, server.unwrap())
}

pub(crate) fn exported(server: &DataServer) -> Result<Wire, String> {
    exported_to(&client_of(server))
}

fn exported_to(client: &DataClient) -> Result<Wire, String> {
    let control = Control::default();
    let mut line = client.line(&control).unwrap();
    let reply = client.call_on(&mut line, b"lend", &control);
    let reply = reply.map_err(|e| e.failure.message)?;
    assert_eq!(reply, b"lent");
    let (stream, keys) = line.into_stream().unwrap();
    Ok(Wire::new(stream, keys.as_ref()).unwrap())
}

/// A queue pair to it.
pub(crate) struct Hands {
    pub(crate) queue: Queue<RemoteStorage>,
    pub(crate) cells: &'static [Cell<u8>],
    memory: u32,
    region: u32,
}

impl Hands {
    fn on(wire: Wire) -> Self {
        Self::with(RemoteStorage::new(wire, Arc::new((SIZE as u64).into()), true).unwrap())
    }

    pub(crate) fn with(far: RemoteStorage) -> Self {
        Self::by(far, Options::default())
    }

    /// Requests may ask for persistence and need not have it.
    pub(crate) fn accepting(far: RemoteStorage) -> Self {
        let options = Options {
            volatile: true,
            ..Options::default()
        };
        Self::by(far, options)
    }

    fn by(far: RemoteStorage, options: Options) -> Self {
        let mut queue = Queue::new(64, options).unwrap();
        let cells = Box::leak(vec![Cell::new(0); SIZE].into_boxed_slice());
        Self {
            memory: queue.register_memory(ProgramMemory::of(cells)).unwrap(),
            region: queue.register_new(far, 0, SIZE as u64, true).unwrap().0,
            queue,
            cells,
        }
    }

    pub(crate) fn request(&self, op: Op, at: usize, length: usize) -> Sqe {
        Sqe {
            op: op as u8,
            memory: self.memory,
            storage: self.region,
            address: self.cells.as_ptr().addr() as u64 + at as u64,
            offset: at as u64,
            length: length as u64,
            user_data: at as u64,
            ..Sqe::default()
        }
    }

    pub(crate) fn post(&mut self, request: Sqe) {
        assert!(self.queue.rings().prepare(request));
        self.queue.submit();
    }

    /// Waits until nothing is under way: codes and values in the order in which they came.
    pub(crate) fn ends(&mut self) -> Vec<(i32, u64)> {
        let until = Instant::now() + Duration::from_secs(30);
        while !self.queue.is_idle() {
            assert!(Instant::now() < until, "it does not end");
            self.queue.poll();
            std::thread::yield_now();
        }
        let ends = std::iter::from_fn(|| self.queue.rings().reap());
        ends.map(|end| (end.code, end.value)).collect()
    }

    pub(crate) fn fill(&self, at: usize, length: usize, seed: u8) {
        for (number, cell) in self.cells[at..at + length].iter().enumerate() {
            cell.set((number * 7) as u8 ^ seed);
        }
    }
}

#[test]
fn large_and_small_requests_words_and_flushes_are_done_there() {
    done_there(ContentTransport::Clear);
}

#[test]
fn they_are_over_a_sealed_stream_too() {
    done_there(ContentTransport::Sealed);
}

fn done_there(way: ContentTransport) {
    let (bytes, server) = lender_by(8, way.clone());
    let is_sealed = matches!(way, ContentTransport::Sealed);
    // The other end has not requested it.
    let wire = exported(&server).unwrap();
    assert_eq!(wire.is_sealed(), is_sealed);
    let mut hands = Hands::on(wire);
    // In several pieces, and all at once.
    hands.fill(0, SIZE, 3);
    hands.post(hands.request(Op::Write, 1, 5_000_000));
    hands.post(hands.request(Op::Write, 5_500_000, 100));
    hands.post(hands.request(Op::Flush, 0, 0));
    assert_eq!(hands.ends(), [(0, 5_000_000), (0, 100), (0, 0)]);
    bytes.with(|(bytes, flushed)| {
        assert_eq!(*flushed, 1);
        for (at, byte) in bytes.iter().enumerate() {
            let written = (1..5_000_001).contains(&at) || (5_500_000..5_500_100).contains(&at);
            let there = if written { hands.cells[at].get() } else { 0 };
            assert_eq!(*byte, there, "byte {at}");
        }
    });
    hands.cells.iter().for_each(|cell| cell.set(0));
    hands.post(hands.request(Op::Read, 0, SIZE));
    assert_eq!(hands.ends(), [(0, SIZE as u64)]);
    let same = bytes.with(|(bytes, _)| bytes.iter().zip(hands.cells).all(|(b, c)| *b == c.get()));
    assert!(same);
    let persistent = Sqe {
        level: Level::Persistent as u8,
        ..hands.request(Op::Write, 0, 1)
    };
    hands.post(persistent);
    hands.post(Sqe {
        operand: 5,
        ..hands.request(Op::FetchAdd, SIZE - 8, 0)
    });
    let swap = |expected, operand| Sqe {
        expected,
        operand,
        ..hands.request(Op::CompareSwap, SIZE - 8, 0)
    };
    let swaps = [swap(4, 9), swap(5, 7), swap(0, 0)];
    swaps.into_iter().for_each(|swap| hands.post(swap));
    assert_eq!(hands.ends(), [(0, 1), (0, 0), (0, 5), (0, 5), (0, 7)]);
    assert_eq!(bytes.with(|(_, flushed)| *flushed), 2);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Random requests, in chains that go there one after the other.
    #[test]
    fn it_is_as_if_it_were_here(
        requests in prop::collection::vec((0..3_u8, 0..SIZE, 0..1_500_000_usize, any::<u8>()), 1..20),
        sealed in any::<bool>(),
    ) {
        let (bytes, server) = lender(8);
        let way = if sealed { ContentTransport::Sealed } else { ContentTransport::Clear };
        let client = DataClient { way, ..client_of(&server) };
        let mut hands = Hands::on(exported_to(&client).unwrap());
        let mut model = vec![0; SIZE];
        for (kind, at, length, seed) in requests {
            let length = length.min(SIZE - at);
            match kind {
                0 => {
                    hands.post(hands.request(Op::Read, at, length));
                    prop_assert_eq!(hands.ends(), [(0, length as u64)]);
                    let read: Vec<u8> = hands.cells[at..at + length].iter().map(Cell::get).collect();
                    prop_assert!(read == model[at..at + length]);
                }
                1 => {
                    hands.fill(at, length, seed);
                    let written = hands.cells[at..at + length].iter().map(Cell::get);
                    model[at..at + length].iter_mut().zip(written).for_each(|(to, from)| *to = from);
                    hands.post(hands.request(Op::Write, at, length));
                    prop_assert_eq!(hands.ends(), [(0, length as u64)]);
                }
                _ => {
                    // Many small ones at a doorbell.
                    for number in 0..50_usize {
                        let at = (at / 2 + number * 32).min(SIZE - 32);
                        hands.fill(at, 32, seed);
                        hands.cells[at..at + 32].iter().zip(&mut model[at..at + 32]).for_each(|(c, m)| *m = c.get());
                        let quiet = Sqe { flags: Flags::UNSIGNALLED, ..hands.request(Op::Write, at, 32) };
                        prop_assert!(hands.queue.rings().prepare(quiet));
                    }
                    hands.queue.submit();
                    prop_assert_eq!(hands.ends(), []);
                }
            }
        }
        prop_assert!(bytes.with(|(bytes, _)| *bytes == model));
    }
}

#[test]
fn what_the_other_node_refuses_is_told_and_the_rest_goes_on() {
    let (_, server) = lender(8);
    let mut hands = Hands::on(exported(&server).unwrap());
    // It has become smaller there, for example: nobody here could know.
    let far = RemoteStorage::new(
        exported(&server).unwrap(),
        Arc::new((2 * SIZE as u64).into()),
        true,
    )
    .unwrap();
    let behind = hands.queue.register_new(far, 0, 2 * SIZE as u64, true);
    let behind = behind.unwrap().0;
    let bad = Sqe {
        storage: behind,
        offset: SIZE as u64 - 10,
        length: 100,
        ..hands.request(Op::Read, 0, 0)
    };
    hands.post(bad);
    assert_eq!(hands.ends(), [(StorageRequestError::Invalid.code(), 0)]);
    hands.post(Sqe { offset: 0, ..bad });
    assert_eq!(hands.ends(), [(0, 100)]);
}

#[test]
fn streams_are_given_over_up_to_a_bound_and_no_longer_than_they_are_open() {
    let (_, server) = lender(2);
    let (one, two) = (exported(&server).unwrap(), exported(&server).unwrap());
    let why = exported(&server).unwrap_err();
    assert!(why.contains("no space"), "{why}");
    drop(one);
    until(|| exported(&server).is_ok());
    drop(two);
    // Bytes that are no request end the stream.
    let mut raw = None;
    until(|| {
        raw = exported(&server).ok();
        raw.is_some()
    });
    let mut raw = raw.unwrap();
    raw.write_all(&[77; StorageRequest::BYTES]).unwrap();
    assert_eq!(raw.read(&mut [0; 10]).unwrap(), 0);
}

/// A client that waits for an answer before it sends the rest of the next request gets it.
#[test]
fn answers_are_not_held_back_by_what_is_still_to_come() {
    let (_, server) = lender(1);
    let mut raw = exported(&server).unwrap();
    raw.socket()
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    let write = StorageRequest {
        length: 100,
        ..StorageRequest::of(Verb::Write)
    };
    let both = [
        &StorageRequest::of(Verb::Size).encode()[..],
        &write.encode(),
        &[1; 50],
    ];
    raw.write_all(&both.concat()).unwrap();
    let mut answer = [0; StorageReply::BYTES];
    raw.read_exact(&mut answer).unwrap();
    assert_eq!(StorageReply::decode(answer).value, SIZE as u64);
    raw.write_all(&[1; 50]).unwrap();
    raw.read_exact(&mut answer).unwrap();
    assert_eq!(StorageReply::decode(answer).value, 100);
}

#[test]
fn a_peer_that_dies_in_the_middle_ends_all_that_was_under_way() {
    ends_with_its_peer(ContentTransport::Clear);
    ends_with_its_peer(ContentTransport::Sealed);
}

fn ends_with_its_peer(way: ContentTransport) {
    let (_, server) = lender_by(8, way);
    let mut hands = Hands::on(exported(&server).unwrap());
    hands.post(hands.request(Op::Write, 0, 100));
    assert_eq!(hands.ends(), [(0, 100)]);
    let lost = StorageRequestError::Lost.code();
    for number in 0..10 {
        let request = hands.request(Op::Write, number, 5_000_000);
        assert!(hands.queue.rings().prepare(request));
    }
    drop(server);
    hands.queue.submit();
    let ends = hands.ends();
    assert!(ends.iter().all(|(code, _)| *code == lost), "{ends:?}");
    assert_eq!(ends.len(), 10);
    // And all later requests, at once.
    hands.post(hands.request(Op::Read, 0, 1));
    assert_eq!(hands.ends(), [(lost, 0)]);
}

/// One that answers a request, half of the next, and dies.
#[test]
fn half_an_answer_is_none_and_an_answer_of_another_length_too() {
    for (second, length) in [(100_u64, 50), (99, 99)] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let mut hands = Hands::on(Wire::new(stream, None).unwrap());
        hands.post(hands.request(Op::Read, 0, 100));
        hands.post(hands.request(Op::Read, 0, 100));
        let mut requests = [0; 2 * StorageRequest::BYTES];
        peer.read_exact(&mut requests).unwrap();
        let answer = |value| StorageReply { code: 0, value }.encode();
        peer.write_all(&answer(100)).unwrap();
        peer.write_all(&[7; 100]).unwrap();
        peer.write_all(&answer(second)).unwrap();
        peer.write_all(&vec![8; length]).unwrap();
        peer.shutdown(Shutdown::Both).unwrap();
        assert_eq!(
            hands.ends(),
            [(0, 100), (StorageRequestError::Lost.code(), 0)]
        );
    }
}
