//! The node's object store: the classes below `python/tarn/objects.py`, which users use. Their memory is mapped for as long as a
//! view of it lives.

use crate::{Buffer, error};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3::{Borrowed, ffi};
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use tarn_checkpoint::{CheckpointError, CheckpointErrorCode};
use tarn_objects::ObjectInfo;

/// Of a version: key, number, bytes, its text, and whether it is damaged.
type StoredVersionTuple = (String, u64, u64, String, bool);

fn found(all: Vec<ObjectInfo>) -> Vec<StoredVersionTuple> {
    let one = |i: ObjectInfo| (i.key.into(), i.number, i.bytes, i.about.into(), i.damaged);
    all.into_iter().map(one).collect()
}

/// Fills a view of memory, which stays as long as its owner does.
///
/// # Safety
/// `view` is one that is to be filled, and the memory stays where it is for as long as `owner` lives.
pub(crate) unsafe fn fill(
    owner: &Bound<'_, PyAny>,
    view: *mut ffi::Py_buffer,
    (start, size): (usize, usize),
    readonly: bool,
    flags: c_int,
) -> PyResult<()> {
    let (start, size) = (start as *mut _, size.cast_signed());
    // SAFETY: as the caller says; the view has a reference to the owner.
    let filled = unsafe {
        ffi::PyBuffer_FillInfo(view, owner.as_ptr(), start, size, readonly.into(), flags)
    };
    match filled {
        0 => Ok(()),
        _ => Err(PyErr::fetch(owner.py())),
    }
}

#[pyclass(name = "Store", frozen)]
pub(crate) struct PyObjectStore(tarn_objects::NodeObjectStore);

#[pymethods]
impl PyObjectStore {
    #[new]
    fn open(py: Python<'_>, folder: Option<PathBuf>, encrypt: Option<bool>) -> PyResult<Self> {
        let store = tarn_objects::NodeObjectStore::open(folder.as_deref());
        let store = store.map_err(|f| error(py, f))?;
        Ok(Self(match encrypt {
            Some(encrypt) => store.encrypting(encrypt),
            None => store,
        }))
    }

    fn put(
        &self,
        py: Python<'_>,
        key: &str,
        data: &Bound<'_, PyAny>,
        about: &str,
    ) -> PyResult<u64> {
        let buffer = Buffer::get(data)?;
        if let Some(wrong) = buffer.unreadable() {
            let text = format!("the memory for object {key:?} {wrong}");
            return Err(error(
                py,
                CheckpointError::new(CheckpointErrorCode::Invalid, text),
            ));
        }
        // SAFETY: held by its buffer; the documentation asks that nobody writes to it in a call.
        let bytes = unsafe { buffer.bytes() };
        self.with(py, |store| store.put(key, bytes, about).map(|i| i.number))
    }

    fn create(&self, py: Python<'_>, key: &str, bytes: u64) -> PyResult<PyObjectWriter> {
        let mut draft = self.with(py, |store| store.create(key, bytes))?;
        let memory = draft.bytes();
        Ok(PyObjectWriter {
            memory: (memory.as_mut_ptr() as usize, memory.len()),
            draft: Mutex::new(draft),
        })
    }

    fn map(
        &self,
        py: Python<'_>,
        key: &str,
        number: Option<u64>,
        verify: bool,
    ) -> PyResult<PyStoredObject> {
        let mapped = self.with(py, |store| {
            let object = store.map(key, number)?;
            if verify {
                object.verify()?;
            }
            Ok(object)
        });
        mapped.map(PyStoredObject)
    }

    fn get<'py>(
        &self,
        py: Python<'py>,
        key: &str,
        number: Option<u64>,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let object = self.with(py, |store| store.map(key, number))?;
        PyBytes::new_with(py, object.bytes().len(), |into| {
            py.detach(|| object.copy_to(into)).map_err(|f| error(py, f))
        })
    }

    fn list(&self, py: Python<'_>) -> PyResult<Vec<StoredVersionTuple>> {
        self.with(py, tarn_objects::NodeObjectStore::list)
            .map(found)
    }

    fn versions(&self, py: Python<'_>, key: &str) -> PyResult<Vec<StoredVersionTuple>> {
        self.with(py, |store| store.versions(key)).map(found)
    }

    fn delete(&self, py: Python<'_>, key: &str, number: Option<u64>) -> PyResult<()> {
        self.with(py, |store| store.delete(key, number))
    }

    fn fetch(&self, py: Python<'_>, key: &str, number: Option<u64>, node: &str) -> PyResult<u64> {
        self.with(py, |store| store.fetch(key, number, node).map(|i| i.number))
    }
}

impl PyObjectStore {
    /// Runs a call while other threads of Python continue.
    fn with<R: Send>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(&tarn_objects::NodeObjectStore) -> Result<R, CheckpointError> + Send,
    ) -> PyResult<R> {
        py.detach(|| call(&self.0)).map_err(|f| error(py, f))
    }
}

/// A version that is mapped: bytes, to be read.
#[pyclass(name = "Object", frozen)]
pub(crate) struct PyStoredObject(tarn_objects::StoredObject);

#[pymethods]
impl PyStoredObject {
    #[getter]
    fn about(&self) -> String {
        self.0.info().about.into()
    }

    #[getter]
    fn number(&self) -> u64 {
        self.0.info().number
    }

    /// A view, which has this for as long as it lives.
    ///
    /// # Safety
    /// `view` is one that is to be filled, by the rules of the buffer protocol.
    unsafe fn __getbuffer__(
        slf: Borrowed<'_, '_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        let bytes = slf.get().0.bytes();
        let memory = (bytes.as_ptr() as usize, bytes.len());
        // SAFETY: as the caller says; it is mapped for as long as this lives.
        unsafe { fill(slf.as_any(), view, memory, true, flags) }
    }
}

/// An object to be: bytes, to be written.
#[pyclass(name = "Draft", frozen)]
pub(crate) struct PyObjectWriter {
    /// Its address and size: it does not move.
    memory: (usize, usize),
    draft: Mutex<tarn_objects::ObjectWriter>,
}

#[pymethods]
impl PyObjectWriter {
    fn publish(&self, py: Python<'_>, about: &str) -> PyResult<u64> {
        let published = py.detach(|| self.lock().publish(about));
        published.map(|i| i.number).map_err(|f| error(py, f))
    }

    fn abandon(&self, py: Python<'_>) {
        py.detach(|| self.lock().abandon());
    }

    /// A view, which has this for as long as it lives.
    ///
    /// # Safety
    /// `view` is one that is to be filled, by the rules of the buffer protocol.
    unsafe fn __getbuffer__(
        slf: Borrowed<'_, '_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: as the caller says; it is mapped for as long as this lives, also after the end of the object.
        unsafe { fill(slf.as_any(), view, slf.get().memory, false, flags) }
    }
}

impl PyObjectWriter {
    fn lock(&self) -> std::sync::MutexGuard<'_, tarn_objects::ObjectWriter> {
        self.draft.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
