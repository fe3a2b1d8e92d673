//! Append-only files of checksummed lines: the common part of the event log and the log of changes.

use rustix::fs::FallocateFlags;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use tarn_types::bounds::MAX_RECORD_BYTES;

/// Digits of the checksum and the mark behind it.
const PREFIX: usize = 9;
/// Space allocated ahead of the end, bytes: some hundred records.
const AHEAD: u64 = 256 << 10;

/// Why such a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LineError {
    /// The system refused something.
    #[error("cannot {doing} {}: {source}", .path.display())]
    Io {
        /// The attempted operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// It is another format.
    #[error("{} is not a {expected} file (its first line is `{found}`); it was written by another version of tarn or is not a log", .path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// The format's name and version.
        expected: &'static str,
        /// The beginning of the file.
        found: String,
    },
    /// A line in the middle is damaged.
    #[error("line {line} of {} is damaged: {what}. The medium has changed what was stored there: restore the file from a copy, or move it away: its content is then forgotten", .path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: u64,
        /// The damage.
        what: String,
    },
}

impl LineError {
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io {
            doing,
            path: path.to_path_buf(),
            source,
        }
    }

    pub(crate) fn damaged(path: &Path, line: u64, what: impl Into<String>) -> Self {
        Self::Damaged {
            path: path.to_path_buf(),
            line,
            what: what.into(),
        }
    }

    /// Whether the file does not exist.
    pub fn is_missing(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }
}

/// Writes one line to `out`. `begins`: whether an append begins with it.
fn encode(text: &[u8], begins: bool, out: &mut Vec<u8>) {
    let mark = if begins { b' ' } else { b'+' };
    let mut crc = crc32fast::Hasher::new();
    crc.update(&[mark]);
    crc.update(text);
    out.extend_from_slice(format!("{:08x}", crc.finalize()).as_bytes());
    out.push(mark);
    out.extend_from_slice(text);
    out.push(b'\n');
}

/// An intact line without its newline: whether it begins an append, and its text.
fn decode(line: &[u8]) -> Option<(bool, &[u8])> {
    let line = line.strip_suffix(b"\n")?;
    let (crc, rest) = line.split_at_checked(PREFIX - 1)?;
    let (mark, text) = rest.split_first()?;
    let expected = format!("{:08x}", crc32fast::hash(rest));
    let marked = matches!(mark, b' ' | b'+');
    (marked && crc == expected.as_bytes()).then_some((*mark == b' ', text))
}

/// Reads the lines of a file up to its end or its torn tail.
pub struct LineReader {
    input: BufReader<File>,
    path: PathBuf,
    /// Lines read, the first (the format's) included.
    line: u64,
    /// Length of the intact part.
    good: u64,
    /// Set at the end, the torn tail or the first error.
    over: bool,
    buffer: Vec<u8>,
}

impl LineReader {
    /// Opens a file and checks its first line. A file that was cut off inside its first line has no lines.
    ///
    /// # Errors
    /// When it cannot be read or is of another format.
    pub fn open(path: &Path, format: &'static str) -> Result<Self, LineError> {
        let file = File::open(path).map_err(LineError::io("open", path))?;
        let mut reader = Self {
            input: BufReader::with_capacity(64 << 10, file),
            path: path.to_path_buf(),
            line: 0,
            good: 0,
            over: false,
            buffer: Vec::new(),
        };
        reader.check_format(format)?;
        Ok(reader)
    }

    /// Opens a file to read on behind its first `good` bytes, `lines` lines that were read before. None of it being read
    /// yet, as [`LineReader::open`].
    ///
    /// # Errors
    /// When it cannot be read or is of another format.
    pub(crate) fn open_behind(
        path: &Path,
        format: &'static str,
        good: u64,
        lines: u64,
    ) -> Result<Self, LineError> {
        if good == 0 {
            return Self::open(path, format);
        }
        let mut file = File::open(path).map_err(LineError::io("open", path))?;
        file.seek(SeekFrom::Start(good))
            .map_err(LineError::io("read", path))?;
        Ok(Self {
            input: BufReader::with_capacity(64 << 10, file),
            path: path.to_path_buf(),
            line: lines,
            good,
            over: false,
            buffer: Vec::new(),
        })
    }

    fn check_format(&mut self, format: &'static str) -> Result<(), LineError> {
        let mut first = Vec::new();
        encode(format.as_bytes(), true, &mut first);
        let limit = first.len() as u64;
        let mut found = Vec::new();
        let mut input = (&mut self.input).take(limit);
        input
            .read_to_end(&mut found)
            .map_err(LineError::io("read", &self.path))?;
        if found == first {
            self.line = 1;
            self.good = limit;
            return Ok(());
        }
        // A torn first line: there was never a record. An intact one of another format is not torn.
        let whole = self
            .input
            .fill_buf()
            .map_err(LineError::io("read", &self.path))?;
        if whole.is_empty() && decode(&found).is_none() {
            self.over = true;
            return Ok(());
        }
        Err(LineError::Format {
            path: self.path.clone(),
            expected: format,
            found: String::from_utf8_lossy(&found).trim_end().to_owned(),
        })
    }

    /// The text of the next line; `None` at the end.
    ///
    /// # Errors
    /// When the file cannot be read or is damaged; there is nothing more after that.
    pub fn next_line(&mut self) -> Result<Option<&[u8]>, LineError> {
        if self.over {
            return Ok(None);
        }
        self.over = true;
        if !self.read_line()? {
            return Ok(None);
        }
        if decode(&self.buffer).is_none() {
            self.check_tail()?;
            return Ok(None);
        }
        self.over = false;
        self.good += self.buffer.len() as u64;
        // Cannot fail: it was decoded above.
        Ok(decode(&self.buffer).map(|(_, text)| text))
    }

