//! The structures of `tarn.h`, and their values in Rust.

use crate::guard::invalid;
use std::ffi::{CStr, c_char};
use tarn_proto::local::{
    CopyVerification, MAX_AFTER, PathBytes, RequestError, SpaceInfo, Stats, TaskEnd, TaskLocation,
    TaskOperation, TaskOutcome, TaskSpec, TaskState, TaskStatus,
};

/// Not known (yet).
const UNKNOWN: u64 = u64::MAX;

#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tarn_place {
    pub kind: i32,
    pub region: u32,
    pub offset: u64,
    pub length: u64,
    pub node: *const c_char,
    pub space: *const c_char,
    pub path: *const c_char,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tarn_task {
    pub size: u32,
    pub kind: i32,
    pub verify: i32,
    pub flags: u32,
    pub priority: i32,
    pub after_count: u32,
    pub after: *const u64,
    pub deadline_ns: u64,
    pub rate: u64,
    pub from: tarn_place,
    pub to: tarn_place,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tarn_outcome {
    pub id: u64,
    pub bytes: u64,
    pub nanoseconds: u64,
    pub code: i32,
    pub late: u8,
    pub has_checksum: u8,
    pub reserved: [u8; 2],
    pub checksum: [u8; 16],
    pub text: [c_char; 192],
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tarn_status {
    pub id: u64,
    pub done: u64,
    pub all: u64,
    pub left: u64,
    pub state: i32,
    pub before: u32,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tarn_space {
    pub name: [c_char; 65],
    pub readable: u8,
    pub writable: u8,
    pub manageable: u8,
    pub reserved: [u8; 4],
    pub capacity: u64,
    pub quota: u64,
    pub used: u64,
    pub held: u64,
    pub own: u64,
}

#[repr(C)]
#[derive(Debug, Clone, Copy)]
#[allow(non_camel_case_types)]
pub struct tarn_stats {
    pub waiting: u64,
    pub queued: u64,
    pub running: u64,
    pub done: u64,
    pub failed: u64,
    pub bytes: u64,
    pub left: u64,
}

/// A C string's bytes.
///
/// # Safety
/// `text` is NULL or ends with NUL.
pub(crate) unsafe fn bytes<'a>(text: *const c_char, what: &str) -> Result<&'a [u8], RequestError> {
    if text.is_null() {
        return Err(invalid(format!("{what} is NULL")));
    }
    // SAFETY: not NULL, and the caller says that it ends with NUL.
    Ok(unsafe { CStr::from_ptr(text) }.to_bytes())
}

/// The same as text.
///
/// # Safety
/// As for [`bytes`].
pub(crate) unsafe fn text(pointer: *const c_char, what: &str) -> Result<String, RequestError> {
    // SAFETY: as the caller says.
    let bytes = unsafe { bytes(pointer, what) }?;
    let text = std::str::from_utf8(bytes).map_err(|_| invalid(format!("{what} is not UTF-8")))?;
    Ok(text.to_owned())
}

impl tarn_place {
    pub(crate) const NOWHERE: Self = Self {
        kind: 0,
        region: 0,
        offset: 0,
        length: 0,
        node: std::ptr::null(),
        space: std::ptr::null(),
        path: std::ptr::null(),
    };

    /// # Safety
    /// Its texts are NULL or end with NUL.
    unsafe fn read(&self) -> Result<TaskLocation, RequestError> {
        // SAFETY: as the caller says.
        let path = || unsafe { bytes(self.path, "a place's path") }.map(PathBytes::from);
        // SAFETY: as the caller says.
        let name = |pointer, what| unsafe { text(pointer, what) };
        Ok(match self.kind {
            1 => TaskLocation::Space {
                name: name(self.space, "a place's space")?,
                path: path()?,
            },
            2 => TaskLocation::Memory {
                region: self.region,
                offset: self.offset,
                length: self.length,
            },
            3 => TaskLocation::Node {
                node: name(self.node, "a place's node")?,
                space: name(self.space, "a place's space")?,
                path: path()?,
            },
            4 => TaskLocation::External(path()?),
            other => return Err(invalid(format!("{other} is no kind of place"))),
        })
    }
}

impl tarn_task {
    pub(crate) const SIZE: u32 = size_of::<Self>() as u32;

    /// # Safety
    /// Its texts are NULL or end with NUL, and `after` has `after_count` ids.
    pub(crate) unsafe fn read(&self) -> Result<TaskSpec, RequestError> {
        if self.size != Self::SIZE {
            return Err(invalid(format!(
                "a task of {} bytes where this library knows {}: begin with tarn_task_init, and use the header of the same release",
                self.size,
                Self::SIZE
            )));
        }
        // SAFETY: as the caller says.
        let (from, to) = unsafe { (self.from.read(), self.to.read()) };
        let kind = match self.kind {
            0 => TaskOperation::Nothing,
            1 => TaskOperation::Copy {
                from: from?,
                to: to?,
            },
            2 => TaskOperation::Move {
                from: from?,
                to: to?,
            },
            3 => TaskOperation::Remove { at: from? },
            other => return Err(invalid(format!("{other} is no kind of task"))),
        };
        let verify = match self.verify {
            0 => CopyVerification::Copy,
            1 => CopyVerification::None,
            2 => CopyVerification::Readback,
            other => return Err(invalid(format!("{other} is no level of verification"))),
        };
        if self.flags & !3 != 0 {
            return Err(invalid(format!("unknown flags {:#x}", self.flags & !3)));
        }
        let count = self.after_count as usize;
        if count > MAX_AFTER || (count > 0 && self.after.is_null()) {
            return Err(invalid(format!("`after` needs at most {MAX_AFTER} ids")));
        }
        let after = match count {
            0 => Vec::new(),
            // SAFETY: not NULL, and the caller says that there are so many.
            _ => unsafe { std::slice::from_raw_parts(self.after, count) }.to_vec(),
        };
        let priority = u8::try_from(self.priority);
        Ok(TaskSpec {
            kind,
            priority: priority.map_err(|_| invalid("a priority is 0 to 255"))?,
            deadline: (self.deadline_ns > 0).then_some(self.deadline_ns),
            verify,
            rate: self.rate,
            durable: self.flags & 1 != 0,
            replace: self.flags & 2 != 0,
            after,
        })
    }
}

/// The text that marks a cut.
const CUT: &str = " ...";

/// A text in a field of fixed size, ended by NUL; one that does not fit is cut after a word, and says so.
fn field<const N: usize>(text: &str) -> [c_char; N] {
    let fits = text.len() < N;
    let (kept, mark) = match fits {
        true => (text, ""),
        false => {
            let most = &text[..text.floor_char_boundary((N - 1).saturating_sub(CUT.len()))];
            (most.rsplit_once(' ').map_or(most, |(words, _)| words), CUT)
        }
    };
    let mut field = [0; N];
    let bytes = kept.bytes().chain(mark.bytes()).take(N - 1);
    for (to, from) in field.iter_mut().zip(bytes) {
        *to = from.cast_signed() as c_char;
    }
    field
}

impl From<&TaskOutcome> for tarn_outcome {
    fn from(outcome: &TaskOutcome) -> Self {
        let (code, text) = match &outcome.end {
            TaskEnd::Done => (0, field("")),
            TaskEnd::Failed(why) => (why.code.number(), field(&why.text)),
        };
        Self {
            id: outcome.id,
            bytes: outcome.bytes,
            nanoseconds: outcome.nanos,
            code,
            late: outcome.late.into(),
            has_checksum: outcome.checksum.is_some().into(),
            reserved: [0; 2],
            checksum: outcome.checksum.unwrap_or_default(),
            text,
        }
    }
}

impl From<&TaskStatus> for tarn_status {
    fn from(status: &TaskStatus) -> Self {
        Self {
            id: status.id,
            done: status.done,
            all: status.all.unwrap_or(UNKNOWN),
            left: status.left.unwrap_or(UNKNOWN),
            state: match status.state {
                TaskState::Unknown => 0,
                TaskState::Waiting => 1,
                TaskState::Queued => 2,
                TaskState::Running => 3,
                TaskState::Done => 4,
                TaskState::Failed => 5,
                TaskState::Paused => 6,
            },
            before: status.ahead,
        }
    }
}

impl From<&SpaceInfo> for tarn_space {
    fn from(space: &SpaceInfo) -> Self {
        Self {
            name: field(&space.name),
            readable: space.access.read.into(),
            writable: space.access.write.into(),
            manageable: space.access.manage.into(),
            reserved: [0; 4],
            capacity: space.capacity,
            quota: space.quota,
            used: space.used,
            held: space.reserved,
            own: space.own,
        }
    }
}

impl From<&Stats> for tarn_stats {
    fn from(stats: &Stats) -> Self {
        Self {
            waiting: stats.waiting,
            queued: stats.queued,
            running: stats.running,
            done: stats.done,
            failed: stats.failed,
            bytes: stats.bytes,
            left: stats.left.unwrap_or(UNKNOWN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown<const N: usize>(text: &str) -> String {
        let field = field::<N>(text);
        assert_eq!(field[N - 1], 0);
        let bytes = field.iter().take_while(|b| **b != 0);
        let bytes = bytes.map(|b| b.cast_unsigned()).collect();
        String::from_utf8(bytes).expect("whole characters")
    }

    #[test]
    fn texts_are_cut_after_a_word() {
        assert_eq!(shown::<12>("eleven byte"), "eleven byte");
        assert_eq!(shown::<12>("twelve bytes"), "twelve ...");
        assert_eq!(shown::<12>("twelvebytes!"), "twelveb ...");
        assert_eq!(
            shown::<12>("\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}\u{e9}"),
            "\u{e9}\u{e9}\u{e9} ..."
        );
        assert_eq!(shown::<3>("long"), " .");
    }
}
