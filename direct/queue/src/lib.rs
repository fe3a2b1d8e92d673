//! L2: queue pairs to storage memory (Schürmann et al. 2014, section 4): the memory that a request may
//! name, the order in which requests begin, the time at which completions are given; and the header of a
//! partition. A [`Queue`] is generic over its [`Storage`], so that nothing is dispatched on the way of a
//! copy. Programs use `tarn-partitions`, which has the storages. docs/guide/direct-access.md.
//!
//! [`Storage`]: tarn_ring::Storage
//!
//! ```
//! use std::cell::Cell;
//! use tarn_queue::{NoRegion, Options, Queue};
//! use tarn_ring::{Op, ProgramMemory, Sqe};
//!
//! # use tarn_ring::{MemorySpan, Storage, StorageRequestError, SubmitOutcome, Ticket};
//! # struct Bytes(Vec<u8>);
//! # impl Bytes {
//! #     fn word(&mut self, at: u64, new: impl FnOnce(u64) -> u64) -> SubmitOutcome {
//! #         let word: &mut [u8; 8] = (&mut self.0[at as usize..][..8]).try_into().unwrap();
//! #         let old = u64::from_ne_bytes(*word);
//! #         *word = new(old).to_ne_bytes();
//! #         SubmitOutcome::Done(Ok(old))
//! #     }
//! # }
//! # impl Storage for Bytes {
//! #     fn size(&mut self) -> u64 {
//! #         self.0.len() as u64
//! #     }
//! #     fn is_persistent(&self) -> bool {
//! #         false
//! #     }
//! #     fn read(&mut self, at: u64, to: MemorySpan, _: Ticket) -> SubmitOutcome {
//! #         to.fill(&self.0[at as usize..]);
//! #         SubmitOutcome::Done(Ok(to.len() as u64))
//! #     }
//! #     fn write(&mut self, at: u64, from: MemorySpan, _: bool, _: Ticket) -> SubmitOutcome {
//! #         from.copy_to(&mut self.0[at as usize..]);
//! #         SubmitOutcome::Done(Ok(from.len() as u64))
//! #     }
//! #     fn fetch_add(&mut self, at: u64, add: u64, _: Ticket) -> SubmitOutcome {
//! #         self.word(at, |old| old.wrapping_add(add))
//! #     }
//! #     fn compare_swap(&mut self, at: u64, expected: u64, new: u64, _: Ticket) -> SubmitOutcome {
//! #         self.word(at, |old| if old == expected { new } else { old })
//! #     }
//! #     fn flush(&mut self, _: Ticket) -> SubmitOutcome {
//! #         SubmitOutcome::Done(Ok(0))
//! #     }
//! #     fn settle(&mut self) -> Result<(), StorageRequestError> {
//! #         Ok(())
//! #     }
//! # }
//! // `Bytes` is a `Storage` of some memory.
//! let mut queue = Queue::new(8, Options::default()).unwrap();
//! let (storage, _) = queue.register_new(Bytes(vec![0; 4096]), 0, 4096, true).unwrap();
//! let cells = Box::leak(vec![Cell::new(7_u8); 64].into_boxed_slice());
//! let memory = queue.register_memory(ProgramMemory::of(cells)).unwrap();
//!
//! let write = Sqe {
//!     op: Op::Write as u8,
//!     memory,
//!     storage,
//!     address: cells.as_ptr().addr() as u64,
//!     offset: 4000,
//!     length: 64,
//!     user_data: 1,
//!     ..Sqe::default()
//! };
//! assert!(queue.rings().prepare(write));
//! assert!(queue.rings().prepare(Sqe { offset: 4090, user_data: 2, ..write })); // 58 bytes too far
//! assert_eq!(queue.submit(), 2);
//! let done: Vec<_> = std::iter::from_fn(|| queue.rings().reap()).collect();
//! assert_eq!((done[0].user_data, done[0].code, done[0].value), (1, 0, 64));
//! assert_eq!((done[1].user_data, done[1].code), (2, 1)); // StorageRequestError::Invalid
//!
//! queue.unregister(storage).unwrap();
//! assert_eq!(queue.unregister(storage), Err(NoRegion::Invalid));
//! ```

mod cyclic;
mod flight;
pub mod header;
mod queue;
mod region;
mod slab;

pub use cyclic::{Cyclic, CyclicLayout, MAX_PARTS};
pub use queue::{Options, Queue};
pub use region::{MAX_REGIONS, MAX_STORAGES, NoRegion, QueueRegionId};
