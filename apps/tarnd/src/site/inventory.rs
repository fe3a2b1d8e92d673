//! The data that all users have here, as a session begins: each one's worker is asked, all at the same time. A user whose worker
//! does not answer soon, or who has more than is reported, is named, and holds up or crowds out nobody else.

use super::pool::{WorkerOrder, WorkerTask};
use super::{SiteNodeService, project};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};
use tarn_munge::{MungeSessionWriter, SessionError};
use tarn_proto::local::RequestError;
use tarn_proto::site::{Gid, Holding, HoldingsChunk, Owner, Part, Report, Uid, Work, WorkResult};

/// How long workers may take to report their holdings, all together, and to wrap others' keys again.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes that are reported of all, and in one message: more is shared out equally.
const MOST: usize = 64 << 20;
const MOST_AT_ONCE: usize = 24 << 20;
/// Things that one piece reports: each takes less than 3 KiB.
const PIECE: usize = 1000;

/// The data that the stores hold.
#[derive(Default)]
pub(super) struct StoreInventory {
    pub(super) holds: Vec<(Uid, Holding)>,
    /// Owners who may have more.
    pub(super) partial: BTreeSet<Owner>,
    /// Keys may be wrapped with an older secret.
    pub(super) is_behind: bool,
}

impl StoreInventory {
    /// Cuts the report about owners who would crowd out others.
    pub(super) fn share_out(&mut self, in_pieces: bool) {
        let most = if in_pieces { MOST } else { MOST_AT_ONCE };
        let owner = |(user, holding): &(Uid, Holding)| {
            let part = holding.held.part();
            part.map_or(Owner::User(*user), |part| part.owner)
        };
        let mut taken: BTreeMap<Owner, usize> = BTreeMap::new();
        for one in &self.holds {
            *taken.entry(owner(one)).or_default() += one.1.weight();
        }
        if taken.values().sum::<usize>() <= most {
            return;
        }
        let share = most / taken.len();
        let mut left: BTreeMap<Owner, usize> = taken.keys().map(|who| (*who, share)).collect();
        let partial = &mut self.partial;
        self.holds.retain(|one| {
            let left = left.entry(owner(one)).or_default();
            let fits = *left >= one.1.weight();
            *left = if fits { *left - one.1.weight() } else { 0 };
            if !fits {
                partial.insert(owner(one));
            }
            fits
        });
    }

    /// Says it piece by piece.
    pub(super) fn send_pieces(self, writer: &mut MungeSessionWriter) -> Result<(), SessionError> {
        let mut holds = self.holds.into_iter().peekable();
        loop {
            let piece: Vec<_> = holds.by_ref().take(PIECE).collect();
            let is_last = holds.peek().is_none();
            let holds = piece;
            writer.send(&HoldingsChunk { holds, is_last })?;
            if is_last {
                return Ok(());
            }
        }
    }
}

impl SiteNodeService {
    /// All that users have here.
    pub(super) fn inventory(&self) -> StoreInventory {
        let mut all = StoreInventory::default();
        let mut projects = project::all(&self.stores);
        let mut projects_of: BTreeMap<Uid, Vec<Gid>> = BTreeMap::new();
        for user in self.pool.users() {
            // A project's data is reported by one of its members who have something here.
            let groups = project::standing(user, self.group_of(user));
            let groups = groups.map(|(_, groups)| groups).unwrap_or_default();
            let (own, others) = projects.into_iter().partition(|gid| groups.contains(gid));
            projects = others;
            projects_of.insert(user, own);
        }
        let works = projects_of
            .iter()
            .map(|(user, own)| (*user, Work::Inventory(own.clone())))
            .collect();
        let mut answers = self.answers(works);
        for (user, own) in projects_of {
            let mut whose = vec![Owner::User(user)];
            whose.extend(own.into_iter().map(Owner::Project));
            let unknown = match answers.remove(&user) {
                Some(Ok(WorkResult::Inventory { holds, partial })) => {
                    all.holds
                        .extend(holds.into_iter().map(|holding| (user, holding)));
                    for owner in &partial {
                        let text = format!(
                            "{owner} has more here than is reported for one owner: the rest is left out"
                        );
                        self.audit.refused(Some(user), "inventory", &text);
                    }
                    partial
                }
                other => {
                    let why = match other {
                        Some(Err(why)) => why.text,
                        Some(Ok(answer)) => format!("it replied {answer:?}"),
                        None => "their worker does not answer".into(),
                    };
                    let text = format!("this user's data here is not known: {why}");
                    self.audit.refused(Some(user), "inventory", &text);
                    all.is_behind = true;
                    whose
                }
            };
            all.partial.extend(unknown);
        }
        if !projects.is_empty() {
            tracing::warn!(
                ?projects,
                "the data of these projects here is not known: none of their members has anything else here"
            );
            all.partial.extend(projects.into_iter().map(Owner::Project));
        }
        self.have_wrapped(&mut all.holds);
        all.is_behind |= !all.partial.is_empty();
        all.is_behind |= all.holds.iter().any(|(_, holding)| holding.is_behind);
        all
    }

