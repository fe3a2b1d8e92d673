//! Counting to the moment of the crash.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counts points and calls a function at one of them. Clones share the count.
#[derive(Debug, Clone)]
pub struct CrashPoint {
    passed: Arc<AtomicU64>,
    at: Option<u64>,
    crash: fn(),
}

/// A crash point that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` is not a crash point: give a whole number from 1, the point at which the process is to die"
)]
pub struct CrashPointError(pub String);

impl CrashPoint {
    /// Calls `crash` at point `at`, counted from 1; never for `None`.
    pub fn new(at: Option<u64>, crash: fn()) -> Self {
        Self {
            passed: Arc::default(),
            at,
            crash,
        }
    }

    /// From the text of a variable such as `TARN_CRASH_AT`; empty (as when it is unset) means never.
    ///
    /// # Errors
    /// When it is not a whole number from 1.
    pub fn parse(text: &str, crash: fn()) -> Result<Self, CrashPointError> {
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self::new(None, crash));
        }
        match text.parse() {
            Ok(at) if at > 0 => Ok(Self::new(Some(at), crash)),
            _ => Err(CrashPointError(text.to_owned())),
        }
    }

    /// A point is passed. `crash` is called here when it is the one.
    pub fn pass(&self) {
        let number = self.passed.fetch_add(1, Ordering::Relaxed) + 1;
        if self.at == Some(number) {
            (self.crash)();
        }
    }

    /// Points passed so far.
    pub fn passed(&self) -> u64 {
        self.passed.load(Ordering::Relaxed)
    }
}
