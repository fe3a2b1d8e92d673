//! Dataspaces: their content, their limits, the rights of users.

use crate::{Config, TaskSize};
use std::collections::BTreeMap;
use tarn_proto::local::{Access, Code, RequestError, SpaceInfo, SpaceSpec, UserId};
use tarn_types::units::{Bytes, Nanos, SECOND, Time};

/// The time for which the result of a survey counts if nothing newer is known.
const BELIEVED: Nanos = 10 * SECOND;
/// A folder that could not be read is looked at again after so long, if somebody needs it.
const RETRIED: Nanos = 2 * SECOND;
/// The rights of the managers.
const ALL: Access = Access {
    read: true,
    write: true,
    manage: true,
};

/// Bytes in a space: settled and reserved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct SpaceUsage {
    pub(crate) used: u64,
    pub(crate) reserved: u64,
}

/// How a reservation ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Settled {
    /// Bytes that were reserved.
    pub(crate) reserved: u64,
    /// Bytes that came.
    pub(crate) added: u64,
    /// Bytes that went.
    pub(crate) gone: u64,
}

impl SpaceUsage {
    /// Capped: the used bytes are as many as surveys and file systems report.
    pub(crate) fn sum(self) -> u64 {
        self.used.saturating_add(self.reserved)
    }

    /// Whether so many bytes more stay within a limit, and within 64 bits.
    pub(crate) fn fits(self, bytes: u64, limit: u64) -> bool {
        let sum = self.used.checked_add(self.reserved);
        let sum = sum.and_then(|sum| sum.checked_add(bytes));
        sum.is_some_and(|sum| sum <= limit)
    }

    pub(crate) fn reserve(&mut self, bytes: u64) {
        let sum = self.reserved.checked_add(bytes);
        // The reserved bytes have fitted into a capacity.
        self.reserved = sum.expect("reservations are within a capacity");
    }

    /// Ends a reservation that was made. The used bytes are an estimate between surveys, as programs add and remove
    /// files too: they are cut at zero.
    pub(crate) fn settle(&mut self, settled: Settled) {
        let Settled {
            reserved,
            added,
            gone,
        } = settled;
        let before = self.reserved;
        assert!(
            before >= reserved,
            "{reserved} bytes were released, and {before} were reserved"
        );
        self.reserved = before - reserved;
        self.used = self.used.saturating_add(added).saturating_sub(gone);
    }
}

/// A bound of the bytes in a space, or of a user's bytes there.
struct SpaceLimit {
    bytes: u64,
    /// The usage that counts against it.
    usage: SpaceUsage,
    /// Tasks are to remove something that counts against it.
    is_being_freed: bool,
    /// The error where it can never be kept, and how its message calls it.
    code: Code,
    what: &'static str,
    /// The obstacle until it can be kept.
    obstacle: StartObstacle,
}

impl SpaceLimit {
    /// Whether so many bytes more fit; if not, the obstacle for a task that needs them.
    fn check(self, space: &str, bytes: u64, may_be_stale: bool) -> Result<(), StartObstacle> {
        if self.usage.fits(bytes, self.bytes) {
            return Ok(());
        }
        let never = bytes > self.bytes;
        if !never && (self.usage.reserved > 0 || self.is_being_freed) {
            return Err(self.obstacle);
        }
        if !never && may_be_stale {
            return Err(StartObstacle::Survey);
        }
        let text = format!(
            "{} are needed, but {} dataspace `{space}` is {}, of which {} are used; remove something there, or choose another place",
            Bytes(bytes),
            self.what,
            Bytes(self.bytes),
            Bytes(self.usage.sum())
        );
        Err(StartObstacle::Never(RequestError::new(self.code, text)))
    }
}

/// A dataspace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) spec: SpaceSpec,
    /// Given on the command line: not in the journal.
    pub(crate) fixed: bool,
    /// Tasks that name it and have not ended.
    pub(crate) tasks: u32,
    pub(crate) all: SpaceUsage,
    pub(crate) users: BTreeMap<UserId, SpaceUsage>,
    /// Tasks, queued or under way, that will free something here, by user.
    pub(crate) freeing: BTreeMap<UserId, u32>,
    /// When its content was last known from a survey.
    surveyed: Option<Time>,
    pub(crate) surveying: bool,
    /// Whether anything was settled since the last survey began.
    touched: bool,
    /// Bytes that came since the last survey began: it may have missed them.
    came: u64,
    /// When the last survey ended, believed or not.
    looked: Option<Time>,
    /// Since when it cannot be used, and why.
    broken: Option<(Time, RequestError)>,
}

/// The obstacle to the start of a task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StartObstacle {
    /// The content is not known (any more): a survey is needed.
    Survey,
    /// Space will come.
    Space,
    /// Space under this user's quota will come.
    Quota,
    /// It never fits, or nothing that could make space is known.
    Never(RequestError),
}

