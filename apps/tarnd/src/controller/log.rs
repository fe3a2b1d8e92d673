//! The controller's log: each event is durable before anything is done about it. docs/internals/site.md, "The log".

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use tarn_journal::lines::{LineReader, LineWriter, sync_folder};
use tarn_proto::site::Epoch;
use tarn_site::{Config, Site, SiteServiceEvent};
use tarn_types::units::Time;

/// Name and version of the format: the first line.
const FORMAT: &str = "tarn-site 1";
/// Bytes after which a new log with the state alone takes the place of the old one.
const MAX_BYTES: u64 = 256 << 20;

/// A line of the log.
#[derive(Debug, Serialize, Deserialize)]
enum ControllerRecord {
    /// All that was known, in MessagePack with the fields' names, as hexadecimal digits: only the first line is one. A field that
    /// an older version did not know has its default.
    State(String),
    /// Something happened.
    At(Time, SiteServiceEvent),
}

/// The log, open for append.
pub(super) struct ControllerLog {
    path: PathBuf,
    writer: LineWriter,
    max: u64,
}

impl ControllerLog {
    /// Plays the log in a state folder, and opens it. The caller has the folder's lock.
    pub(super) fn open(state: &Path, config: Config) -> anyhow::Result<(Self, Site)> {
        let path = state.join("site.log");
        let mut site = Site::new(config.clone());
        let mut lines = match LineReader::open(&path, FORMAT) {
            Err(e) if e.is_missing() => {
                let writer = LineWriter::create(&path, FORMAT)?;
                return Ok((Self::over(path, writer), site));
            }
            other => other?,
        };
        let mut actions = Vec::new();
        while let Some(line) = lines.next_line()? {
            let record: ControllerRecord = serde_json::from_slice(line).with_context(|| {
                format!("a line of {} is no record that this version of tarnd knows: start the version that wrote it, or a newer one", path.display())
            })?;
            match record {
                ControllerRecord::State(text) => site = decode(&text)?,
                ControllerRecord::At(now, event) => {
                    site.step(now, event, &mut actions);
                    actions.clear();
                }
            }
        }
        site.configure(config);
        let writer = LineWriter::open_at(&path, lines.good(), FORMAT)?;
        Ok((Self::over(path, writer), site))
    }

    fn over(path: PathBuf, writer: LineWriter) -> Self {
        Self {
            path,
            writer,
            max: MAX_BYTES,
        }
    }

    /// Makes events durable, together.
    pub(super) fn append(&mut self, events: &[(Time, SiteServiceEvent)]) -> anyhow::Result<()> {
        let line = |(now, event): &(Time, SiteServiceEvent)| {
            serde_json::to_vec(&ControllerRecord::At(*now, event.clone()))
        };
        let lines: Result<Vec<_>, _> = events.iter().map(line).collect();
        let lines = lines.context("an event cannot be written")?;
        let written = self.writer.append(lines.iter().map(Vec::as_slice));
        written.with_context(|| format!("cannot write {}", self.path.display()))
    }

    /// Begins a new log with the state alone when this one has become long.
    pub(super) fn shorten(&mut self, site: &Site) -> anyhow::Result<()> {
        if self.writer.len() < self.max {
            return Ok(());
        }
        let fresh = self.path.with_extension("new");
        match std::fs::remove_file(&fresh) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(e).with_context(|| format!("cannot remove {}", fresh.display()));
            }
            _ => {}
        }
        let record = serde_json::to_vec(&ControllerRecord::State(encode(site)?))?;
        let mut writer = LineWriter::create(&fresh, FORMAT)?;
        writer
            .append([record.as_slice()])
            .and_then(|()| std::fs::rename(&fresh, &self.path))
            .and_then(|()| sync_folder(self.path.parent().unwrap_or(Path::new("."))))
            .with_context(|| format!("cannot write {}", self.path.display()))?;
        self.max = MAX_BYTES.max(2 * writer.len());
        self.writer = writer;
        Ok(())
    }
}

