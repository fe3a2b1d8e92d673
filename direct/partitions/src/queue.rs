//! Queue pairs.

use crate::error::refused;
use crate::store::PartitionStorage;
use crate::{Code, Partition, RequestError};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, epoll, eventfd, poll};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::{Errno, read, write};
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};
use tarn_queue::{NoRegion, Options, QueueRegionId};
use tarn_ring::{Cqe, MAX_ENTRIES, ProgramMemory, Sqe};

/// So long a wait looks again and again before it sleeps: to be woken takes longer than most requests do.
const EAGER: Duration = Duration::from_micros(50);

/// So long it sleeps at once: storages look after what does not end.
const NAP: Duration = Duration::from_secs(1);

/// A queue pair of one thread (Schürmann et al. 2014, section 4): requests go into one ring, completions come
/// out of another. On mapped partitions no request makes a system call.
///
/// Requests begin in the order in which they were prepared. A completion names its request by
/// [`Sqe::user_data`]; with [`Flags::UNSIGNALLED`](crate::Flags) success has none, with
/// [`Flags::LINKED`](crate::Flags) the next request begins when this one has succeeded.
///
/// # Examples
/// A chain: two words are written, and then a counter is raised. Only the last has a completion.
/// ```
/// use std::cell::Cell;
/// use std::time::Duration;
/// use tarn_partitions::{
///     Flags, Op, OpenOptions, Options, Partition, PartitionQueue, ProgramMemory, Sqe,
/// };
///
/// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
/// let path = folder.path().join("field");
/// Partition::create(&path, 1 << 16, Vec::new())?;
/// let partition = Partition::open(&path, OpenOptions::default())?;
/// let cells = Box::leak(vec![Cell::new(0_u8); 4096].into_boxed_slice()); // the program's memory
/// let address = cells.as_ptr().addr() as u64;
/// let mut queue = PartitionQueue::new(8, Options::default())?;
/// let memory = queue.register_memory(ProgramMemory::of(cells))?;
/// let storage = queue.register(&partition, 0, 1 << 16, true)?;
///
/// let word = Sqe { op: Op::Write as u8, memory, storage, address, length: 8, ..Sqe::default() };
/// let quiet = Flags::UNSIGNALLED | Flags::LINKED;
/// assert!(queue.prepare(Sqe { offset: 4096, flags: quiet, ..word }));
/// assert!(queue.prepare(Sqe { offset: 8192, flags: quiet, ..word }));
/// let counter = Sqe { op: Op::FetchAdd as u8, storage, operand: 1, user_data: 7, ..Sqe::default() };
/// assert!(queue.prepare(Sqe { memory: 0, length: 8, ..counter }));
/// queue.wait(1, Duration::from_secs(10))?;
///
/// let done = queue.reap().unwrap();
/// assert_eq!((done.user_data, done.code, done.value), (7, 0, 0)); // the counter was 0
/// assert!(queue.reap().is_none());
/// # Ok::<(), tarn_partitions::RequestError>(())
/// ```
#[derive(Debug)]
#[repr(C)]
pub struct PartitionQueue {
    pair: tarn_queue::Queue<PartitionStorage>,
    /// Which open partition a storage is of.
    known: BTreeMap<u32, u64>,
    event: Option<CompletionEvent>,
    /// The program has it too, and waits for completions with other things.
    exported: bool,
    /// It is notified of the ends of requests under way, too.
    is_notified: bool,
    /// The process that alone can use it, from when it has more than mapped memory: a thread, a stream, descriptors that a forked child would
    /// share with its parent.
    process: Option<u32>,
}

/// The descriptor that becomes readable with completions.
#[derive(Debug)]
struct CompletionEvent {
    /// An epoll descriptor, of this eventfd and others.
    poll: OwnedFd,
    count: OwnedFd,
}

impl CompletionEvent {
    fn new() -> Result<Self, Errno> {
        let count = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(
            &poll,
            &count,
            epoll::EventData::new_u64(0),
            epoll::EventFlags::IN,
        )?;
        Ok(Self { poll, count })
    }