    /// Has the members who have made a project's parts wrap its keys with the newest secret: another member cannot.
    fn have_wrapped(&self, all: &mut [(Uid, Holding)]) {
        let mut makers: BTreeMap<Uid, BTreeSet<Part>> = BTreeMap::new();
        for (_, holding) in all.iter().filter(|(_, holding)| holding.is_behind) {
            if let Some(part) = holding.held.part()
                && matches!(part.owner, Owner::Project(_))
                && let Ok(Some(maker)) = project::maker(&self.stores, part)
            {
                makers.entry(maker).or_default().insert(part.clone());
            }
        }
        let works = makers
            .iter()
            .map(|(maker, parts)| (*maker, Work::WrapAnew(parts.iter().cloned().collect())))
            .collect();
        let answers = self.answers(works);
        for (maker, parts) in makers {
            match answers.get(&maker) {
                Some(Ok(_)) => {
                    let is_done = |holding: &Holding| {
                        holding.held.part().is_some_and(|part| parts.contains(part))
                    };
                    let done = all.iter_mut().filter(|(_, holding)| is_done(holding));
                    done.for_each(|(_, holding)| holding.is_behind = false);
                }
                Some(Err(why)) => {
                    tracing::warn!(maker, "keys of projects stay as they are: {why}");
                }
                None => tracing::warn!(
                    maker,
                    "keys of projects stay as they are: their worker does not answer"
                ),
            }
        }
    }

    /// Workers' replies to a request that is no order of the controller's, if they come in time.
    fn answers(&self, works: Vec<(Uid, Work)>) -> BTreeMap<Uid, Result<WorkResult, RequestError>> {
        // No order of a controller has such a number.
        let number = |user: Uid| u64::MAX - u64::from(user);
        let (reports, received) = channel();
        let mut left = works.len();
        for (user, work) in works {
            let task = WorkerTask {
                number: number(user),
                order: WorkerOrder::Work(Box::new(work)),
                about: None,
                reports: reports.clone(),
            };
            self.pool.give(user, self.group_of(user), task);
        }
        drop(reports);
        let until = Instant::now() + TIMEOUT;
        let mut answers = BTreeMap::new();
        while left > 0 {
            let timeout = until.saturating_duration_since(Instant::now());
            let Ok(report) = received.recv_timeout(timeout) else {
                break;
            };
            if let Report::Worked { number, what } = report {
                left -= 1;
                let user = (u64::MAX - number) as Uid;
                let answer = match what {
                    WorkResult::Failed(why) => Err(why),
                    what => Ok(what),
                };
                answers.insert(user, answer);
            }
        }
        answers
    }

    /// The group that a user's folder was made with.
    fn group_of(&self, user: Uid) -> Gid {
        let own = |root: &Path| std::fs::symlink_metadata(root.join(format!("u{user}"))).ok();
        let about = self.stores.roots().find_map(own);
        about.map_or(user, |about| about.gid())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tarn_proto::site::StoreContent;

    #[test]
    fn who_has_too_much_is_cut_and_nobody_else() {
        let of = |user: Uid, version: u32| {
            let part = Part {
                owner: Owner::User(user),
                workflow: "w".into(),
                dataset: "d".into(),
                version,
                part: 0,
            };
            let holding = Holding {
                held: StoreContent::Part(part),
                proof: None,
                stored: 0,
                is_behind: false,
                store: String::new(),
            };
            (user, holding)
        };
        let many = (MOST_AT_ONCE / of(1, 0).1.weight()) as u32 + 1;
        let mut all = StoreInventory {
            holds: (0..many).map(|n| of(1, n)).chain([of(2, 0)]).collect(),
            ..StoreInventory::default()
        };
        all.share_out(true);
        assert!(all.partial.is_empty());
        all.share_out(false);
        assert_eq!(all.partial, BTreeSet::from([Owner::User(1)]));
        assert_eq!(all.holds.last().map(|(user, _)| *user), Some(2));
        assert!(all.holds.len() > many as usize / 3);
    }
}
