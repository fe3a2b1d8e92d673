//! L4: checkpoints for Python: the module `tarn._native`; users use `python/tarn/checkpoint`, which is over it.
//!
//! No array outlives its memory: a [`PyRegion`] is unmapped when the last view of it is gone, also after the end of its object
//! and its session; and memory that a program registers is held, by its buffer, until its object is destroyed or the session has
//! ended.

#![allow(unsafe_code)]

mod objects;
mod readers;

use pyo3::prelude::*;
use pyo3::{Borrowed, ffi};
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tarn_checkpoint::{
    CheckpointError, CheckpointErrorCode, CheckpointSession, ObjectMemory, Options,
    PersistenceLevel, PowerFail, Precopy, Properties, Replicate, SessionSlot, Shape, StagingShare,
    VersionId,
};

/// Memory that was made for an object: bytes, to be written.
#[pyclass(name = "Region", frozen)]
struct PyRegion {
    memory: ObjectMemory,
}

#[pymethods]
impl PyRegion {
    /// A view, which has this for as long as it lives.
    ///
    /// # Safety
    /// `view` is one that is to be filled, by the rules of the buffer protocol.
    unsafe fn __getbuffer__(
        slf: Borrowed<'_, '_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let memory = &slf.get().memory;
        let (start, size) = (memory.start().as_ptr().cast(), memory.size().cast_signed());
        // SAFETY: the memory neither moves nor goes as long as this object lives, and the view has a reference to it.
        match unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, size, 0, flags) } {
            0 => Ok(()),
            _ => Err(PyErr::fetch(slf.py())),
        }
    }
}

/// A buffer of the program's: its owner keeps it where it is until it is released.
struct Buffer(Box<ffi::Py_buffer>);

// SAFETY: its content is used with the interpreter attached only, or not at all.
unsafe impl Send for Buffer {}

impl Buffer {
    fn get(of: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut view = Box::new(ffi::Py_buffer::new());
        // SAFETY: the view is one to be filled; it has a place of its own, as it may point to itself.
        match unsafe { ffi::PyObject_GetBuffer(of.as_ptr(), &raw mut *view, ffi::PyBUF_FULL_RO) } {
            0 => Ok(Self(view)),
            _ => Err(PyErr::fetch(of.py())),
        }
    }

    /// Why it cannot be an object of checkpoints.
    fn wrong(&self) -> Option<&'static str> {
        let fixed = "cannot be written: a restart could not fill it";
        (self.0.readonly != 0)
            .then_some(fixed)
            .or_else(|| self.unreadable())
    }

    /// Why it cannot be copied as bytes.
    fn unreadable(&self) -> Option<&'static str> {
        let view = &*self.0;
        // SAFETY: a view that was filled has a format that ends with NUL, or none, which is bytes.
        let format = (!view.format.is_null()).then(|| unsafe { CStr::from_ptr(view.format) });
        // SAFETY: a view that was filled.
        let contiguous = unsafe { ffi::PyBuffer_IsContiguous(&raw const *view, b'C' as c_char) };
        if contiguous == 0 {
            Some(
                "is not contiguous in C's order: register a separate array, such as numpy.ascontiguousarray gives",
            )
        } else if format.is_some_and(|f| has_objects(&f.to_string_lossy())) {
            Some("holds Python objects: give it a type of numbers")
        } else {
            None
        }
    }

    /// Its bytes.
    ///
    /// # Safety
    /// It is contiguous, and nobody writes to it meanwhile.
    unsafe fn bytes(&self) -> &[u8] {
        let start = NonNull::new(self.0.buf.cast()).unwrap_or(NonNull::dangling());
        // SAFETY: so many bytes, which stay where they are until the buffer is released.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), self.0.len.cast_unsigned()) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // An interpreter that has ended has no buffers.
        Python::try_attach(|_| {
            // SAFETY: it was filled, and is released once.
            unsafe { ffi::PyBuffer_Release(&raw mut *self.0) };
        });
    }
}

/// The owner that keeps an object's memory where it is; it is only dropped.
#[expect(dead_code, reason = "held, not read")]
enum MemoryOwner {
    Region(Py<PyRegion>),
    Buffer(Buffer),
}

