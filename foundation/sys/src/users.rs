//! Users and groups by their names, as the system's services know them.

use std::ffi::{CStr, CString, OsStr};
use std::io;
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;

/// Bytes of an entry: a group may have very many members.
const MOST: usize = 1 << 20;
/// Groups of a user: the kernel's limit (`NGROUPS_MAX`).
const MAX_GROUPS: usize = 65_536;

/// The number of a user; none where there is no such user.
///
/// # Errors
/// When the service that knows cannot be reached, or the name has a zero.
pub fn user(name: &str) -> io::Result<Option<u32>> {
    let name = CString::new(name)?;
    look(|buffer| {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: a name that ends with zero, and a buffer of the given length.
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

/// The name of a user; none of a number that has none.
///
/// # Errors
/// When the service that knows cannot be reached.
pub fn user_name(user: u32) -> io::Result<Option<String>> {
    entry_of(user, |found| {
        // SAFETY: the name is in the buffer, which is still there, and ends with zero.
        unsafe { CStr::from_ptr(found.pw_name) }
            .to_string_lossy()
            .into_owned()
    })
}

/// The group that a user's files get; none of a user that nobody knows.
///
/// # Errors
/// As [`user_name`].
pub fn primary_group(user: u32) -> io::Result<Option<u32>> {
    entry_of(user, |found| found.pw_gid)
}

/// The home folder of a user; none of a user that nobody knows.
///
/// # Errors
/// As [`user_name`].
pub fn home(user: u32) -> io::Result<Option<PathBuf>> {
    entry_of(user, |found| {
        // SAFETY: as above.
        let home = unsafe { CStr::from_ptr(found.pw_dir) };
        PathBuf::from(OsStr::from_bytes(home.to_bytes()))
    })
}

fn entry_of<T>(user: u32, what: impl Fn(&libc::passwd) -> T) -> io::Result<Option<T>> {
    look(|buffer| {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: a buffer of the given length.
        let code = unsafe {
            libc::getpwuid_r(
                user,
                entry.as_mut_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &raw mut found,
            )
        };
        // SAFETY: it points to the entry, which was filled.
        (code, unsafe { found.as_ref() }.map(&what))
    })
}

/// The name of a group; none of a number that has none.
///
/// # Errors
/// As [`user_name`].
pub fn group_name(group: u32) -> io::Result<Option<String>> {
    look(|buffer| {
        let mut entry = MaybeUninit::<libc::group>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: a buffer of the given length.
        let code = unsafe {
            libc::getgrgid_r(
                group,
                entry.as_mut_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &raw mut found,
            )
        };
        // SAFETY: it points to the entry, which was filled; its name is in the buffer and ends with zero.
        let name = unsafe { found.as_ref() }.map(|found| {
            unsafe { CStr::from_ptr(found.gr_name) }
                .to_string_lossy()
                .into_owned()
        });
        (code, name)
    })
}

/// The groups that a user is in, `group` among them; only that one of a user without a name.
///
/// # Errors
/// When the service that knows cannot be reached.
pub fn groups_of(user: u32, group: u32) -> io::Result<Vec<u32>> {
    let mut groups = vec![group];
    look(|buffer| {
        let mut entry = MaybeUninit::<libc::passwd>::uninit();
        let mut found = ptr::null_mut();
        // SAFETY: a buffer of the given length.
        let code = unsafe {
            libc::getpwuid_r(
                user,
                entry.as_mut_ptr(),
                buffer.as_mut_ptr().cast(),
                buffer.len(),
                &raw mut found,
            )
        };
        // SAFETY: it points to the entry, which was filled; its name is in the buffer.
        let name = unsafe { found.as_ref() }.map(|found| found.pw_name);
        if let Some(name) = name {
            let mut count = MAX_GROUPS as libc::c_int;
            let mut all = vec![0; MAX_GROUPS];
            // SAFETY: a name that ends with zero, and space for `count` groups; the call returns in it how many there are.
            let all_there =
                unsafe { libc::getgrouplist(name, group, all.as_mut_ptr(), &raw mut count) };
            if all_there >= 0 {
                all.truncate(usize::try_from(count).unwrap_or(0));
                groups = all;
            }
        }
        (code, None::<()>)
    })?;
    Ok(groups)
}

/// Asks with buffers that become larger until one suffices.
fn look<T>(mut ask: impl FnMut(&mut [u8]) -> (i32, Option<T>)) -> io::Result<Option<T>> {
    let mut buffer = vec![0; 4096];
    loop {
        match ask(&mut buffer) {
            (0, found) => return Ok(found),
            // The answers of services where there is none (getpwnam(3)).
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
        assert_eq!(user_name(0).unwrap().as_deref(), Some("root"));
        assert_eq!(group_name(0).unwrap().as_deref(), Some("root"));
        assert_eq!(primary_group(0).unwrap(), Some(0));
        assert_eq!(user_name(4_000_000_123).unwrap(), None);
        assert_eq!(user("no such user here").unwrap(), None);
        assert_eq!(group("").unwrap(), None);
        assert!(user("a\0b").is_err());
    }
}