impl Space {
    pub(crate) fn new(spec: SpaceSpec, fixed: bool) -> Self {
        Self {
            spec,
            fixed,
            tasks: 0,
            all: SpaceUsage::default(),
            users: BTreeMap::new(),
            freeing: BTreeMap::new(),
            surveyed: None,
            surveying: false,
            touched: false,
            came: 0,
            looked: None,
            broken: None,
        }
    }

    pub(crate) fn slots(&self, config: &Config) -> u32 {
        match self.spec.slots {
            0 => config.space_slots,
            slots => slots,
        }
    }

    pub(crate) fn access(&self, config: &Config, user: UserId) -> Access {
        if !config.bound && (user == 0 || user == config.owner) {
            return ALL;
        }
        let own = self.spec.users.iter().find(|(uid, _)| *uid == user);
        own.map_or(self.spec.everyone, |(_, access)| *access)
    }

    /// Whether `size` fits for a user now.
    pub(crate) fn fits(
        &self,
        name: &str,
        user: UserId,
        size: TaskSize,
        now: Time,
    ) -> Result<(), StartObstacle> {
        if let Some((since, why)) = &self.broken {
            let again = self.surveying || now.saturating_sub(*since) > RETRIED;
            return Err(match again {
                true => StartObstacle::Survey,
                false => StartObstacle::Never(why.clone()),
            });
        }
        let Some(surveyed) = self.surveyed else {
            return Err(StartObstacle::Survey);
        };
        let may_be_stale =
            self.surveying || self.touched || now.saturating_sub(surveyed) > BELIEVED;
        let own = self.users.get(&user).copied().unwrap_or_default();
        let limits = [
            SpaceLimit {
                bytes: self.spec.quota,
                usage: own,
                is_being_freed: self.freeing.contains_key(&user),
                code: Code::Quota,
                what: "the user's quota in",
                obstacle: StartObstacle::Quota,
            },
            SpaceLimit {
                bytes: self.spec.capacity,
                usage: self.all,
                is_being_freed: !self.freeing.is_empty(),
                code: Code::NoSpace,
                what: "the capacity of",
                obstacle: StartObstacle::Space,
            },
        ];
        // Without a quota of its own, the capacity is lacking.
        let limits = limits.into_iter().skip(usize::from(self.spec.quota == 0));
        let mut checks = limits.map(|limit| limit.check(name, size.space, may_be_stale));
        checks.try_for_each(|check| check)
    }

    /// Whether a survey could find something new.
    pub(crate) fn is_unknown(&self, now: Time) -> bool {
        let old = |at: Time| now.saturating_sub(at) > BELIEVED;
        self.surveying || self.looked.is_none_or(old)
    }

    pub(crate) fn reserve(&mut self, user: UserId, bytes: u64) {
        self.all.reserve(bytes);
        self.users.entry(user).or_default().reserve(bytes);
    }

    /// Ends a reservation of a user.
    pub(crate) fn settle(&mut self, user: UserId, settled: Settled) {
        // As reported by file systems; only an upper bound.
        self.came = self.came.saturating_add(settled.added);
        self.touched |= settled != Settled::default();
        let own = self.users.entry(user).or_default();
        own.settle(settled);
        if *own == SpaceUsage::default() {
            self.users.remove(&user);
        }
        self.all.settle(settled);
    }

    pub(crate) fn survey_begins(&mut self) {
        self.surveying = true;
        self.touched = false;
        self.came = 0;
    }

    /// Takes over the result of a survey, unless something was settled meanwhile: it may or may not have seen that.
    /// Returns the most that can be there now.
    pub(crate) fn survey_ends(
        &mut self,
        now: Time,
        found: Result<BTreeMap<UserId, u64>, RequestError>,
    ) -> Option<u64> {
        self.surveying = false;
        self.looked = Some(now);
        let found = match found {
            Ok(found) => found,
            Err(why) => {
                self.broken = Some((now, why));
                return None;
            }
        };
        self.broken = None;
        let sum = found.values().fold(0u64, |sum, n| sum.saturating_add(*n));
        let most = Some(sum.saturating_add(self.came));
        if self.touched {
            return most;
        }
        self.surveyed = Some(now);
        self.all.used = sum;
        for usage in self.users.values_mut() {
            usage.used = 0;
        }
        for (user, used) in found {
            self.users.entry(user).or_default().used = used;
        }
        self.users
            .retain(|_, usage| *usage != SpaceUsage::default());
        most
    }

    pub(crate) fn info(&self, name: &str, config: &Config, user: UserId) -> SpaceInfo {
        SpaceInfo {
            name: name.into(),
            root: self.spec.root.clone(),
            capacity: self.spec.capacity,
            quota: self.spec.quota,
            used: self.all.used,
            reserved: self.all.reserved,
            own: self.users.get(&user).map_or(0, |u| u.used),
            access: self.access(config, user),
        }
    }
}