/// The arguments of `Checkpoints`.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct SessionArguments {
    rank: u32,
    ranks: u32,
    replicas: Option<u32>,
    copies: usize,
    parity: usize,
    replicate_every: u64,
    run: Option<String>,
    tier: Option<PathBuf>,
    memory: Option<PathBuf>,
    meet: Option<String>,
    key: Option<PathBuf>,
    profile: Option<String>,
    staging: Option<u64>,
    same_node: bool,
    mprotect: bool,
    encrypt: bool,
    timeout: Option<f64>,
    helper: bool,
    processors: Vec<usize>,
    external: Option<PathBuf>,
    flush_every: Option<u64>,
    flush_rate: Option<u64>,
    transport: Option<String>,
}

/// The arguments of an object.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
struct ObjectArguments {
    transient: bool,
    precopy: Option<bool>,
    versions: usize,
    persistence: u8,
    replicas: Option<u32>,
    /// The kind of the shape (as in phx.h), dimensions, bytes of a row.
    shape: (u8, Vec<[u64; 4]>, u64),
}

/// A version that can be had: generation, number, bytes, ranks and level.
type VersionTuple = (u64, u64, u64, u32, u8);

/// A session, and the owners of its objects' memory.
#[pyclass(frozen, name = "Session")]
struct PySession {
    slot: ManuallyDrop<SessionSlot>,
    held: Mutex<BTreeMap<String, MemoryOwner>>,
}

#[pymethods]
impl PySession {
    #[new]
    fn begin(py: Python<'_>, given: SessionArguments) -> PyResult<Self> {
        let session = py.detach(|| CheckpointSession::begin(given.options()?));
        Ok(Self {
            slot: ManuallyDrop::new(SessionSlot::new(Some(session.map_err(|f| error(py, f))?))),
            held: Mutex::default(),
        })
    }

    fn create(
        &self,
        py: Python<'_>,
        key: String,
        size: usize,
        unit: usize,
        arguments: ObjectArguments,
    ) -> PyResult<Py<PyRegion>> {
        let memory = ObjectMemory::new(size).map_err(|f| error(py, f))?;
        let start = memory.start();
        let region = Py::new(py, PyRegion { memory })?;
        let held = MemoryOwner::Region(region.clone_ref(py));
        self.add(py, key, (start, size), unit, arguments, held)?;
        Ok(region)
    }

    fn register(
        &self,
        py: Python<'_>,
        key: String,
        of: &Bound<'_, PyAny>,
        arguments: ObjectArguments,
    ) -> PyResult<()> {
        let buffer = Buffer::get(of)?;
        if let Some(wrong) = buffer.wrong() {
            let text = format!("the memory for object {key:?} {wrong}");
            return Err(error(
                py,
                CheckpointError::new(CheckpointErrorCode::Invalid, text),
            ));
        }
        let view = &buffer.0;
        let start = NonNull::new(view.buf.cast()).unwrap_or(NonNull::dangling());
        let (size, unit) = (view.len.cast_unsigned(), view.itemsize.cast_unsigned());
        self.add(
            py,
            key,
            (start, size),
            unit,
            arguments,
            MemoryOwner::Buffer(buffer),
        )
    }

    fn destroy(&self, py: Python<'_>, key: String) -> PyResult<()> {
        // In the call, so that no other thread has made another object of that key.
        let gone = self.with(py, |session| {
            session.destroy(key.as_bytes())?;
            Ok(self.held().remove(&key))
        })?;
        drop(gone);
        Ok(())
    }

    fn commit(&self, py: Python<'_>) -> PyResult<(u64, u64, Option<String>)> {
        let committed = self.with(py, CheckpointSession::commit)?;
        let id = committed.id;
        Ok((id.generation, id.number, committed.degraded))
    }

    fn restart(&self, py: Python<'_>, which: Option<(u64, u64)>) -> PyResult<Option<(u64, u64)>> {
        let restored = self.with(py, |session| session.restart(which.map(version)))?;
        Ok(restored.map(|id| (id.generation, id.number)))
    }

    fn versions(&self, py: Python<'_>) -> PyResult<Vec<VersionTuple>> {
        let all = self.with(py, |session| Ok(session.versions()))?;
        let all = all.iter();
        let all = all.map(|v| {
            (
                v.id.generation,
                v.id.number,
                v.bytes,
                v.ranks,
                v.level as u8,
            )
        });
        Ok(all.collect())
    }

