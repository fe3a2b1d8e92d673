//! Versions of another program: the class below `tarn.checkpoint.open_version`, which users use. Mapped memory stays, and the
//! version with it, for as long as a view of it lives.

use crate::error;
use crate::objects::fill;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use pyo3::{Borrowed, ffi};
use std::ffi::c_int;
use std::path::PathBuf;
use std::sync::Arc;
use tarn_checkpoint::{CheckpointError, Shape, VersionId, VersionSelector};

/// Of an object: key, bytes, bytes of an element, and the shape of a block, if it is one.
type ObjectTuple<'py> = (Bound<'py, PyBytes>, u64, u32, Option<Vec<u64>>);

#[pyclass(name = "Reader", frozen)]
pub(crate) struct PyVersionReader(Arc<tarn_checkpoint::VersionReader>);

#[pymethods]
impl PyVersionReader {
    #[new]
    fn open(
        py: Python<'_>,
        run: Option<String>,
        tier: Option<PathBuf>,
        version: Option<(u64, u64)>,
        verify: bool,
    ) -> PyResult<Self> {
        let version = version.map(|(generation, number)| VersionId { generation, number });
        let which = VersionSelector {
            run,
            tier,
            version,
            verify,
        };
        let opened = py.detach(|| tarn_checkpoint::VersionReader::open(which));
        opened.map(|r| Self(Arc::new(r))).map_err(|f| error(py, f))
    }

    /// Which it is: generation and number, the ranks that wrote it, the least level, and the ranks that are here.
    fn version(&self) -> (u64, u64, u32, u8, Vec<u32>) {
        let (reader, id) = (&self.0, self.0.version());
        let here = reader.ranks().collect();
        (
            id.generation,
            id.number,
            reader.of(),
            reader.level() as u8,
            here,
        )
    }

    fn objects<'py>(&self, py: Python<'py>, rank: u32) -> PyResult<Vec<ObjectTuple<'py>>> {
        let objects = self.0.objects(rank).map_err(|f| error(py, f))?;
        let one = |o: tarn_checkpoint::RankObject<'_>| {
            let count = match o.shape {
                Shape::Block(dimensions) => Some(dimensions.iter().map(|d| d[2]).collect()),
                _ => None,
            };
            (PyBytes::new(py, o.key), o.bytes, o.unit, count)
        };
        Ok(objects.map(one).collect())
    }

    fn map(&self, py: Python<'_>, rank: u32, key: &str) -> PyResult<PyMappedObject> {
        let of = Arc::clone(&self.0);
        let memory = py.detach(|| -> Result<(usize, usize), CheckpointError> {
            let bytes = of.map(rank, key.as_bytes())?;
            Ok((bytes.as_ptr() as usize, bytes.len()))
        });
        let memory = memory.map_err(|f| error(py, f))?;
        Ok(PyMappedObject { memory, _of: of })
    }
}

/// An object that is mapped: bytes, to be read.
#[pyclass(name = "Mapped", frozen)]
pub(crate) struct PyMappedObject {
    memory: (usize, usize),
    /// It is pinned as long as this lives.
    _of: Arc<tarn_checkpoint::VersionReader>,
}

#[pymethods]
impl PyMappedObject {
    /// A view, which has this for as long as it lives.
    ///
    /// # Safety
    /// `view` is one that is to be filled, by the rules of the buffer protocol.
    unsafe fn __getbuffer__(
        slf: Borrowed<'_, '_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        // SAFETY: as the caller says; it is mapped for as long as this lives.
        unsafe { fill(slf.as_any(), view, slf.get().memory, true, flags) }
    }
}
