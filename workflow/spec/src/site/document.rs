//! A TOML document as a whole: size, syntax, then the content of its tables.

use crate::diag::{Finding, FindingCode, Findings, SpecError};
use crate::parsed::{refuse, syntax};
use crate::text::SourceFiles;
use std::sync::Arc;
use tarn_types::bounds;
use toml::de::DeTable;

/// Reads a document with `read`, which reports errors and gives `None` only if it has reported something.
///
/// # Errors
/// All that is wrong with it.
pub(crate) fn read_document<T>(
    name: &str,
    text: &str,
    read: impl FnOnce(&mut Findings, &DeTable<'_>) -> Option<T>,
) -> Result<T, SpecError> {
    if text.len() > bounds::MAX_WORKFLOW_BYTES {
        return Err(rejected(name, too_large(text.len() as u64)));
    }
    let mut out = Findings::new(Arc::new(SourceFiles::new(name, text)));
    let (document, errors) = DeTable::parse_recoverable(text);
    for error in errors {
        out.add(syntax(&error, 0));
    }
    if !out.is_empty() {
        return refuse(out, name);
    }
    match read(&mut out, document.get_ref()) {
        Some(value) if out.is_empty() => Ok(value),
        _ => refuse(out, name),
    }
}

/// The refusal of a file of which no place is pointed at.
pub(crate) fn rejected(name: &str, finding: Finding) -> SpecError {
    let mut out = Findings::new(Arc::new(SourceFiles::new(name, "")));
    out.add(finding.of_file(name));
    out.into_rejected()
}

/// The error for a file that is too large.
pub(crate) fn too_large(bytes: u64) -> Finding {
    Finding::error(
        FindingCode::TooLarge,
        format!("the file has {bytes} bytes or more"),
    )
    .help(format!(
        "at most {} are read; divide it into several files",
        bounds::MAX_WORKFLOW_BYTES
    ))
}