    fn due(&self, py: Python<'_>, interval: f64) -> PyResult<bool> {
        self.with(py, |session| session.due(seconds(interval)?))
    }

    fn wait(
        &self,
        py: Python<'_>,
        which: (u64, u64),
        reached: u8,
        timeout: Option<f64>,
    ) -> PyResult<()> {
        self.with(py, |session| {
            let within = timeout.map(seconds).transpose()?;
            session.wait(version(which), level(reached)?, within)
        })
    }

    /// Values of `Stats`, by name.
    fn stats(&self, py: Python<'_>) -> PyResult<BTreeMap<&'static str, u64>> {
        let (stats, power_fail) =
            self.with(py, |session| Ok((session.stats(), session.power_fail())))?;
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        Ok(BTreeMap::from([
            (
                "power_fail",
                match power_fail {
                    None | Some(PowerFail::Lost) => 0,
                    Some(PowerFail::Synced) => 1,
                    Some(PowerFail::Flushed) => 2,
                    Some(PowerFail::Fenced) => 3,
                },
            ),
            ("commits", stats.commits),
            ("commit_ns", nanos(stats.commit)),
            ("waited_ns", nanos(stats.waited)),
            ("bytes", stats.bytes),
            ("staged_bytes", stats.staged),
            ("ahead_bytes", stats.ahead),
            ("copied_twice_bytes", stats.twice),
            ("destage_ns", nanos(stats.destage)),
            ("last_commit_ns", nanos(stats.last_commit)),
            ("last_staged_bytes", stats.last_staged),
            ("last_destage_ns", nanos(stats.last_destage)),
            ("persistent_rate", stats.persistent_rate),
            ("memory_rate", stats.memory_rate),
            ("degraded", stats.degraded),
            ("damaged_chunks", stats.damaged),
            ("replicated", stats.replicated),
            ("bare", stats.bare),
            ("restored_bytes", stats.restored),
            ("restore_ns", nanos(stats.restore)),
            ("flushed", stats.flushed),
            ("flushes_skipped", stats.flushes_skipped),
            ("flush_failed", stats.flush_failed),
            ("last_flush_ns", nanos(stats.last_flush)),
            ("pinned", stats.pinned),
            ("rma_put_bytes", stats.carried.put),
            ("tcp_put_bytes", stats.carried.put_by_stream),
            ("rma_fetched_bytes", stats.carried.fetched),
            ("tcp_fetched_bytes", stats.carried.fetched_by_stream),
        ]))
    }

    /// Ends; not `whole`: as if the program was killed. Done before, it does nothing.
    fn close(&self, py: Python<'_>, whole: bool) -> PyResult<()> {
        let session = self.slot.take().map_err(|f| error(py, f))?.take();
        let ended = py.detach(|| match session {
            Some(session) if whole => session.end(),
            _ => Ok(()),
        });
        let gone = std::mem::take(&mut *self.held());
        drop(gone);
        ended.map_err(|f| error(py, f))
    }
}

impl PySession {
    /// Runs a call while other threads of Python continue.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&mut CheckpointSession) -> Result<R, CheckpointError> + Send,
    ) -> PyResult<R> {
        let done = py.detach(|| match &mut *self.slot.take()? {
            Some(session) => call(session),
            None => Err(CheckpointError::new(
                CheckpointErrorCode::Init,
                "these checkpoints are closed: make new ones with Checkpoints",
            )),
        });
        done.map_err(|f| error(py, f))
    }

