//! Reads and writes of files that are complete, however the kernel divides them.

use rustix::fd::AsFd;
use rustix::io::{Errno, pread, pwrite};

/// Reads until the buffer is full or the file ends.
pub(crate) fn read_full(fd: impl AsFd, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut got = 0;
    while got < buffer.len() {
        match pread(&fd, &mut buffer[got..], offset + got as u64) {
            Ok(0) => break,
            Ok(n) => got += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(got)
}

/// Writes all bytes.
pub(crate) fn write_full(fd: impl AsFd, bytes: &[u8], offset: u64) -> Result<(), Errno> {
    let mut put = 0;
    while put < bytes.len() {
        match pwrite(&fd, &bytes[put..], offset + put as u64) {
            Ok(0) => return Err(Errno::NOSPC),
            Ok(n) => put += n,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
