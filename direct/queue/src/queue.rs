//! A queue pair.

use crate::flight::{Posted, RequestChain, RequestsInFlight};
use crate::region::{MAX_STORAGES, NoRegion, QueueRegionId, Range, Regions};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use tarn_ring::{
    Cqe, Flags, Level, MemorySpan, Op, ProgramMemory, Rings, Sqe, Storage, StorageRequestError,
    SubmitOutcome, Ticket,
};

/// The options that hold for all requests of a queue pair.
///
/// # Examples
/// ```
/// use tarn_queue::Options;
/// use tarn_ring::Level;
///
/// // Each write is persistent when it completes, also where the medium is memory: for tests.
/// let options = Options { level: Level::Persistent, volatile: true };
/// assert_ne!(options, Options::default());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// The level of writes that name none.
    pub level: Level,
    /// Persistent writes and flushes are allowed on a medium that keeps nothing without power.
    pub volatile: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            level: Level::Visible,
            volatile: false,
        }
    }
}

/// A queue pair, of one thread. It begins with its [`Rings`], as C programs see it.
#[derive(Debug)]
#[repr(C)]
pub struct Queue<S> {
    rings: Rings,
    options: Options,
    regions: Regions,
    storages: Vec<Option<S>>,
    flight: RequestsInFlight,
    /// The group of the next request.
    group: u64,
    /// Unsignalled requests that are done, but not settled.
    quiet: Vec<u64>,
}

const _: () = assert!(std::mem::offset_of!(Queue<()>, rings) == 0);

/// The relation of the next request to the one before.
enum RequestLink {
    None,
    Failed,
    /// It waits for it.
    Behind(Ticket),
}

impl<S: Storage> Queue<S> {
    /// Makes a queue pair with rings of `entries` requests, a power of two up to [`tarn_ring::MAX_ENTRIES`];
    /// `None` for other numbers. The crate's first page has an example.
    pub fn new(entries: u32, options: Options) -> Option<Self> {
        Some(Self {
            rings: Rings::new(entries)?,
            options,
            regions: Regions::default(),
            storages: Vec::new(),
            flight: RequestsInFlight::default(),
            group: 0,
            quiet: Vec::new(),
        })
    }

    /// The rings: requests are prepared in them, and completions are reaped from them.
    #[inline]
    pub fn rings(&mut self) -> &mut Rings {
        &mut self.rings
    }

    /// Registers a range of the program's memory.
    ///
    /// # Errors
    /// [`NoRegion::Full`]: there are [`MAX_REGIONS`](crate::MAX_REGIONS) regions.
    pub fn register_memory(&mut self, memory: ProgramMemory) -> Result<QueueRegionId, NoRegion> {
        self.regions.add_memory(memory)
    }

    /// Whether there is a storage of this number.
    pub fn has(&self, storage: u32) -> bool {
        let storage = self.storages.get(storage as usize);
        storage.is_some_and(Option::is_some)
    }

    /// Registers `length` bytes from byte `start` on of a partition that has a region already; `storage` is
    /// the number that [`Queue::register_new`] gave it.
    ///
    /// # Errors
    /// [`NoRegion::Invalid`]: the range is not within the partition. [`NoRegion::Full`]: there are too many
    /// regions.
    pub fn register(
        &mut self,
        storage: u32,
        start: u64,
        length: u64,
        writable: bool,
    ) -> Result<QueueRegionId, NoRegion> {
        let there = self.storages.get_mut(storage as usize);
        let there = there.and_then(Option::as_mut).ok_or(NoRegion::Invalid)?;
        let end = start.checked_add(length).ok_or(NoRegion::Invalid)?;
        if end > there.size() {
            return Err(NoRegion::Invalid);
        }
        self.regions.add_storage(Range {
            storage,
            start,
            length,
            writable,
        })
    }

    /// Registers the first region of a partition. Returns the region, and the number of the partition.
    ///
    /// # Errors
    /// As [`Queue::register`]; [`NoRegion::Full`] also with [`MAX_STORAGES`] partitions. The partition is
    /// dropped then.
    pub fn register_new(
        &mut self,
        storage: S,
        start: u64,
        length: u64,
        writable: bool,
    ) -> Result<(QueueRegionId, u32), NoRegion> {
        let free = self.storages.iter().position(Option::is_none);
        let number = free.unwrap_or(self.storages.len());
        if number == MAX_STORAGES {
            return Err(NoRegion::Full);
        }
        if number == self.storages.len() {
            self.storages.push(None);
        }
        self.storages[number] = Some(storage);
        let region = self.register(number as u32, start, length, writable);
        if region.is_err() {
            self.storages[number] = None;
        }
        region.map(|region| (region, number as u32))
    }

    /// Gives a region back. With the last region of a partition, the queue pair drops that.
    ///
    /// # Errors
    /// [`NoRegion::Busy`]: requests under way name it. [`NoRegion::Invalid`]: there is no such region.
    pub fn unregister(&mut self, region: QueueRegionId) -> Result<(), NoRegion> {
        if self.flight.names(region) {
            return Err(NoRegion::Busy);
        }
        if let Some(storage) = self.regions.remove(region)?
            && !self.regions.uses(storage)
        {
            self.storages[storage as usize] = None;
        }
        Ok(())
    }