    fn add(
        &self,
        py: Python<'_>,
        key: String,
        (start, size): (NonNull<u8>, usize),
        unit: usize,
        arguments: ObjectArguments,
        held: MemoryOwner,
    ) -> PyResult<()> {
        let properties = Properties {
            transient: arguments.transient,
            precopy: match arguments.precopy {
                None => Precopy::WherePays,
                Some(true) => Precopy::Always,
                Some(false) => Precopy::Never,
            },
            versions: arguments.versions,
            persistence: level(arguments.persistence).map_err(|f| error(py, f))?,
            replicas: arguments.replicas,
            shape: match arguments.shape {
                (0, ..) => Shape::Own,
                (1, ..) => Shape::Replicated,
                (2, dimensions, _) => Shape::Block(dimensions),
                (_, _, row) => Shape::Irregular(row),
            },
        };
        // SAFETY: it can be written and stays: it is held until the session has forgotten it. The documentation asks that the
        // program does not write to it in a call.
        let memory = unsafe { ObjectMemory::of(start, size) };
        let before = self.with(py, |session| {
            session.add(key.as_bytes(), memory, unit, properties)?;
            Ok(self.held().insert(key, held))
        })?;
        drop(before);
        Ok(())
    }

    /// Locked for as long as nothing of Python runs: removed owners are dropped afterwards.
    fn held(&self) -> MutexGuard<'_, BTreeMap<String, MemoryOwner>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PySession {
    /// Before what its objects need; in a forked child never, as its thread is not there.
    fn drop(&mut self) {
        if self.slot.take().is_ok() {
            // SAFETY: nothing else drops it, and nothing uses it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.slot) };
        }
    }
}

impl SessionArguments {
    fn options(self) -> Result<Options, CheckpointError> {
        let default = Options::default();
        Ok(Options {
            rank: self.rank,
            ranks: self.ranks,
            replicas: self.replicas,
            replicate: match (self.copies, self.parity) {
                (0, 0) => Replicate::None,
                (copies, 0) => Replicate::Copies(copies),
                (0, parity) => Replicate::Parity(parity),
                _ => {
                    let text = "copies or parity: one of the two";
                    return Err(CheckpointError::new(CheckpointErrorCode::Invalid, text));
                }
            },
            replicate_every: self.replicate_every.max(1),
            run: self.run,
            tier: self.tier,
            memory: self.memory,
            meet: self.meet,
            key: self.key,
            profile: self.profile,
            staging: self.staging.map(|bytes| match bytes {
                0 => StagingShare::None,
                u64::MAX => StagingShare::All,
                bytes => StagingShare::Bytes(bytes),
            }),
            same_node: self.same_node,
            mprotect: self.mprotect,
            encrypt: self.encrypt,
            timeout: self.timeout.map_or(Ok(default.timeout), seconds)?,
            helper: self.helper,
            processors: self.processors,
            external: self.external,
            flush_every: self.flush_every,
            flush_rate: self.flush_rate,
            transport: self.transport,
            ..default
        })
    }
}

/// Whether elements of this format (PEP 3118) have references to Python objects; names of fields stand between colons.
fn has_objects(format: &str) -> bool {
    format
        .split(':')
        .step_by(2)
        .any(|codes| codes.contains('O'))
}

fn seconds(time: f64) -> Result<Duration, CheckpointError> {
    Duration::try_from_secs_f64(time).map_err(|e| {
        CheckpointError::new(
            CheckpointErrorCode::Invalid,
            format!("a timeout of {time} s: {e}"),
        )
    })
}

fn level(number: u8) -> Result<PersistenceLevel, CheckpointError> {
    Ok(match number {
        0 => PersistenceLevel::Committed,
        1 => PersistenceLevel::Durable,
        2 => PersistenceLevel::Replicated,
        3 => PersistenceLevel::Flushed,
        other => {
            return Err(CheckpointError::new(
                CheckpointErrorCode::Invalid,
                format!("{other} is no level"),
            ));
        }
    })
}

fn version((generation, number): (u64, u64)) -> VersionId {
    VersionId { generation, number }
}

/// The exception for it, which the package has.
fn error(py: Python<'_>, fault: CheckpointError) -> PyErr {
    let make = || {
        py.import("tarn.checkpoint._codes")?
            .getattr("make_error")?
            .call1((fault.code as u8, fault.text))
    };
    make().map_or_else(|e| e, PyErr::from_value)
}

#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<PySession>()?;
    module.add_class::<PyRegion>()?;
    module.add_class::<objects::PyObjectStore>()?;
    module.add_class::<objects::PyStoredObject>()?;
    module.add_class::<objects::PyObjectWriter>()?;
    module.add_class::<readers::PyVersionReader>()?;
    module.add_class::<readers::PyMappedObject>()
}
