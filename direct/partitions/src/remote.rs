//! A partition of another node: each queue pair has a stream of its own to it.

use crate::error::refused;
use crate::local::{read_only, taken};
use crate::name::InSpace;
use crate::queue::of_parent;
use crate::{Code, OpenOptions, PartitionDetails, RequestError};
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tarn_data_plane::{RemoteStorage, Wire, result};
use tarn_ports::{PowerFail, Promises};
use tarn_proto::local::RemotePartition;
use tarn_proto::storage::{StorageReply, StorageRequest, Verb};
use tarn_ring::StorageRequestError;
use tarn_sys::lock::RangeLockMode;

/// The time in which the other node must report how large the partition is.
const TIMEOUT: Duration = Duration::from_secs(30);

/// A partition of another node.
#[derive(Debug)]
pub(crate) struct RemotePart {
    /// As it was named.
    path: PathBuf,
    options: OpenOptions,
    far: RemotePartition,
    /// As large as it was last known to be.
    size: Arc<AtomicU64>,
    /// It cannot be reached by windows: every further try would take as long.
    no_windows: AtomicBool,
    /// It has it open there for as long as this is, and reports its size.
    stream: Mutex<Wire>,
    /// The process that owns the stream.
    process: u32,
}

impl RemotePart {
    /// Opens it.
    pub(crate) fn open(
        path: &Path,
        within: &InSpace<'_>,
        options: OpenOptions,
    ) -> Result<Self, RequestError> {
        let (stream, far) = stream(within, options)?;
        Ok(Self {
            path: path.to_owned(),
            options,
            size: Arc::new(AtomicU64::new(far.info.bytes)),
            far,
            no_windows: AtomicBool::new(false),
            stream: Mutex::new(stream),
            process: std::process::id(),
        })
    }

    /// Its details, with its present size.
    pub(crate) fn info(&self) -> Result<PartitionDetails, RequestError> {
        let mut info = PartitionDetails::from(self.far.info.clone());
        info.size = self.size()?;
        Ok(info)
    }

    /// Bytes of it now.
    pub(crate) fn size(&self) -> Result<u64, RequestError> {
        let size = match self.request(Verb::Size, 0)? {
            Ok(size) => size,
            Err(_) => {
                let text = format!("{} cannot be looked at on its node", self.path.display());
                return Err(RequestError::new(Code::Io, text));
            }
        };
        Ok(size.max(self.size.fetch_max(size, Ordering::Relaxed)))
    }

    /// Holds its lock there, or gives it back, at once: it goes with this opening.
    pub(crate) fn lock(&self, what: RangeLockMode) -> Result<(), RequestError> {
        let what = match what {
            RangeLockMode::Nothing => 0,
            RangeLockMode::Shared => 1,
            RangeLockMode::Alone => 2,
        };
        self.request(Verb::Hold, what)?
            .map(drop)
            .map_err(|why| match why {
                StorageRequestError::Busy => taken(&self.path),
                StorageRequestError::Denied => read_only(&self.path),
                why => {
                    let text = format!("{} cannot be locked: {why}", self.path.display());
                    RequestError::new(Code::Io, text)
                }
            })
    }

    /// Sends its node a request, and returns the answer.
    fn request(
        &self,
        verb: Verb,
        operand: u64,
    ) -> Result<Result<u64, StorageRequestError>, RequestError> {
        // Before the lock, which another thread may have had when this process was forked.
        if self.process != std::process::id() {
            return Err(of_parent("this open partition"));
        }
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let request = StorageRequest {
            operand,
            ..StorageRequest::of(verb)
        };
        let mut answer = [0; StorageReply::BYTES];
        let sent = stream
            .write_all(&request.encode())
            .and_then(|()| stream.flush())
            .and_then(|()| stream.read_exact(&mut answer));
        sent.map_err(|e| {
            let text = format!("the node of {} does not answer: {e}", self.path.display());
            RequestError::new(Code::Lost, text)
        })?;
        Ok(result(StorageReply::decode(answer)))
    }

    /// Random, its own.
    pub(crate) fn identity(&self) -> u128 {
        self.far.identity
    }

    /// The promises of its medium there.
    pub(crate) fn promises(&self) -> Promises {
        Promises {
            atomic: 8,
            write_unit: 1,
            persist_unit: 1,
            power_fail: match self.far.persistent {
                true => PowerFail::Synced,
                false => PowerFail::Lost,
            },
        }
    }

    /// One more pair of hands.
    pub(crate) fn hands(&self) -> Result<RemoteStorage, RequestError> {
        let within = InSpace::of(&self.path)?;
        let opened = stream(&within, self.options);
        // It must not have been lost meanwhile: a later flush would take earlier writes for persistent.
        self.size()?;
        let (stream, far) = opened?;
        if far.identity != self.far.identity {
            let text = format!(
                "{} is another partition now than the one that was opened",
                self.path.display()
            );
            return Err(RequestError::new(Code::Changed, text));
        }
        let made = RemoteStorage::new(stream, Arc::clone(&self.size), far.persistent).and_then(
            |mut far| {
                if let Some(windows) = &self.far.windows
                    && !self.no_windows.load(Ordering::Relaxed)
                {
                    let library = Path::new(OsStr::from_bytes(&windows.library.0));
                    // Without one, all goes by the stream.
                    let used = far.by_window(library, &windows.provider)?;
                    self.no_windows.store(!used, Ordering::Relaxed);
                }
                Ok(far)
            },
        );
        made.map_err(refused("use the stream to", &self.path))
    }
}

/// A stream that its node has given over to it.
fn stream(
    within: &InSpace<'_>,
    options: OpenOptions,
) -> Result<(Wire, RemotePartition), RequestError> {
    let path = within.file();
    let opened = within.tarnd()?.open_partition(
        within.node,
        within.space,
        path.as_bytes(),
        options.writable,
    );
    let (stream, far) = opened?;
    let far = far.ok_or_else(|| {
        let text = "tarnd gave a file of this node for a partition of another one";
        RequestError::new(Code::Internal, text)
    })?;
    let stream = TcpStream::from(stream);
    let usable = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(Some(TIMEOUT)))
        .and_then(|()| stream.set_write_timeout(Some(TIMEOUT)))
        .and_then(|()| Wire::new(stream, far.seal.as_ref()));
    let wire = usable.map_err(refused("use the stream to", Path::new(&path)))?;
    Ok((wire, far))
}
