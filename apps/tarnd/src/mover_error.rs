//! A mover's error as programs and other nodes get it.

use tarn_ports::{MoverError, ObjectStoreError};
use tarn_proto::local::{Code, RequestError};
use tarn_types::event::RunErrorKind;

/// The error, with paths as the mover knows them.
pub(crate) fn request_error_of(error: &MoverError) -> RequestError {
    RequestError::new(code_of(error), error.failure.message.clone())
}

/// Its kind.
pub(crate) fn code_of(error: &MoverError) -> Code {
    match error.failure.kind {
        _ if error.refused == Some(ObjectStoreError::Missing) => Code::NotFound,
        _ if error.refused == Some(ObjectStoreError::Denied) => Code::Denied,
        RunErrorKind::NoSpace => Code::NoSpace,
        RunErrorKind::SourceChanged => Code::Changed,
        RunErrorKind::Corrupt => Code::Corrupt,
        RunErrorKind::Cancelled => Code::Cancelled,
        RunErrorKind::Escape => Code::Denied,
        RunErrorKind::Conflict => Code::Exists,
        _ => Code::Io,
    }
}