    /// Reads a line into the buffer, its newline included; false at the end of the file.
    fn read_line(&mut self) -> Result<bool, LineError> {
        self.buffer.clear();
        let limit = (MAX_RECORD_BYTES + PREFIX + 1) as u64;
        let mut input = (&mut self.input).take(limit);
        let n = input
            .read_until(b'\n', &mut self.buffer)
            .map_err(LineError::io("read", &self.path))?;
        self.line += u64::from(n > 0);
        Ok(n > 0)
    }

    /// A line is bad. Torn, unless an append begins after it.
    fn check_tail(&mut self) -> Result<(), LineError> {
        let bad = self.line;
        while self.read_line()? {
            if decode(&self.buffer).is_some_and(|(begins, _)| begins) {
                let what = "its checksum does not match, and intact records come after it";
                return Err(LineError::damaged(&self.path, bad, what));
            }
        }
        self.line = bad;
        Ok(())
    }

    /// Reads no further.
    pub fn stop(&mut self) {
        self.over = true;
    }

    /// The line that was read last, from 1.
    pub fn line(&self) -> u64 {
        self.line
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the intact lines read so far.
    pub fn good(&self) -> u64 {
        self.good
    }
}

/// Appends lines to a file, durably.
pub struct LineWriter {
    file: File,
    path: PathBuf,
    /// Bytes that are durable and good.
    len: u64,
    /// Bytes allocated.
    allocated: u64,
    buffer: Vec<u8>,
    /// A failed append could not be cut off: the file's content is not known.
    lost: bool,
}

impl LineWriter {
    /// Makes a new file, durably, in a folder that exists.
    ///
    /// # Errors
    /// When it exists or cannot be written.
    pub fn create(path: &Path, format: &'static str) -> Result<Self, LineError> {
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).open(path);
        let mut writer = Self::over(file.map_err(LineError::io("create", path))?, path, 0);
        writer.begin(format)?;
        let folder = path.parent().unwrap_or(Path::new("."));
        sync_folder(folder).map_err(LineError::io("sync", folder))?;
        Ok(writer)
    }

    /// Opens a file for append behind its first `good` bytes and cuts off the rest. With nothing good in it, it
    /// begins again.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn open_at(path: &Path, good: u64, format: &'static str) -> Result<Self, LineError> {
        let file = OpenOptions::new().read(true).write(true).open(path);
        let file = file.map_err(LineError::io("open", path))?;
        let len = file.metadata().map_err(LineError::io("read", path))?.len();
        if len > good {
            file.set_len(good)
                .map_err(LineError::io("cut the torn tail of", path))?;
            file.sync_all().map_err(LineError::io("sync", path))?;
        }
        let mut writer = Self::over(file, path, good);
        if good == 0 {
            writer.begin(format)?;
        }
        Ok(writer)
    }

    fn over(file: File, path: &Path, len: u64) -> Self {
        Self {
            file,
            path: path.to_path_buf(),
            len,
            allocated: len,
            buffer: Vec::new(),
            lost: false,
        }
    }

    fn begin(&mut self, format: &'static str) -> Result<(), LineError> {
        let path = self.path.clone();
        self.append([format.as_bytes()])
            .map_err(LineError::io("begin", &path))
    }

    /// Appends lines as one append, durable on return.
    ///
    /// # Errors
    /// Nothing of it is in the file then: written bytes are cut off again.
    pub fn append<'a>(&mut self, lines: impl IntoIterator<Item = &'a [u8]>) -> io::Result<()> {
        if self.lost {
            return Err(io::Error::other(
                "an earlier append failed and could not be taken back",
            ));
        }
        self.buffer.clear();
        for (n, text) in lines.into_iter().enumerate() {
            if text.len() > MAX_RECORD_BYTES || text.contains(&b'\n') {
                let what = format!(
                    "a record of {} bytes; the most is {MAX_RECORD_BYTES}",
                    text.len()
                );
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            encode(text, n == 0, &mut self.buffer);
        }
        if self.buffer.is_empty() {
            return Ok(());
        }
        self.allocate_ahead();
        let written = self.file.write_all_at(&self.buffer, self.len);
        match written.and_then(|()| self.file.sync_data()) {
            Ok(()) => {
                self.len += self.buffer.len() as u64;
                Ok(())
            }
            Err(error) => {
                let cut = self
                    .file
                    .set_len(self.len)
                    .and_then(|()| self.file.sync_all());
                self.lost = cut.is_err();
                self.allocated = self.len;
                Err(error)
            }
        }
    }

    /// Allocates without changing the size. If that fails, only the gain is lost.
    fn allocate_ahead(&mut self) {
        let end = self.len + self.buffer.len() as u64;
        if end <= self.allocated {
            return;
        }
        let want = end.next_multiple_of(AHEAD) - self.len;
        let _ = rustix::fs::fallocate(&self.file, FallocateFlags::KEEP_SIZE, self.len, want);
        self.allocated = self.len + want;
    }

    /// Bytes in the file, all durable.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether nothing at all is in it; never so after it was made.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LineWriter {
    /// Gives back the space that was allocated ahead.
    fn drop(&mut self) {
        let end = self.file.seek(SeekFrom::End(0));
        if end.is_ok_and(|end| end == self.len) && self.allocated > self.len {
            let _ = self.file.set_len(self.len);
        }
    }
}

/// Makes the entries of a folder durable.
///
/// # Errors
/// When the system refuses.
pub fn sync_folder(folder: &Path) -> io::Result<()> {
    let folder = if folder.as_os_str().is_empty() {
        Path::new(".")
    } else {
        folder
    };
    File::open(folder)?.sync_all()
}