    /// Begins what was prepared, in order, while the completion ring has space for it. Returns how many were
    /// begun.
    pub fn submit(&mut self) -> u32 {
        let mut taken = 0;
        let mut link = RequestLink::None;
        while self.rings.prepared() > 0 && self.rings.completion_space() > self.promised() {
            // Its fields stay in registers until it waits for something. In memory, each request would be read only once all that the one
            // before has written is, and so one cache line would be fetched after the other.
            let request = self.rings.first();
            if request.is_linked() && matches!(link, RequestLink::None) && !self.fits() {
                break;
            }
            self.rings.take();
            taken += 1;
            let group = self.group;
            self.group += u64::from(request.is_signalled());
            let result = match link {
                RequestLink::Behind(ticket) => {
                    self.hold(ticket, Posted { request, group });
                    if !request.is_linked() {
                        link = RequestLink::None;
                    }
                    continue;
                }
                RequestLink::Failed => SubmitOutcome::Done(Err(StorageRequestError::Cancelled)),
                RequestLink::None => self.begin(&request),
            };
            link = match result {
                SubmitOutcome::Pending => RequestLink::Behind(self.fly(Posted { request, group })),
                SubmitOutcome::Done(result) => {
                    self.complete_request(&request, group, result);
                    // The next is to find it as it is to be: persistent, for example.
                    match result.is_ok() && (!request.is_linked() || self.settle_storages()) {
                        true => RequestLink::None,
                        false => RequestLink::Failed,
                    }
                }
            };
            if !request.is_linked() {
                link = RequestLink::None;
            }
        }
        self.settle();
        taken
    }

    /// A request is under way.
    #[cold]
    #[inline(never)]
    fn fly(&mut self, posted: Posted) -> Ticket {
        self.flight.count(&posted);
        self.flight.begin(posted, VecDeque::new())
    }

    /// A request waits for one that is under way.
    #[cold]
    #[inline(never)]
    fn hold(&mut self, behind: Ticket, posted: Posted) {
        self.flight.count(&posted);
        self.flight.hold(behind, posted);
    }

    /// Whether there is space for the completions of the whole chain that comes first: it is not cut.
    #[cold]
    fn fits(&self) -> bool {
        let prepared = self.rings.prepared();
        let linked = (0..prepared).take_while(|number| self.rings.look(*number).is_linked());
        let chain = (linked.count() as u32 + 1).min(prepared);
        // The program may have written anything to its rings.
        let space = self.rings.completion_space().checked_sub(self.promised());
        space.is_some_and(|space| space >= chain)
    }

    /// Places in the completion ring that are promised.
    #[inline]
    fn promised(&self) -> u32 {
        self.flight.promised() + self.quiet.len() as u32
    }

    /// Whether no requests are under way.
    pub fn is_idle(&self) -> bool {
        self.flight.promised() == 0
    }

    /// From now on `poll`, an epoll descriptor that has the eventfd `event`, is readable when requests under
    /// way may have ended. False where [`Queue::poll`] is to be called again and again.
    pub fn notify(&mut self, event: BorrowedFd<'_>, poll: BorrowedFd<'_>) -> bool {
        let storages = self.storages.iter_mut().flatten();
        let notified = storages.map(|storage| storage.notify(event, poll));
        notified.filter(|notified| !notified).count() == 0
    }

    /// Takes in which requests under way have ended: their completions can be reaped then.
    pub fn poll(&mut self) {
        let mut ended = Vec::new();
        for storage in self.storages.iter_mut().flatten() {
            storage.reap(&mut |ticket, result| ended.push((ticket, result)));
        }
        for (ticket, result) in ended {
            if let Some(chain) = self.flight.end(ticket) {
                self.ended(chain, result);
            }
        }
        self.settle();
    }

    /// The head of a chain has ended; the request that waited for it begins, or ends too.
    #[inline(never)]
    fn ended(&mut self, chain: RequestChain, result: Result<u64, StorageRequestError>) {
        let RequestChain { mut head, mut rest } = chain;
        let mut result = result;
        loop {
            self.flight.uncount(&head);
            self.complete_request(&head.request, head.group, result);
            let Some(next) = rest.pop_front() else {
                break;
            };
            head = next;
            result = match result {
                Err(_) => Err(StorageRequestError::Cancelled),
                Ok(_) if !self.settle_storages() => Err(StorageRequestError::Cancelled),
                Ok(_) => match self.begin(&head.request) {
                    SubmitOutcome::Done(result) => result,
                    SubmitOutcome::Pending => {
                        self.flight.begin(head, rest);
                        break;
                    }
                },
            };
        }
        let rings = &mut self.rings;
        self.flight.release(&mut |parked| rings.complete(parked));
    }