    /// It is readable.
    fn signal(&self) {
        // It is already if it cannot count further.
        let _ = write(&self.count, &1_u64.to_ne_bytes());
    }

    /// It is not, unless something else makes it so.
    fn clear(&self) {
        let _ = read(&self.count, &mut [0; 8]);
    }
}

impl PartitionQueue {
    /// Makes a queue pair with rings of `entries` requests.
    ///
    /// # Errors
    /// [`Invalid`](Code::Invalid): `entries` is no power of two, or more than 65,536.
    ///
    /// # Examples
    /// ```
    /// use tarn_partitions::{Code, Options, PartitionQueue};
    ///
    /// assert!(PartitionQueue::new(64, Options::default()).is_ok());
    /// assert_eq!(PartitionQueue::new(100, Options::default()).unwrap_err().code, Code::Invalid);
    /// ```
    pub fn new(entries: u32, options: Options) -> Result<Self, RequestError> {
        let pair = tarn_queue::Queue::new(entries, options).ok_or_else(|| {
            let text = format!(
                "a queue pair has a power of two of entries up to {MAX_ENTRIES}, not {entries}"
            );
            RequestError::new(Code::Invalid, text)
        })?;
        Ok(Self {
            pair,
            known: BTreeMap::new(),
            event: None,
            exported: false,
            is_notified: true,
            process: None,
        })
    }

    /// Whether this process can use it. A forked child can use its parent's only while that has mapped memory
    /// alone.
    #[inline]
    pub fn is_here(&self) -> bool {
        self.process.is_none_or(|own| own == std::process::id())
    }

    fn check(&self) -> Result<(), RequestError> {
        match self.is_here() {
            true => Ok(()),
            false => Err(of_parent("this queue pair")),
        }
    }

    /// Registers a range of the program's memory; requests name it by the number that is returned
    /// ([`Sqe::memory`]).
    ///
    /// # Errors
    /// [`Busy`](Code::Busy): the queue pair has 4096 regions. [`Unsupported`](Code::Unsupported): it is that
    /// of the process that this one was forked from.
    pub fn register_memory(
        &mut self,
        memory: ProgramMemory,
    ) -> Result<QueueRegionId, RequestError> {
        self.check()?;
        self.pair.register_memory(memory).map_err(no_region)
    }

    /// Registers `length` bytes of a partition from byte `start` on; requests name them by the number that is
    /// returned ([`Sqe::storage`]). The partition stays open while a queue pair has a region of it.
    ///
    /// # Errors
    /// - [`Invalid`](Code::Invalid): the range is not within the partition.
    /// - [`Denied`](Code::Denied): it is to be written, and the partition was opened to be read only.
    /// - [`Busy`](Code::Busy): the queue pair has 4096 regions, or regions of 64 partitions.
    /// - [`Unsupported`](Code::Unsupported): the queue pair is that of the process that this one was forked
    ///   from.
    ///
    /// # Examples
    /// ```
    /// use tarn_partitions::{Code, OpenOptions, Options, Partition, PartitionQueue};
    ///
    /// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    /// let path = folder.path().join("field");
    /// Partition::create(&path, 1 << 16, Vec::new())?;
    /// let partition = Partition::open(&path, OpenOptions::default())?;
    /// let mut queue = PartitionQueue::new(8, Options::default())?;
    /// let upper_half = queue.register(&partition, 32 << 10, 32 << 10, false)?; // for reads
    /// let why = queue.register(&partition, 32 << 10, 64 << 10, false).unwrap_err();
    /// assert_eq!(why.code, Code::Invalid);
    /// queue.unregister(upper_half)?;
    /// # Ok::<(), tarn_partitions::RequestError>(())
    /// ```
    pub fn register(
        &mut self,
        partition: &Partition,
        start: u64,
        length: u64,
        writable: bool,
    ) -> Result<QueueRegionId, RequestError> {
        self.check()?;
        if writable && !partition.is_writable() {
            let text = "the partition was opened to be read only";
            return Err(RequestError::new(Code::Denied, text));
        }
        // Those that the queue pair has let go of are none.
        self.known.retain(|number, _| self.pair.has(*number));
        let known = self.known.iter().find(|(_, own)| **own == partition.own());
        let region = match known.map(|(number, _)| *number) {
            Some(number) => self.pair.register(number, start, length, writable),
            None => {
                let store = partition.store()?;
                if !store.is_mapped() {
                    self.process = Some(std::process::id());
                }
                let made = self.pair.register_new(store, start, length, writable);
                if let Some(CompletionEvent { poll, count }) = &self.event {
                    self.is_notified = self.pair.notify(count.as_fd(), poll.as_fd());
                }
                made.map(|(region, number)| {
                    self.known.insert(number, partition.own());
                    region
                })
            }
        };
        region.map_err(no_region)
    }

