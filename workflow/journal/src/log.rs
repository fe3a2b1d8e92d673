//! The event log: records as checksummed lines.

use crate::lines::{LineError, LineReader, LineWriter};
use std::io;
use std::path::{Path, PathBuf};
use tarn_ports::{Journal, JournalError, Record};
use tarn_types::units::Time;

/// Name and version of the format: the first line.
pub const FORMAT: &str = "tarn-log 1";

/// Reads the records of a log, up to its end or its torn tail. Yields nothing after an error.
pub struct LogReader {
    lines: LineReader,
    check: Sequence,
}

/// The number and the time that the next record must continue.
#[derive(Debug, Clone, Copy, Default)]
struct Sequence {
    seq: u64,
    now: Time,
}

/// Why a line, or a record to write, is not the log's next record.
#[derive(Debug, thiserror::Error)]
enum NotNext {
    #[error("it is not a record that this version of tarn knows ({0})")]
    Unknown(serde_json::Error),
    #[error("it is record {found} where record {due} is due")]
    Number { found: u64, due: u64 },
    #[error("its time {found} is before that of the record before, {before}")]
    Time { found: Time, before: Time },
}

impl Sequence {
    fn accept(&mut self, record: &Record) -> Result<(), NotNext> {
        let (seq, now) = (record.seq, record.now);
        if seq != self.seq {
            return Err(NotNext::Number {
                found: seq,
                due: self.seq,
            });
        }
        if now < self.now {
            return Err(NotNext::Time {
                found: now,
                before: self.now,
            });
        }
        *self = Self { seq: seq + 1, now };
        Ok(())
    }
}

impl LogReader {
    /// Opens a log.
    ///
    /// # Errors
    /// When it cannot be read or is of another format.
    pub fn open(path: &Path) -> Result<Self, LineError> {
        let lines = LineReader::open(path, FORMAT)?;
        let check = Sequence::default();
        Ok(Self { lines, check })
    }

    /// Bytes of the intact records read so far, the first line included.
    pub fn good(&self) -> u64 {
        self.lines.good()
    }

    fn parse(&mut self) -> Result<Option<Record>, LineError> {
        let Some(text) = self.lines.next_line()? else {
            return Ok(None);
        };
        let parsed = serde_json::from_slice::<Record>(text);
        let checked = parsed
            .map_err(NotNext::Unknown)
            .and_then(|record| self.check.accept(&record).map(|()| record));
        match checked {
            Ok(record) => Ok(Some(record)),
            Err(why) => {
                self.lines.stop();
                Err(LineError::damaged(
                    self.lines.path(),
                    self.lines.line(),
                    why.to_string(),
                ))
            }
        }
    }
}

impl Iterator for LogReader {
    type Item = Result<Record, LineError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.parse().transpose()
    }
}

/// Reads a log that grows: each look continues where the one before has ended. An incomplete record is left for a later look.
pub struct LogFollower {
    path: PathBuf,
    /// Bytes and lines that have been read.
    good: u64,
    lines: u64,
    check: Sequence,
}

impl LogFollower {
    /// Nothing of it has been read yet.
    pub fn new(path: &Path) -> Self {
        Self {
            path: path.to_path_buf(),
            good: 0,
            lines: 0,
            check: Sequence::default(),
        }
    }

    /// Hands over the records that are new. The file is opened again each time: network file systems show only then what
    /// another node has written.
    ///
    /// # Errors
    /// When the log cannot be read or is damaged; the records before that have been handed over.
    pub fn read(&mut self, mut each: impl FnMut(Record)) -> Result<(), LineError> {
        let lines = LineReader::open_behind(&self.path, FORMAT, self.good, self.lines)?;
        let mut reader = LogReader {
            lines,
            check: self.check,
        };
        self.keep(&reader);
        while let Some(record) = reader.next() {
            each(record?);
            self.keep(&reader);
        }
        Ok(())
    }

    fn keep(&mut self, reader: &LogReader) {
        (self.good, self.lines) = (reader.good(), reader.lines.line());
        self.check = reader.check;
    }

    /// Whether something that was read has been cut off again, as an append that failed is. Reading begins again then.
    ///
    /// # Errors
    /// When the log cannot be looked at.
    pub fn was_cut(&mut self) -> Result<bool, LineError> {
        let found = std::fs::metadata(&self.path).map_err(LineError::io("read", &self.path))?;
        let cut = found.len() < self.good;
        if cut {
            *self = Self::new(&self.path);
        }
        Ok(cut)
    }
}

/// Appends records to a log.
pub struct LogWriter {
    lines: LineWriter,
    check: Sequence,
}

/// A log that was opened for append.
pub struct OpenedLog {
    /// To continue.
    pub writer: LogWriter,
    /// Its records.
    pub records: Vec<Record>,
    /// Bytes of a torn tail that were cut off.
    pub cut: u64,
}

impl LogWriter {
    /// Makes a new log, durably, in a folder that exists.
    ///
    /// # Errors
    /// When it exists or cannot be written.
    pub fn create(path: &Path) -> Result<Self, LineError> {
        let lines = LineWriter::create(path, FORMAT)?;
        let check = Sequence::default();
        Ok(Self { lines, check })
    }

    /// Opens a log to continue: reads it whole and cuts off a torn tail. The caller holds the run's lock.
    ///
    /// # Errors
    /// When it cannot be read or written, is of another format, or is damaged; it is left as it was.
    pub fn open_append(path: &Path) -> Result<OpenedLog, LineError> {
        let mut reader = LogReader::open(path)?;
        let records: Vec<Record> = reader.by_ref().collect::<Result<_, _>>()?;
        let (good, check) = (reader.good(), reader.check);
        let len = std::fs::metadata(path)
            .map_err(LineError::io("read", path))?
            .len();
        let lines = LineWriter::open_at(path, good, FORMAT)?;
        Ok(OpenedLog {
            writer: Self { lines, check },
            records,
            cut: len.saturating_sub(good),
        })
    }

    fn try_append(&mut self, records: &[Record]) -> io::Result<()> {
        let invalid = io::ErrorKind::InvalidData;
        let mut check = self.check;
        let mut lines = Vec::with_capacity(records.len());
        for record in records {
            let accepted = check.accept(record);
            accepted.map_err(|e| io::Error::new(invalid, e))?;
            let line = serde_json::to_vec(record);
            lines.push(line.map_err(|e| io::Error::new(invalid, e))?);
        }
        self.lines.append(lines.iter().map(Vec::as_slice))?;
        self.check = check;
        Ok(())
    }
}

impl Journal for LogWriter {
    fn append(&mut self, records: &[Record]) -> Result<(), JournalError> {
        self.try_append(records).map_err(|source| JournalError {
            path: self.lines.path().display().to_string(),
            source,
        })
    }
}
