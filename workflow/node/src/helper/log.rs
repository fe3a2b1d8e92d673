//! The output of a step goes into its log through a pipe, so that the log has a bound.

use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use tarn_types::bounds::{LOG_TAIL_BYTES, MAX_STEP_LOG_BYTES};

/// Bytes read at once: the capacity of a pipe.
const CHUNK: usize = 64 << 10;
/// Reads at the end: a pipe holds at most 1 MiB (pipe(7)), and on another node somebody may print on.
const LAST_READS: usize = 16;

/// The reading end of a step's standard output and error, and the log behind it. Output after the first [`MAX_STEP_LOG_BYTES`] is
/// counted, and its last bytes are kept for the end of the log: they show why a step failed.
pub(crate) struct StepLog {
    /// `None` once every writer has gone.
    pipe: Option<File>,
    log: File,
    left: u64,
    dropped: u64,
    tail: VecDeque<u8>,
    /// Bytes that were read from the pipe, and written to the log.
    passed: (u64, u64),
}

impl StepLog {
    /// A log that is written to `log`, and the two descriptors for the step.
    pub(crate) fn open(log: OwnedFd) -> io::Result<(Self, [OwnedFd; 2])> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC)?;
        // Only this end: the step's writes wait for space, as they would on a terminal.
        rustix::fs::fcntl_setfl(&read, OFlags::NONBLOCK)?;
        let ends = [write.try_clone()?, write];
        let log = Self {
            pipe: Some(read.into()),
            log: log.into(),
            left: MAX_STEP_LOG_BYTES,
            dropped: 0,
            tail: VecDeque::new(),
            passed: (0, 0),
        };
        Ok((log, ends))
    }

    /// The descriptor to poll for.
    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.pipe.as_ref().map(AsFd::as_fd)
    }

    /// Takes what is there, one pipe's content at most: a step that prints without end must not keep its helper
    /// from everything else. Whether more may be there.
    pub(crate) fn take(&mut self) -> bool {
        let mut chunk = [0; CHUNK];
        let Some(pipe) = &mut self.pipe else {
            return false;
        };
        match pipe.read(&mut chunk) {
            Ok(n) if n > 0 => {
                self.keep(&chunk[..n]);
                true
            }
            Err(e) if e.raw_os_error() == Some(Errno::AGAIN.raw_os_error()) => false,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => true,
            Ok(_) | Err(_) => {
                self.pipe = None;
                false
            }
        }
    }

    fn keep(&mut self, bytes: &[u8]) {
        let left = usize::try_from(self.left).unwrap_or(usize::MAX);
        let (first, rest) = bytes.split_at(bytes.len().min(left));
        self.left -= first.len() as u64;
        // A log that cannot be written, on a full disk say, is no reason to stop a step.
        let _ = self.log.write_all(first);
        self.passed.0 += bytes.len() as u64;
        self.passed.1 += first.len() as u64;
        self.dropped = self.dropped.saturating_add(rest.len() as u64);
        let rest = &rest[rest.len().saturating_sub(LOG_TAIL_BYTES)..];
        let too_many = (self.tail.len() + rest.len()).saturating_sub(LOG_TAIL_BYTES);
        self.tail.drain(..too_many);
        self.tail.extend(rest);
    }

    /// Every process of the step on this node has ended: takes the rest and closes the log.
    pub(crate) fn finish(&mut self) {
        for _ in 0..LAST_READS {
            if !self.take() {
                break;
            }
        }
        self.pipe = None;
        if self.dropped == 0 {
            return;
        }
        let cut = self.dropped - self.tail.len() as u64;
        let line = format!(
            "\n[tarn: this log was cut at {}; {cut} bytes are left out here]\n",
            tarn_types::units::Bytes(MAX_STEP_LOG_BYTES)
        );
        let _ = self.log.write_all(line.as_bytes());
        let _ = self.log.write_all(self.tail.make_contiguous());
        self.passed.1 += (line.len() + self.tail.len()) as u64;
        self.dropped = 0;
    }

    /// Bytes read and written on the step's behalf, which are not the step's own.
    pub(crate) fn passed(&self) -> (u64, u64) {
        self.passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_head_and_the_last_bytes_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let (mut log, ends) = StepLog::open(File::create(&path).unwrap().into()).unwrap();
        drop(ends);
        log.left = 10;
        log.keep(b"0123456");
        log.keep(b"789abc");
        log.keep(&vec![b'x'; LOG_TAIL_BYTES + 5]);
        log.keep(b"the end");
        log.finish();
        log.finish();
        let text = std::fs::read_to_string(&path).unwrap();
        let (head, rest) = text.split_once("\n[tarn: ").unwrap();
        let (line, tail) = rest.split_once('\n').unwrap();
        assert_eq!(head, "0123456789");
        assert!(line.contains("15 bytes are left out"), "{line}");
        assert!(tail.len() == LOG_TAIL_BYTES && tail.ends_with("xxthe end"));
    }

    #[test]
    fn a_short_log_is_as_it_was_printed() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let (mut log, ends) = StepLog::open(File::create(&path).unwrap().into()).unwrap();
        let [out, error] = ends;
        let status = std::process::Command::new("/bin/sh")
            .args(["-c", "echo one; echo two >&2"])
            .stdout(out)
            .stderr(error)
            .status()
            .unwrap();
        assert!(status.success());
        log.finish();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "one\ntwo\n");
    }
}
