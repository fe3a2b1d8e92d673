//! The caller's error for an error of the system.

use crate::{Code, RequestError};
use rustix::io::Errno;
use std::path::Path;

/// Turns an error of the system into the caller's.
pub(crate) fn refused<'p, E: Into<std::io::Error>>(
    doing: &'static str,
    path: &'p Path,
) -> impl Fn(E) -> RequestError + 'p {
    move |e| {
        let e = e.into();
        let text = format!("cannot {doing} {}: {e}", path.display());
        RequestError::new(code(&e), text)
    }
}

/// The code of an error of the system.
pub(crate) fn code(e: &std::io::Error) -> Code {
    match e.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT | Errno::NOTDIR) => Code::NotFound,
        Some(Errno::ACCESS | Errno::PERM | Errno::ROFS | Errno::LOOP) => Code::Denied,
        Some(Errno::NOSPC | Errno::NOMEM) => Code::NoSpace,
        Some(Errno::DQUOT) => Code::Quota,
        Some(Errno::FBIG) => Code::Invalid,
        Some(Errno::EXIST) => Code::Exists,
        Some(Errno::BUSY) => Code::Busy,
        Some(Errno::OPNOTSUPP) => Code::Unsupported,
        None if e.kind() == std::io::ErrorKind::OutOfMemory => Code::NoSpace,
        _ => Code::Io,
    }
}