    /// Gives a region back.
    ///
    /// # Errors
    /// [`Busy`](Code::Busy): requests under way name it. [`Invalid`](Code::Invalid): there is no such region.
    /// [`Unsupported`](Code::Unsupported): the queue pair is that of the process that this one was forked
    /// from.
    pub fn unregister(&mut self, region: QueueRegionId) -> Result<(), RequestError> {
        self.check()?;
        self.pair.unregister(region).map_err(|why| match why {
            NoRegion::Busy => {
                let text = "requests under way name the region: reap their completions first";
                RequestError::new(Code::Busy, text)
            }
            _ => RequestError::new(Code::Invalid, "the queue pair has no such region"),
        })
    }

    /// Puts a request into the ring; false when the ring is full. It begins with the next
    /// [`submit`](Self::submit) or [`wait`](Self::wait). A malformed request fails by its completion.
    #[inline]
    pub fn prepare(&mut self, request: Sqe) -> bool {
        self.pair.rings().prepare(request)
    }

    /// Begins the prepared requests, as far as the completion ring has space for them, and takes in those
    /// that have ended. Returns how many were begun: none in a forked child that cannot use this.
    ///
    /// # Examples
    /// ```
    /// use std::cell::Cell;
    /// use tarn_partitions::{Op, OpenOptions, Options, Partition, PartitionQueue, ProgramMemory, Sqe};
    ///
    /// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    /// let path = folder.path().join("field");
    /// Partition::create(&path, 1 << 16, Vec::new())?;
    /// let partition = Partition::open(&path, OpenOptions::default())?;
    /// let cells = Box::leak(vec![Cell::new(0_u8); 4096].into_boxed_slice()); // the program's memory
    /// let address = cells.as_ptr().addr() as u64;
    /// let mut queue = PartitionQueue::new(8, Options::default())?;
    /// let memory = queue.register_memory(ProgramMemory::of(cells))?;
    /// let storage = queue.register(&partition, 0, 1 << 16, true)?;
    /// let read = Sqe { op: Op::Read as u8, memory, storage, address, length: 4096, ..Sqe::default() };
    /// for page in 0..4 {
    ///     assert!(queue.prepare(Sqe { offset: page * 4096, user_data: page, ..read }));
    /// }
    /// assert_eq!(queue.submit(), 4);
    /// // A mapped partition is read at once; others end later.
    /// let done: Vec<u64> = std::iter::from_fn(|| queue.reap()).map(|end| end.user_data).collect();
    /// assert_eq!(done, [0, 1, 2, 3]);
    /// # Ok::<(), tarn_partitions::RequestError>(())
    /// ```
    #[inline]
    pub fn submit(&mut self) -> u32 {
        if !self.is_here() {
            return 0;
        }
        if self.exported {
            self.clear();
        }
        let before = self.pair.rings().completed();
        if !self.pair.is_idle() {
            self.pair.poll();
        }
        let begun = self.pair.submit();
        if self.exported && self.pair.rings().completed() > before {
            self.signal();
        }
        begun
    }

    fn signal(&self) {
        if let Some(event) = &self.event {
            event.signal();
        }
    }

    #[cold]
    fn clear(&self) {
        if let Some(event) = &self.event {
            event.clear();
        }
    }

