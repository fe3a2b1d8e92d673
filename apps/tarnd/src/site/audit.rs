//! The audit log: the users' orders on this node, and the refused ones. Nobody can fill it, or drown the entries of others.

use anyhow::Context;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};
use tarn_proto::site::Uid;
use tarn_types::line::plain;

/// Lines about one user, and about all strangers of one address: so many at once, and then one in so long.
const OF_USER: (u32, Duration) = (5_000, Duration::from_millis(20));
const OF_STRANGERS: (u32, Duration) = (20, Duration::from_secs(10));
/// Addresses that are told apart.
const MAX_ADDRESSES: usize = 256;

/// The subject of lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum AuditSubject {
    User(Option<Uid>),
    /// A client that has not proven who it is; `None` for those of many addresses.
    Unproven(Option<IpAddr>),
}

/// How many more lines there may be.
#[derive(Debug)]
struct Allowance {
    left: u32,
    since: Instant,
    /// Lines that were left out since the last one.
    left_out: u64,
}

impl Allowance {
    /// Takes one; the lines that were left out before it.
    fn take(&mut self, (most, every): (u32, Duration), now: Instant) -> Option<u64> {
        let more = now.saturating_duration_since(self.since).as_nanos() / every.as_nanos().max(1);
        let more = u32::try_from(more).unwrap_or(u32::MAX);
        if more > 0 {
            self.left = self.left.saturating_add(more).min(most);
            self.since = now;
        }
        if self.left == 0 {
            self.left_out += 1;
            return None;
        }
        self.left -= 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// The destination of audit records beside the log.
pub(super) struct Audit {
    file: Option<Mutex<File>>,
    allowances: Mutex<BTreeMap<AuditSubject, Allowance>>,
}

impl Audit {
    /// Opens the file for append, if there is one.
    pub(super) fn open(path: Option<&Path>) -> anyhow::Result<Self> {
        let open = |path: &Path| {
            let mut options = OpenOptions::new();
            let file = options.append(true).create(true).mode(0o600).open(path);
            file.with_context(|| format!("cannot open {}", path.display()))
        };
        Ok(Self {
            file: path.map(open).transpose()?.map(Mutex::new),
            allowances: Mutex::default(),
        })
    }

    /// Something was done for a user.
    pub(super) fn done(&self, user: Uid, what: &str) {
        if let Some(left_out) = self.take_allowance(AuditSubject::User(Some(user))) {
            tracing::debug!(user, "done: {}", plain(what));
            self.write(Some(user), (what, "done"), left_out);
        }
    }

    /// Something failed, or was refused.
    pub(super) fn refused(&self, user: Option<Uid>, what: &str, why: &str) {
        if let Some(left_out) = self.take_allowance(AuditSubject::User(user)) {
            tracing::warn!(user, "refused: {}: {}", plain(what), plain(why));
            self.write(user, (what, why), left_out);
        }
    }

    /// A client that has not proven who it is was refused.
    pub(super) fn turned_away(&self, from: IpAddr, what: &str, why: &str) {
        if let Some(left_out) = self.take_allowance(AuditSubject::Unproven(Some(from))) {
            tracing::warn!("refused: {what}: {from}: {}", plain(why));
            self.write(None, (what, &format!("{from}: {why}")), left_out);
        }
    }

    fn take_allowance(&self, mut about: AuditSubject) -> Option<u64> {
        let mut all = self
            .allowances
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let limit = match about {
            AuditSubject::User(_) => OF_USER,
            AuditSubject::Unproven(_) => {
                let is_known = all.contains_key(&about);
                let strangers = all
                    .keys()
                    .filter(|a| matches!(a, AuditSubject::Unproven(_)));
                if !is_known && strangers.count() >= MAX_ADDRESSES {
                    about = AuditSubject::Unproven(None);
                }
                OF_STRANGERS
            }
        };
        let now = Instant::now();
        let fresh = || Allowance {
            left: limit.0,
            since: now,
            left_out: 0,
        };
        all.entry(about).or_insert_with(fresh).take(limit, now)
    }

    fn write(&self, user: Option<Uid>, (what, result): (&str, &str), left_out: u64) {
        let Some(file) = &self.file else {
            return;
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let seconds = now.map_or(0.0, |d| d.as_secs_f64());
        let mut line =
            json!({"at": seconds, "user": user, "what": plain(what), "result": plain(result)});
        if left_out > 0 {
            line["left_out"] = left_out.into();
        }
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(e) = writeln!(file, "{line}") {
            tracing::error!("the audit log cannot be written: {e}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_lines_at_once_and_then_one_now_and_then() {
        let now = Instant::now();
        let limit = (2, Duration::from_secs(10));
        let mut some = Allowance {
            left: limit.0,
            since: now,
            left_out: 0,
        };
        let mut at = |seconds| some.take(limit, now + Duration::from_secs(seconds));
        assert_eq!([at(0), at(1), at(2), at(3)], [Some(0), Some(0), None, None]);
        assert_eq!([at(10), at(11)], [Some(2), None]);
        // A long time without any gives back no more than there was.
        assert_eq!([at(500), at(500), at(500)], [Some(1), Some(0), None]);
    }

    #[test]
    fn one_users_lines_take_nothing_of_anothers() {
        let audit = Audit::open(None).unwrap();
        let loud = AuditSubject::User(Some(1));
        while audit.take_allowance(loud).is_some() {}
        assert_eq!(audit.take_allowance(AuditSubject::User(Some(2))), Some(0));
        for last in 0..u16::MAX {
            let from = IpAddr::from([10, 0, (last >> 8) as u8, last as u8]);
            audit.take_allowance(AuditSubject::Unproven(Some(from)));
        }
        assert!(audit.allowances.lock().unwrap().len() <= MAX_ADDRESSES + 3);
    }
}