fn encode(site: &Site) -> anyhow::Result<String> {
    let bytes = rmp_serde::to_vec_named(site).context("the state cannot be written")?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

fn decode(text: &str) -> anyhow::Result<Site> {
    let digits = text.as_bytes().chunks(2);
    let bytes: Option<Vec<u8>> = digits
        .map(|two| u8::from_str_radix(std::str::from_utf8(two).ok()?, 16).ok())
        .collect();
    let Some(bytes) = bytes else {
        bail!("the log's state is no hexadecimal number");
    };
    rmp_serde::from_slice(&bytes).context(
        "the log's state is of a newer version of tarnd: start the version that wrote it, or a newer one",
    )
}

/// The next term, durable before it is used. The caller has the folder's lock.
pub(super) fn next_epoch(state: &Path, known: Epoch) -> anyhow::Result<Epoch> {
    let path = state.join("epoch");
    let text = match std::fs::read_to_string(&path) {
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => "0".into(),
        other => other.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let last: Epoch = text.trim().parse().with_context(|| {
        format!(
            "{} holds no number; write a higher one than any node has seen into it",
            path.display()
        )
    })?;
    let next = last.max(known) + 1;
    let fresh = state.join("epoch.new");
    let write = || {
        let mut file = std::fs::File::create(&fresh)?;
        std::io::Write::write_all(&mut file, format!("{next}\n").as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&fresh, &path)?;
        sync_folder(state)
    };
    write().with_context(|| format!("cannot write {}", path.display()))?;
    Ok(next)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_proto::site::StoreCapacity;

    fn opened(node: &str) -> SiteServiceEvent {
        SiteServiceEvent::Opened {
            stores: Vec::new(),
            node: node.into(),
            capacity: StoreCapacity {
                root: "/scm/tarn".into(),
                bytes: 1 << 30,
                free: 1 << 30,
                persistent: false,
            },
            holds: Vec::new(),
            partial: Vec::new(),
            jobs: Vec::new(),
        }
    }

    #[test]
    fn what_was_logged_is_known_again_also_after_the_log_was_shortened() {
        let folder = tempfile::tempdir().unwrap();
        let (mut log, mut site) = ControllerLog::open(folder.path(), Config::default()).unwrap();
        for at in 1..50 {
            let event = opened(&format!("n{at}"));
            log.append(&[(at, event.clone())]).unwrap();
            site.step(at, event, &mut Vec::new());
            if at == 25 {
                log.max = 0;
                log.shorten(&site).unwrap();
            }
        }
        drop(log);
        let (_, again) = ControllerLog::open(folder.path(), Config::default()).unwrap();
        assert_eq!(format!("{again:?}"), format!("{site:?}"));
        assert_eq!(again.nodes().count(), 49);
    }

    /// The log leaves out fields that a workflow does not set.
    #[test]
    fn a_log_is_shortened_while_jobs_arrive() {
        use tarn_proto::site::{ControllerRequest, Stage, Staging};
        let folder = tempfile::tempdir().unwrap();
        let (mut log, mut site) = ControllerLog::open(folder.path(), Config::default()).unwrap();
        let submitted = serde_json::json!({
            "user": 1000, "group": 1000, "workflow": {
                "name": "w", "external": null, "folder": "/", "steps": [],
                "data": [{
                    "name": "x", "source": "/x", "dest": null, "size": null, "scatter": null,
                    "keep": "until-consumed", "copies": 1, "on_failure": "discard", "tier": null,
                    "partition": "whole",
                }],
            },
        });
        let submitted = serde_json::from_value(submitted).unwrap();
        let stage = Stage::Setup(Box::new(submitted));
        let event = SiteServiceEvent::Requested(tarn_site::SiteRequest {
            token: 1,
            user: 0,
            groups: vec![0],
            trusted: true,
            ask: ControllerRequest::Stage(Staging { job: 1, stage }),
        });
        log.append(&[(1, event.clone())]).unwrap();
        site.step(1, event, &mut Vec::new());
        assert!(site.is_arriving());
        log.max = 0;
        log.shorten(&site).unwrap();
        drop(log);
        let (_, again) = ControllerLog::open(folder.path(), Config::default()).unwrap();
        assert_eq!(format!("{again:?}"), format!("{site:?}"));
    }

    /// By the version before there was encrypted data: with two nodes, a job that was taken in, and one that has just come.
    const OLDER: &str = include_str!("log-of-an-older-version.txt");

    #[test]
    fn what_an_older_version_knew_is_known() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("site.log"), OLDER).unwrap();
        let (mut log, site) = ControllerLog::open(folder.path(), Config::default()).unwrap();
        let text = format!("{site:?}");
        for known in ["\"n2\"", "\"alices\"", "is_sealed: false", "arriving: {2"] {
            assert!(text.contains(known), "{known}: {text}");
        }
        // It continues as this version's.
        log.append(&[(9, opened("n3"))]).unwrap();
        drop(log);
        let (_, again) = ControllerLog::open(folder.path(), Config::default()).unwrap();
        assert_eq!(again.nodes().count(), 3);
    }

    /// By the first version that knew several stores of a node: with a node of two, and a part on its way between them.
    const WITH_STORES: &str = include_str!("log-with-stores.txt");

    #[test]
    fn what_is_on_its_way_between_stores_is_known() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("site.log"), WITH_STORES).unwrap();
        let (mut log, site) = ControllerLog::open(folder.path(), Config::default()).unwrap();
        let text = format!("{site:?}");
        for known in [
            "PartMigration { from: \"pmem\", to: \"nvme\"",
            "name: \"nvme\"",
        ] {
            assert!(text.contains(known), "{known}: {text}");
        }
        // Also after the log was rewritten.
        log.max = 0;
        log.shorten(&site).unwrap();
        drop(log);
        let (_, again) = ControllerLog::open(folder.path(), Config::default()).unwrap();
        assert_eq!(format!("{again:?}"), text);
    }

    #[test]
    fn a_torn_line_is_cut_off_and_a_strange_one_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("site.log");
        let (mut log, _) = ControllerLog::open(folder.path(), Config::default()).unwrap();
        log.append(&[(1, opened("n1"))]).unwrap();
        let good = std::fs::metadata(&path).unwrap().len();
        log.append(&[(2, opened("n2"))]).unwrap();
        drop(log);
        let whole = std::fs::read(&path).unwrap();
        for cut in good as usize + 1..whole.len() - 1 {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let (_, site) = ControllerLog::open(folder.path(), Config::default()).unwrap();
            assert_eq!(site.nodes().count(), 1, "{cut}");
        }
    }

    #[test]
    fn every_beginning_has_a_term_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(next_epoch(folder.path(), 0).unwrap(), 1);
        assert_eq!(next_epoch(folder.path(), 0).unwrap(), 2);
        assert_eq!(next_epoch(folder.path(), 7).unwrap(), 8);
        std::fs::write(folder.path().join("epoch"), "x").unwrap();
        assert!(next_epoch(folder.path(), 9).is_err());
    }
}
