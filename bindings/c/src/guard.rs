//! Errors and panics at the border.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};
use tarn_proto::local::{Code, RequestError};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Keeps a text for [`tarn_last_error`].
pub(crate) fn set_last_error(text: &str) {
    let clean: Vec<u8> = text.bytes().filter(|b| *b != 0).collect();
    let text = CString::new(clean).unwrap_or_default();
    // A thread that is ending has nobody who would ask.
    let _ = LAST.try_with(|last| last.replace(text));
}

/// Runs a call; its error, or that it panicked, becomes a code and a text.
pub(crate) fn guard(call: impl FnOnce() -> Result<(), RequestError>) -> c_int {
    let outcome = catch_unwind(AssertUnwindSafe(call));
    let outcome = outcome.unwrap_or_else(|_| {
        let text = "an error inside libtarn; the connection should be closed";
        Err(RequestError::new(Code::Internal, text))
    });
    match outcome {
        Ok(()) => 0,
        Err(why) => {
            set_last_error(&why.text);
            why.code.number()
        }
    }
}

pub(crate) fn invalid(text: impl Into<String>) -> RequestError {
    RequestError::new(Code::Invalid, text)
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub extern "C" fn tarn_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

/// The mark that a reader of the library's file finds, without loading it.
#[used]
static MARK: &str = concat!("tarn-libtarn-version=", env!("CARGO_PKG_VERSION"), "\0");

// SAFETY: as above.
#[unsafe(no_mangle)]
pub extern "C" fn tarn_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

// SAFETY: the name is this library's own; the header says what callers promise.
#[unsafe(no_mangle)]
pub extern "C" fn tarn_code_text(code: c_int) -> *const c_char {
    let text: &'static CStr = match code {
        0 => c"no error",
        1 => c"the request is not valid",
        2 => c"a queue is full: try again later",
        3 => c"what was named does not exist",
        4 => c"not allowed for this user",
        5 => c"no space at the destination",
        6 => c"the quota is used up",
        7 => c"the destination exists already",
        8 => c"the source changed while it was read",
        9 => c"the content does not match its checksum",
        10 => c"an input or output error",
        11 => c"the task was cancelled",
        12 => c"a task that this one follows has failed",
        13 => c"this is not supported",
        14 => c"the connection to tarnd, or to another node, is lost",
        15 => c"the time is over",
        16 => c"tarnd and this program speak different versions",
        17 => c"an error inside tarn",
        18 => c"the medium is memory, which does not outlive a loss of power",
        _ => c"no code of tarn",
    };
    text.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(pointer: *const c_char) -> String {
        // SAFETY: both functions return pointers to texts that end with NUL and live long enough.
        unsafe { CStr::from_ptr(pointer) }
            .to_str()
            .unwrap()
            .to_owned()
    }

    #[test]
    fn codes_have_the_texts_of_the_messages() {
        for code in Code::ALL {
            assert_eq!(text(tarn_code_text(code.number())), code.text());
        }
        assert_eq!(text(tarn_code_text(99)), "no code of tarn");
    }

    #[test]
    fn a_panic_becomes_a_code() {
        assert_eq!(guard(|| panic!("on purpose")), Code::Internal.number());
        assert!(text(tarn_last_error()).contains("inside libtarn"));
        assert_eq!(guard(|| Err(invalid("a\0b"))), 1);
        assert_eq!(text(tarn_last_error()), "ab");
    }

    #[test]
    fn the_library_says_its_version() {
        assert_eq!(text(tarn_version()), env!("CARGO_PKG_VERSION"));
    }

    /// The header has the same numbers.
    #[test]
    fn the_header_says_the_same() {
        let header = include_str!("../include/tarn.h");
        let number = |line: &str| {
            let (name, rest) = line.trim().strip_prefix("TARN_")?.split_once(" = ")?;
            let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
            Some((name.to_lowercase(), digits.parse::<i32>().ok()?))
        };
        let begin = header.find("enum tarn_code").unwrap();
        let end = begin + header[begin..].find('}').unwrap();
        let found: Vec<_> = header[begin..end].lines().filter_map(number).collect();
        assert_eq!(found.len(), Code::ALL.len() + 1);
        for ((name, number), code) in found[1..].iter().zip(Code::ALL) {
            let expected = format!("e{code:?}").to_lowercase();
            assert_eq!((name, *number), (&expected, code.number()));
        }
    }
}
