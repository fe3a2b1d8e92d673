//! The journal of tasks: checksummed lines (crate `journal`), written by a thread of its own. All records that wait
//! become durable together with one fdatasync.

use anyhow::Context;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use tarn_journal::lines::{LineReader, LineWriter, sync_folder};
use tarn_tasks::TaskLogRecord;

/// Name and version of the format: the first line.
const FORMAT: &str = "tarn-tasks 1";
/// Bytes after which a new journal with only valid records takes the place of the old one.
const MAX_JOURNAL_BYTES: u64 = 64 << 20;

/// The work of the journal's thread.
#[derive(Default)]
struct JournalQueue {
    /// Records that wait, as text.
    lines: Vec<Vec<u8>>,
    /// The records that a new journal begins with, in place of all that came before.
    anew: Option<Vec<Vec<u8>>>,
    /// Records handed over, those that a rewrite has replaced included.
    handed: u64,
    over: bool,
}

struct JournalWriterState {
    queue: Mutex<JournalQueue>,
    more: Condvar,
    /// Records that are durable.
    durable: AtomicU64,
    /// Bytes in the file.
    bytes: AtomicU64,
    failed: AtomicBool,
    /// Told when more has become durable.
    wake: OwnedFd,
}

/// The journal, open for append.
pub(crate) struct TaskJournal {
    shared: Arc<JournalWriterState>,
    handed: u64,
    thread: Option<JoinHandle<()>>,
    /// A rewrite was requested at this length.
    rewritten: u64,
}

fn lock(queue: &Mutex<JournalQueue>) -> MutexGuard<'_, JournalQueue> {
    queue.lock().unwrap_or_else(PoisonError::into_inner)
}

fn path_in(state: &Path) -> PathBuf {
    state.join("tasks.log")
}

/// The records of the journal in a state folder; none when there is no journal.
pub(crate) fn read(state: &Path) -> anyhow::Result<Vec<TaskLogRecord>> {
    let path = path_in(state);
    let mut lines = match LineReader::open(&path, FORMAT) {
        Err(e) if e.is_missing() => return Ok(Vec::new()),
        other => other?,
    };
    let mut records = Vec::new();
    while let Some(text) = lines.next_line()? {
        let record = serde_json::from_slice(text).with_context(|| {
            format!("a line of {} is not a record that this version of tarnd knows; move the file away to start with none: its tasks are then forgotten", path.display())
        })?;
        records.push(record);
    }
    Ok(records)
}

fn encode(records: &[TaskLogRecord]) -> anyhow::Result<Vec<Vec<u8>>> {
    let line = |r| serde_json::to_vec(r).context("a record cannot be written");
    records.iter().map(line).collect()
}

/// Writes a new journal beside the old one and puts it in its place.
fn begin(path: &Path, lines: &[Vec<u8>]) -> anyhow::Result<LineWriter> {
    let fresh = path.with_extension("new");
    match std::fs::remove_file(&fresh) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(e).with_context(|| format!("cannot remove {}", fresh.display()));
        }
        _ => {}
    }
    let mut writer = LineWriter::create(&fresh, FORMAT)?;
    writer
        .append(lines.iter().map(Vec::as_slice))
        .and_then(|()| std::fs::rename(&fresh, path))
        .and_then(|()| sync_folder(path.parent().unwrap_or(Path::new("."))))
        .with_context(|| format!("cannot write {}", path.display()))?;
    Ok(writer)
}