    /// Writes the completion of a request.
    #[inline(always)]
    fn complete_request(
        &mut self,
        request: &Sqe,
        group: u64,
        result: Result<u64, StorageRequestError>,
    ) {
        let is_signalled = request.is_signalled();
        if !is_signalled && result.is_ok() {
            self.quiet.push(request.user_data);
            return;
        }
        let (value, code) = match result {
            Ok(value) => (value, 0),
            Err(why) => (0, why.code()),
        };
        let completion = Cqe {
            user_data: request.user_data,
            value,
            code,
            flags: 0,
        };
        match is_signalled && self.flight.waits(group) {
            true => self.flight.park(group, completion),
            false => self.rings.complete(completion),
        }
    }

    /// Settles what is done; false if it is not.
    fn settle_storages(&mut self) -> bool {
        let storages = self.storages.iter_mut().flatten();
        let failed = storages.filter_map(|storage| storage.settle().err()).last();
        if let Some(why) = failed {
            self.unsettled(why);
        }
        self.flight
            .settle(failed.map_or(Ok(()), |why| Err(why.code())));
        self.quiet.clear();
        failed.is_none()
    }

    /// All that is done and not reported yet counts as failed.
    #[cold]
    fn unsettled(&mut self, why: StorageRequestError) {
        let code = why.code();
        self.rings.revise(&mut |completion| completion.fail(code));
        for user_data in self.quiet.drain(..) {
            let completion = Cqe {
                user_data,
                code,
                ..Cqe::default()
            };
            self.rings.complete(completion);
        }
    }

    fn settle(&mut self) {
        #[cfg(debug_assertions)]
        self.flight.recount();
        self.settle_storages();
        self.rings.publish();
    }

    /// Begins a request.
    #[inline(always)]
    fn begin(&mut self, request: &Sqe) -> SubmitOutcome {
        self.try_begin(request)
            .unwrap_or_else(|why| SubmitOutcome::Done(Err(why)))
    }

    #[inline(always)]
    fn try_begin(&mut self, request: &Sqe) -> Result<SubmitOutcome, StorageRequestError> {
        let op = Op::of(request.op).ok_or(StorageRequestError::Invalid)?;
        if request.flags & !Flags::ALL != 0 || request.reserved != 0 || request.reserved2 != 0 {
            return Err(StorageRequestError::Invalid);
        }
        let ticket = self.flight.ticket();
        let length = request.length;
        Ok(match op {
            Op::Nothing => SubmitOutcome::Done(Ok(0)),
            Op::Read => {
                let to = self.memory(request, true)?;
                let (storage, at) = self.storage(request, length, false)?;
                if length == 0 {
                    return Ok(SubmitOutcome::Done(Ok(0)));
                }
                storage.read(at, to, ticket)
            }
            Op::Write => {
                let level = Level::of(request.level, self.options.level);
                let is_persistent = level.ok_or(StorageRequestError::Invalid)? == Level::Persistent;
                let volatile = self.options.volatile;
                let from = self.memory(request, false)?;
                let (storage, at) = self.storage(request, length, true)?;
                if is_persistent && !volatile && !storage.is_persistent() {
                    return Err(StorageRequestError::Volatile);
                }
                if length == 0 {
                    return Ok(SubmitOutcome::Done(Ok(0)));
                }
                storage.write(at, from, is_persistent, ticket)
            }
            Op::FetchAdd => {
                let (storage, at) = self.word(request)?;
                storage.fetch_add(at, request.operand, ticket)
            }
            Op::CompareSwap => {
                let (storage, at) = self.word(request)?;
                storage.compare_swap(at, request.expected, request.operand, ticket)
            }
            Op::Flush => {
                let volatile = self.options.volatile;
                let (storage, _) = self.storage(request, 0, false)?;
                if !volatile && !storage.is_persistent() {
                    return Err(StorageRequestError::Volatile);
                }
                storage.flush(ticket)
            }
        })
    }

    #[inline(always)]
    fn memory(&self, request: &Sqe, fill: bool) -> Result<MemorySpan, StorageRequestError> {
        let span = self
            .regions
            .memory(request.memory, request.address, request.length, fill);
        span.ok_or(StorageRequestError::Invalid)
    }

    #[inline(always)]
    fn storage(
        &mut self,
        request: &Sqe,
        length: u64,
        write: bool,
    ) -> Result<(&mut S, u64), StorageRequestError> {
        let there = self
            .regions
            .storage(request.storage, request.offset, length, write);
        let (storage, at) = there.ok_or(StorageRequestError::Invalid)?;
        let storage = self.storages.get_mut(storage).and_then(Option::as_mut);
        Ok((storage.ok_or(StorageRequestError::Invalid)?, at))
    }

    /// 8 aligned bytes.
    fn word(&mut self, request: &Sqe) -> Result<(&mut S, u64), StorageRequestError> {
        let (storage, at) = self.storage(request, 8, true)?;
        match at.is_multiple_of(8) {
            true => Ok((storage, at)),
            false => Err(StorageRequestError::Invalid),
        }
    }
}
