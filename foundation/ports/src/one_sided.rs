//! Bytes that go between the memories of two nodes while only one end does something (RMA).

use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::BorrowedFd;

/// Something that is so until it is dropped.
pub type KeepAliveGuard = Box<dyn Send + Sync>;

/// A stretch of a file that other processes reach, and the opaque words that they need for it.
pub type ExposedExtent = (KeepAliveGuard, Box<[u8]>);

/// A transport that moves bytes so. `here` is the address of this host by which both ends reach each other.
pub trait OneSided: Send + Sync {
    /// Its name, for people: the same at both ends.
    fn name(&self) -> &str;

    /// Lets every process that has the words read a stretch of a file, or write to it, until it is dropped: after that nothing
    /// lands there any more. Access by others may need [`OneSided::attend`].
    ///
    /// # Errors
    /// When it cannot be opened.
    fn open(
        &self,
        here: IpAddr,
        file: BorrowedFd<'_>,
        stretch: Range<u64>,
        writable: bool,
    ) -> io::Result<ExposedExtent>;

    /// While this is held, access by others to the files that are open here proceeds.
    ///
    /// # Errors
    /// When no thread can be had for that.
    fn attend(&self, here: IpAddr) -> io::Result<KeepAliveGuard>;

    /// Writes bytes to a file that another process has opened, from `at` on: in the end they can be seen there. `waits` is called
    /// time and again while nothing happens. After an error some may land there at any time, until the other end has closed it.
    ///
    /// # Errors
    /// When it cannot be written, or the error of `waits`.
    fn write(
        &self,
        here: IpAddr,
        words: &[u8],
        at: u64,
        bytes: &[u8],
        waits: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<()>;

    /// Fills `into` from the first bytes that another process has opened; each time, `arrived` gets all bytes that are there.
    /// After an error nothing writes to `into` any more.
    ///
    /// # Errors
    /// As [`OneSided::write`].
    fn read(
        &self,
        here: IpAddr,
        words: &[u8],
        into: &mut [u8],
        waits: &mut dyn FnMut() -> io::Result<()>,
        arrived: &mut dyn FnMut(&[u8]),
    ) -> io::Result<()>;

    /// Ends it: nothing is moved any more, and it has no threads.
    fn close(&self);
}