impl TaskJournal {
    /// Begins a new journal with these records, durably, in place of an older one.
    pub(crate) fn open(state: &Path, records: &[TaskLogRecord]) -> anyhow::Result<Self> {
        let path = path_in(state);
        let writer = begin(&path, &encode(records)?)?;
        let shared = Arc::new(JournalWriterState {
            queue: Mutex::default(),
            more: Condvar::new(),
            durable: AtomicU64::new(0),
            bytes: AtomicU64::new(writer.len()),
            failed: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let rewritten = writer.len();
        let other = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("journal".into())
            .spawn(move || write_all(&other, &path, writer))?;
        Ok(Self {
            shared,
            handed: 0,
            thread: Some(thread),
            rewritten,
        })
    }

    /// Hands over records that belong together; they are durable once [`TaskJournal::durable`] has come to the number
    /// returned.
    pub(crate) fn append(&mut self, records: &[TaskLogRecord]) -> anyhow::Result<u64> {
        let lines = encode(records)?;
        self.handed += records.len() as u64;
        let mut queue = lock(&self.shared.queue);
        queue.lines.extend(lines);
        queue.handed = self.handed;
        self.shared.more.notify_one();
        Ok(self.handed)
    }

    /// Records handed over.
    pub(crate) fn handed(&self) -> u64 {
        self.handed
    }

    /// Records of those that are durable.
    pub(crate) fn durable(&self) -> u64 {
        self.shared.durable.load(Ordering::Acquire)
    }

    /// Whether the journal cannot be written any more.
    pub(crate) fn failed(&self) -> bool {
        self.shared.failed.load(Ordering::Acquire)
    }

    /// Becomes readable when more is durable.
    pub(crate) fn wake(&self) -> &OwnedFd {
        &self.shared.wake
    }

    /// Whether so much was appended that it should be rewritten.
    pub(crate) fn is_long(&self) -> bool {
        let bytes = self.shared.bytes.load(Ordering::Relaxed);
        bytes > MAX_JOURNAL_BYTES.max(2 * self.rewritten)
    }

    /// Replaces all that was handed over by this.
    pub(crate) fn rewrite(&mut self, snapshot: &[TaskLogRecord]) -> anyhow::Result<()> {
        let lines = encode(snapshot)?;
        self.rewritten = lines.iter().map(|l| l.len() as u64).sum();
        // Not requested again before this is done.
        self.shared.bytes.store(0, Ordering::Relaxed);
        let mut queue = lock(&self.shared.queue);
        queue.lines.clear();
        queue.anew = Some(lines);
        self.shared.more.notify_one();
        Ok(())
    }
}

impl Drop for TaskJournal {
    /// Writes waiting records.
    fn drop(&mut self) {
        lock(&self.shared.queue).over = true;
        self.shared.more.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn write_all(shared: &JournalWriterState, path: &Path, mut writer: LineWriter) {
    loop {
        let (lines, anew, handed) = {
            let mut queue = lock(&shared.queue);
            while queue.lines.is_empty() && queue.anew.is_none() {
                if queue.over {
                    return;
                }
                queue = shared
                    .more
                    .wait(queue)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            let lines = std::mem::take(&mut queue.lines);
            (lines, queue.anew.take(), queue.handed)
        };
        let replaced = match anew {
            Some(first) => begin(path, &first).map(|fresh| writer = fresh),
            None => Ok(()),
        };
        let written = replaced.and_then(|()| {
            let lines = lines.iter().map(Vec::as_slice);
            writer
                .append(lines)
                .with_context(|| format!("cannot write {}; free space there", path.display()))
        });
        if let Err(error) = &written {
            tracing::error!("{error:#}");
            shared.failed.store(true, Ordering::Release);
        } else {
            shared.bytes.store(writer.len(), Ordering::Relaxed);
            shared.durable.store(handed, Ordering::Release);
        }
        let _ = rustix::io::write(&shared.wake, &1u64.to_ne_bytes());
        if written.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_proto::local::{TaskOperation, TaskSpec};

    fn record(id: u64) -> TaskLogRecord {
        TaskLogRecord::Submitted {
            id,
            user: 1,
            job: None,
            at: 5,
            deadline: None,
            spec: TaskSpec::new(TaskOperation::Nothing),
        }
    }

    fn wait(journal: &TaskJournal, number: u64) {
        while journal.durable() < number {
            std::thread::yield_now();
        }
    }

    #[test]
    fn records_come_back_also_after_a_rewrite() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), []);
        let mut journal = TaskJournal::open(dir.path(), &[record(0)]).unwrap();
        let number = journal.append(&[record(1), record(2)]).unwrap();
        wait(&journal, number);
        assert_eq!(read(dir.path()).unwrap(), [record(0), record(1), record(2)]);
        journal.rewrite(&[record(2)]).unwrap();
        let number = journal.append(&[record(3)]).unwrap();
        wait(&journal, number);
        assert_eq!(read(dir.path()).unwrap(), [record(2), record(3)]);
        drop(journal);
        drop(TaskJournal::open(dir.path(), &[record(7)]).unwrap());
        assert_eq!(read(dir.path()).unwrap(), [record(7)]);
    }

    /// Cut at every byte, a journal has the records that were whole, and the next one begins with them.
    #[test]
    fn a_torn_tail_at_every_byte() {
        let dir = tempfile::tempdir().unwrap();
        let mut journal = TaskJournal::open(dir.path(), &[]).unwrap();
        let mut ends = vec![std::fs::read(path_in(dir.path())).unwrap().len()];
        let all: Vec<_> = (0..4).map(record).collect();
        for record in &all {
            let number = journal.append(std::slice::from_ref(record)).unwrap();
            wait(&journal, number);
            ends.push(std::fs::read(path_in(dir.path())).unwrap().len());
        }
        drop(journal);
        let whole = std::fs::read(path_in(dir.path())).unwrap();
        for cut in 0..=whole.len() {
            std::fs::write(path_in(dir.path()), &whole[..cut]).unwrap();
            let expected = ends[1..].iter().filter(|end| **end <= cut).count();
            assert_eq!(read(dir.path()).unwrap(), all[..expected], "cut at {cut}");
        }
    }
}
