//! Users and groups by their names, as the system's services know them.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;
use std::ptr;

/// Bytes of an entry: a group may have very many members.
const MOST: usize = 1 << 20;

/// The number of a user; none where there is no such user.
///
/// # Errors
/// When the service that knows cannot be asked, or the name has a zero.
pub fn user(name: &str) -> io::Result<Option<u32>> {
    let name = CString::new(name)?;
    look(|buffer| {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: a name that ends with zero, and a buffer of the length that is said.
        let code = unsafe {
            libc::getpwnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &raw mut found,
            )
        };
        // SAFETY: it points to the entry, which was filled.
        (code, unsafe { found.as_ref() }.map(|found| found.pw_uid))
    })
}

/// The number of a group; none where there is no such group.
///
/// # Errors
/// As [`user`].
pub fn group(name: &str) -> io::Result<Option<u32>> {
    let name = CString::new(name)?;
    look(|buffer| {
        let mut entry = MaybeUninit::<libc::group>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: as above.
        let code = unsafe {
            libc::getgrnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &raw mut found,
            )
        };
        // SAFETY: as above.
        (code, unsafe { found.as_ref() }.map(|found| found.gr_gid))
    })
}

/// Asks with buffers that become larger until one suffices.
fn look(ask: impl Fn(&mut [u8]) -> (i32, Option<u32>)) -> io::Result<Option<u32>> {
    let mut buffer = vec![0; 4096];
    loop {
        match ask(&mut buffer) {
            (0, found) => return Ok(found),
            // What services say where there is none (getpwnam(3)).
            (libc::ENOENT | libc::ESRCH | libc::EBADF | libc::EPERM, _) => return Ok(None),
            (libc::ERANGE, _) if buffer.len() < MOST => buffer.resize(2 * buffer.len(), 0),
            (libc::EINTR, _) => {}
            (e, _) => return Err(io::Error::from_raw_os_error(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roots_numbers_are_known_and_nobody_elses_of_that_name() {
        assert_eq!(user("root").unwrap(), Some(0));
        assert_eq!(group("root").unwrap(), Some(0));
        assert_eq!(user("no such user here").unwrap(), None);
        assert_eq!(group("").unwrap(), None);
        assert!(user("a\0b").is_err());
    }
}