    /// Begins what was prepared, and waits until there are `completions` to be reaped, at most for `timeout`.
    ///
    /// # Errors
    /// - [`TimedOut`](Code::TimedOut): there are fewer after that time.
    /// - [`Invalid`](Code::Invalid): there will never be as many, as not enough requests are under way.
    /// - [`Unsupported`](Code::Unsupported): the queue pair is that of the process that this one was forked
    ///   from.
    pub fn wait(&mut self, completions: u32, timeout: Duration) -> Result<(), RequestError> {
        self.check()?;
        let until = Instant::now().checked_add(timeout);
        let waited = self.wait_until(completions, until, timeout);
        if self.exported && self.pair.rings().completed() > 0 {
            // It was cleared here.
            self.signal();
        }
        waited
    }

    fn wait_until(
        &mut self,
        completions: u32,
        until: Option<Instant>,
        timeout: Duration,
    ) -> Result<(), RequestError> {
        let eager = Instant::now() + EAGER;
        loop {
            self.submit();
            if self.pair.rings().completed() >= completions {
                return Ok(());
            }
            if self.pair.is_idle() {
                let text = format!(
                    "{completions} completions were waited for, and with the running ones there will be {}",
                    self.pair.rings().completed()
                );
                return Err(RequestError::new(Code::Invalid, text));
            }
            if until.is_some_and(|until| Instant::now() >= until) {
                let text =
                    format!("there were fewer than {completions} completions in {timeout:?}");
                return Err(RequestError::new(Code::TimedOut, text));
            }
            match Instant::now() < eager {
                true => std::thread::yield_now(),
                false => self.sleep(until),
            }
        }
    }

    /// Sleeps until a request under way may have ended.
    fn sleep(&mut self, until: Option<Instant>) {
        let is_new = self.event.is_none();
        if self.make_event().is_err() || !self.is_notified {
            std::thread::yield_now();
        } else if !is_new && let Some(event) = &self.event {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = Timespec::try_from(left.map_or(NAP, |left| left.min(NAP))).ok();
            let _ = poll(
                &mut [PollFd::new(&event.poll, PollFlags::IN)],
                left.as_ref(),
            );
            event.clear();
        }
    }

    fn make_event(&mut self) -> Result<&CompletionEvent, RequestError> {
        let event = match self.event.take() {
            Some(event) => event,
            None => {
                self.process = Some(std::process::id());
                let event = CompletionEvent::new();
                let event = event.map_err(refused("make", Path::new("an eventfd")))?;
                self.is_notified = self.pair.notify(event.count.as_fd(), event.poll.as_fd());
                event
            }
        };
        Ok(self.event.insert(event))
    }

    /// Takes the next completion out of the ring, if there is one. It does not wait.
    #[inline]
    pub fn reap(&mut self) -> Option<Cqe> {
        self.pair.rings().reap()
    }

    /// A descriptor that becomes readable with completions, for poll loops. When it is readable, call
    /// [`submit`](Self::submit), reap all completions, and poll again. Do not read from it.
    ///
    /// # Errors
    /// [`NoSpace`](Code::NoSpace), [`Io`](Code::Io): the system gives none.
    /// [`Unsupported`](Code::Unsupported): the queue pair is that of the process that this one was forked
    /// from.
    pub fn event(&mut self) -> Result<BorrowedFd<'_>, RequestError> {
        self.check()?;
        self.make_event()?;
        if !std::mem::replace(&mut self.exported, true) && self.pair.rings().completed() > 0 {
            self.signal();
        }
        Ok(self.make_event()?.poll.as_fd())
    }
}

/// The error of a forked child that uses what is its parent's.
pub(crate) fn of_parent(what: &str) -> RequestError {
    let text = format!(
        "{what} is of the process that this one was forked from, which alone can use it: open partitions and create queue pairs in this one"
    );
    RequestError::new(Code::Unsupported, text)
}

fn no_region(why: NoRegion) -> RequestError {
    match why {
        NoRegion::Full => {
            let text = format!(
                "a queue pair has at most {} regions, of {} partitions: give some back",
                tarn_queue::MAX_REGIONS,
                tarn_queue::MAX_STORAGES
            );
            RequestError::new(Code::Busy, text)
        }
        _ => {
            let text = "the region is not within the partition, as large as it is here: ask for its size again";
            RequestError::new(Code::Invalid, text)
        }
    }
}
