//! Files as they are read: plain or compressed, and their likely formats.

use crate::diag::{Finding, FindingCode};
use crate::site::document::too_large;
use crate::site::history::is_history;
use flate2::read::MultiGzDecoder;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;
use tarn_types::bounds;

/// Gives the bytes of a file.
pub type ReadFile<'f> = dyn Fn(&Path) -> io::Result<Vec<u8>> + 'f;

/// Bytes of a trace, decompressed: the largest of the Parallel Workloads Archive have some hundred MiB.
pub const MAX_TRACE_BYTES: u64 = 8 << 30;
/// Bytes that show the format of a file: comments may come first.
const HEAD: u64 = 64 << 10;
/// Bytes that are decompressed at once.
const BUFFER: usize = 256 << 10;

/// A file's bytes.
pub(crate) struct WorkloadFileContent(Vec<u8>);

/// The format of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WorkloadFormat {
    /// A trace of batch jobs.
    Trace,
    /// A recorded workflow.
    Json,
    /// A workload, or a workflow of tarn.
    Toml,
    /// A site's history.
    History,
}

impl WorkloadFileContent {
    /// Reads a file.
    ///
    /// # Errors
    /// A finding without a place.
    pub(crate) fn read(read: &ReadFile<'_>, path: &Path) -> Result<Self, Finding> {
        read(path).map(Self).map_err(|error| {
            Finding::error(
                FindingCode::BadPath,
                format!("`{}` cannot be read: {error}", path.display()),
            )
            .help("name a file that exists and may be read; paths in a file start at its folder")
        })
    }

    /// Its lines, decompressed.
    pub(crate) fn lines(&self) -> Box<dyn BufRead + '_> {
        // A byte order mark, as some editors write it.
        let bytes = self.0.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.0);
        match bytes.starts_with(&[0x1f, 0x8b]) {
            true => {
                let plain = MultiGzDecoder::new(bytes).take(MAX_TRACE_BYTES);
                Box::new(BufReader::with_capacity(BUFFER, plain))
            }
            false => Box::new(bytes),
        }
    }

    /// The likely format, by its first character that is no space.
    pub(crate) fn kind(&self) -> Result<WorkloadFormat, Finding> {
        let mut head = Vec::new();
        self.lines()
            .take(HEAD)
            .read_to_end(&mut head)
            .map_err(|e| damaged(&e))?;
        let head = head.trim_ascii_start();
        if is_history(head) {
            return Ok(WorkloadFormat::History);
        }
        Ok(match head.first() {
            Some(b';' | b'-' | b'0'..=b'9') => WorkloadFormat::Trace,
            Some(b'{') => WorkloadFormat::Json,
            _ => WorkloadFormat::Toml,
        })
    }

    /// Its text.
    pub(crate) fn text(&self) -> Result<String, Finding> {
        let most = bounds::MAX_WORKFLOW_BYTES as u64;
        let mut bytes = Vec::new();
        let mut lines = self.lines().take(most + 1);
        lines.read_to_end(&mut bytes).map_err(|e| damaged(&e))?;
        if bytes.len() as u64 > most {
            return Err(too_large(bytes.len() as u64));
        }
        String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            Finding::error(
                FindingCode::Syntax,
                format!("the file is no text: byte {at} is not UTF-8"),
            )
            .help(
                "give a TOML or JSON file in UTF-8, or a trace, each plain or compressed with gzip",
            )
        })
    }
}

fn damaged(error: &io::Error) -> Finding {
    Finding::error(
        FindingCode::Syntax,
        format!("the file cannot be decompressed: {error}"),
    )
    .help("fetch the file again: it is damaged or cut off")
}
