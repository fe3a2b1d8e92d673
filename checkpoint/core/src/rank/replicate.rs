//! Versions on other nodes too, while the program computes: copies of all of a rank's part, or the parity of a set of ranks. The
//! keeper fetches it, verifies each chunk, and publishes it in an arena of its own; the owner keeps the version until all have
//! done so.

use super::buddy::RankTopology;
use super::destage::{self, RUN};
use super::files;
use super::parity::{Parity, PartImage};
use super::source::{RemoteMedium, VersionSource};
use super::{RECENT, RankContext, Replicate, lock, publish, space, whole};
use crate::arena::{Arena, ArenaHeader, PersistenceLevel, VersionId};
use crate::fault::{CheckpointError, CheckpointErrorCode};
use crate::layout;
use crate::manifest::{CHUNK, PieceLocation, RankManifest};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tarn_ports::{Medium, MediumWindow, RankProgress, Ranks, RanksError, ReadableMedium, Vault};
use tarn_types::crc::crc;

/// How long it is waited at once for the next version: it may be the end.
const LOOK: Duration = Duration::from_millis(100);
/// How often an arena is looked at that is being written.
const OPENS: usize = 8;
/// Versions that are kept of others: the next is written beside the last.
const KEPT: usize = 1;

/// Arenas for versions of others, by name.
type ReplicaArenas<A> = BTreeMap<String, (Arena, A)>;

/// A thing that a rank keeps for others.
enum Ward {
    /// All that a rank has.
    Copy(u32),
    /// The parity of the others of its set.
    Parity(Vec<u32>),
}

impl<T: Vault, M: Vault> RankContext<T, M> {
    /// Every so-many-eth version that all ranks have on their tiers is kept for others, one after the other, until the end.
    pub(super) fn replicate(&self) {
        (self.options.enter)();
        let ranks = &*self.ranks;
        let wards = wards(
            ranks,
            &self.nodes,
            self.options.replicate,
            self.options.same_node,
        );
        let every = self.options.replicate_every.max(1);
        let mut kept = ReplicaArenas::new();
        let mut number = 0;
        while !self.ended.load(Ordering::Acquire) {
            // The next one takes the place of the one before, which must not be missed by then: all keep the last.
            let least = RankProgress {
                durable: number + every,
                replicated: number,
                ..RankProgress::default()
            };
            match ranks.wait(least, LOOK) {
                Ok(()) => number += every,
                Err(RanksError::TimedOut { .. }) => continue,
                // Nobody continues without the rank that is gone.
                Err(_) => return,
            }
            let id = VersionId {
                generation: self.world.start.generation,
                number,
            };
            let progress = ranks.common_progress();
            let good = VersionId {
                number: self.good(progress),
                ..id
            };
            let mut keep = |wards: &Vec<Ward>| {
                let all = wards
                    .iter()
                    .map(|ward| self.keep(ward, id, good, &mut kept));
                // Each ward that can be kept is kept, whatever becomes of the others.
                all.fold(Ok(()), Result::and)
            };
            let done = match (&wards, progress.lacks(number)) {
                (Err(few), _) => Err(few.clone()),
                (_, true) => Err(CheckpointError::new(
                    CheckpointErrorCode::NotFound,
                    "not all ranks have it",
                )),
                (Ok(wards), false) => keep(wards),
            };
            let mut stats = self.stats();
            stats.replicated += u64::from(done.is_ok());
            stats.bare += u64::from(done.is_err());
            drop(stats);
            let is_bare = done.is_err();
            // A rank that sees the progress looks for the reason.
            if let Err(fault) = done {
                *lock(&self.why_bare) = Some((number, fault.text));
            }
            self.update_progress(|reached| {
                let bit = 1 << (number / every % 64);
                reached.replicated = number;
                reached.bare &= !bit;
                if is_bare {
                    reached.bare |= bit;
                }
            });
        }
    }

    /// Whether a version of this start is to be kept by others.
    pub(super) fn is_replicated(&self, number: u64) -> bool {
        let every = self.options.replicate_every.max(1);
        self.options.replicate != Replicate::None && number.is_multiple_of(every)
    }

    /// The number of the newest version that is on other nodes, each part of it; 0 if there is none.
    pub(super) fn good(&self, progress: RankProgress) -> u64 {
        let every = self.options.replicate_every.max(1);
        let mut all = (1..=progress.replicated / every)
            .rev()
            .take(RECENT as usize);
        let good = all.find(|number| progress.bare & 1 << (number % 64) == 0);
        good.map_or(0, |number| number * every)
    }

    /// Fetches a version for a ward, and publishes it beside the newest that all have.
    fn keep(
        &self,
        ward: &Ward,
        id: VersionId,
        good: VersionId,
        kept: &mut ReplicaArenas<T::Medium>,
    ) -> Result<(), CheckpointError> {
        match ward {
            Ward::Copy(of) => {
                let (source, manifest) = self.part(*of, id)?;
                let name = files::copy(self.world.start.generation, *of);
                self.store((name, *of), id, good, manifest, kept, |at, bytes, sums| {
                    Ok(source.read_chunks(at, bytes, CHUNK as usize)? == *sums)
                })
            }
            Ward::Parity(set) => {
                let me = self.ranks.rank();
                let parts: Vec<_> = set
                    .iter()
                    .map(|of| self.part(*of, id))
                    .collect::<Result<_, _>>()?;
                let images = parts
                    .into_iter()
                    .map(|(source, of)| PartImage::new(source, of))
                    .collect();
                let mut parity = Parity::new(set, me, images)?;
                let name = files::parity(self.world.start.generation, me);
                self.store(
                    (name, me),
                    id,
                    good,
                    parity.manifest(),
                    kept,
                    |at, bytes, sums| {
                        let chunks = (at..).step_by(CHUNK as usize);
                        let chunks = chunks.zip(bytes.chunks_mut(CHUNK as usize));
                        for ((at, chunk), sum) in chunks.zip(sums) {
                            parity.read(at, chunk)?;
                            *sum = crc(chunk);
                        }
                        Ok(true)
                    },
                )
            }
        }
    }

    /// The place of a rank's part of a version of this start, and its manifest.
    fn part(
        &self,
        of: u32,
        id: VersionId,
    ) -> Result<(VersionSource<'_, T>, RankManifest), CheckpointError> {
        let ranks = &*self.ranks;
        let name = self.world.arena_of(ranks, of);
        let source = match ranks.node(of) == ranks.node(ranks.rank()) {
            true => VersionSource::Near(self.tier.see(&name)?),
            // Only its rank knows its size now: a place outside is refused when it is read.
            false => VersionSource::Far(RemoteMedium {
                ranks,
                from: of,
                name: name.into(),
                size: i64::MAX as u64,
                timeout: self.options.timeout,
            }),
        };
        // Its rank may write a manifest again while it is read.
        for _ in 0..OPENS {
            let arena = Arena::open(&source)?;
            let mut versions = arena.versions().iter();
            let version = versions.find(|v| v.id == id && v.manifest.is_durable());
            if let Some(manifest) = version.map(|v| v.manifest.clone()) {
                return Ok((source, manifest));
            }
        }
        let text = format!("rank {of} has no version {id}");
        Err(CheckpointError::new(CheckpointErrorCode::NotFound, text))
    }

    /// Keeps a version in an arena of its own, filled as by [`destage::copy`].
    fn store(
        &self,
        (name, of): (String, u32),
        id: VersionId,
        good: VersionId,
        mut manifest: RankManifest,
        kept: &mut ReplicaArenas<T::Medium>,
        mut chunks: impl FnMut(u64, &mut [u8], &mut [u64]) -> Result<bool, CheckpointError>,
    ) -> Result<(), CheckpointError> {
        let sizes: Vec<u64> = manifest.objects.iter().map(|o| o.size()).collect();
        let header = ArenaHeader {
            identity: self.options.identity ^ u128::from(of + 1) << 96,
            run: self.options.run.clone(),
            start: self.world.start,
            rank: of,
            ranks: self.ranks.ranks(),
        };
        // After an error its content is not known: it is made again.
        let (mut arena, mut medium) = match kept.remove(&name) {
            Some(open) => open,
            None => made(&*self.tier, &name, &sizes, header)?,
        };
        if arena.versions().iter().any(|v| v.id != good) {
            publish(&mut arena, &mut medium, None, |v| v.id == good)?;
        }
        let until_end =
            |at, bytes: &mut [u8], sums: &mut [u64]| match self.ended.load(Ordering::Acquire) {
                true => Err(CheckpointError::new(
                    CheckpointErrorCode::Lost,
                    "the program ends",
                )),
                false => chunks(at, bytes, sums),
            };
        fill(&mut arena, &mut medium, &sizes, &mut manifest, until_end)?;
        let new = (id, PersistenceLevel::Durable, manifest);
        publish(&mut arena, &mut medium, Some(new), |_| true)?;
        kept.insert(name, (arena, medium));
        Ok(())
    }

    /// How far this rank is, changed and reported to all.
    pub(super) fn update_progress(&self, change: impl FnOnce(&mut RankProgress)) {
        let mut reached = lock(&self.reached);
        change(&mut reached);
        self.ranks.report_progress(*reached);
    }
}

/// An empty arena for objects of these sizes.
pub(super) fn made<T: Vault>(
    tier: &T,
    name: &str,
    sizes: &[u64],
    header: ArenaHeader,
) -> Result<(Arena, T::Medium), CheckpointError> {
    let size = layout::slot(sizes.iter().copied())
        .and_then(|(_, slot)| space::arena_size(slot, sizes, KEPT));
    let size = size.ok_or_else(space::too_large)?;
    let mut made = None;
    let medium = tier.create(name, size, &mut |medium| {
        made = Some(Arena::format(&mut whole(medium)?, header.clone()));
        Ok(())
    })?;
    Ok((made.ok_or_else(space::not_open)??, medium))
}

/// Fills places in an arena with the content of a manifest, which leads to them then.
pub(super) fn fill<A: Medium>(
    arena: &mut Arena,
    medium: &mut A,
    sizes: &[u64],
    manifest: &mut RankManifest,
    chunks: impl FnMut(u64, &mut [u8], &mut [u64]) -> Result<bool, CheckpointError>,
) -> Result<(), CheckpointError> {
    let places = super::places(arena, medium, sizes)?;
    // As for staged pieces: the manifest has the places elsewhere, from which they are copied.
    for piece in manifest.objects.iter_mut().flat_map(|o| &mut o.pieces) {
        if let PieceLocation::Arena(at) = piece.place {
            piece.place = PieceLocation::Staged(at);
        }
    }
    let mut window = whole(medium)?;
    destage::copy(manifest, &places, &mut window, RUN, chunks)?;
    Ok(window.persist()?)
}

/// The things that this rank keeps for others.
fn wards(
    ranks: &dyn Ranks,
    nodes: &RankTopology,
    how: Replicate,
    same_node: bool,
) -> Result<Vec<Ward>, CheckpointError> {
    let me = ranks.rank();
    match how {
        Replicate::None => Ok(Vec::new()),
        Replicate::Copies(copies) => {
            let keepers = |of| keepers(nodes, of, copies, same_node);
            // A rank that has too few reports it itself.
            if keepers(me).count() < copies {
                return Err(few(copies));
            }
            let all = 0..ranks.ranks();
            let wards = all.filter(|of| keepers(*of).any(|by| by == me));
            Ok(wards.map(Ward::Copy).collect())
        }
        Replicate::Parity(size) => {
            let sets = sets(ranks, nodes, size, same_node);
            let own = sets.into_iter().find(|set| set.contains(&me));
            let own = own.filter(|set| set.len() > 1).ok_or_else(|| few(1))?;
            Ok(vec![Ward::Parity(own)])
        }
    }
}

fn few(wanted: usize) -> CheckpointError {
    let text = format!(
        "versions are to be on {wanted} other nodes, and there are not as many: start ranks on more nodes"
    );
    CheckpointError::new(CheckpointErrorCode::Unsupported, text)
}

/// The keepers of copies of all that a rank has: ranks of as many other nodes.
fn keepers(
    nodes: &RankTopology,
    of: u32,
    copies: usize,
    same_node: bool,
) -> impl Iterator<Item = u32> {
    let by_node = nodes.from(of, same_node);
    by_node.filter_map(|mut of| of.next()).take(copies)
}

/// Sets of ranks, each on a node of its own (or anywhere, if that will do): the first of all nodes, the second, and so on, divided into
/// sets of about this size. One alone is in the set before. Where buddies are to be far, those of a set are on different switches as far as
/// possible.
fn sets(ranks: &dyn Ranks, nodes: &RankTopology, size: usize, same_node: bool) -> Vec<Vec<u32>> {
    let mut columns: Vec<Vec<u32>> = Vec::new();
    let mut count: BTreeMap<&str, usize> = BTreeMap::new();
    for rank in 0..ranks.ranks() {
        let count = count.entry(ranks.node(rank)).or_default();
        let column = if same_node { 0 } else { *count };
        *count += 1;
        if columns.len() <= column {
            columns.push(Vec::new());
        }
        columns[column].push(rank);
    }
    let mut sets = Vec::new();
    for mut column in columns {
        if nodes.are_far() {
            column.sort_by_key(|rank| nodes.apart(*rank));
        }
        let number = (column.len() / size.max(2)).max(1);
        // As many, or one more.
        for set in 0..number {
            let range = column.len() * set / number..column.len() * (set + 1) / number;
            sets.push(column[range].to_vec());
        }
    }
    sets
}

#[cfg(test)]
mod tests {
    use super::super::Distance;
    use super::*;
    use std::sync::Arc;
    use tarn_ports::RankService;

    /// Nodes by rank, and the switches over each node by its name: `s1.l2/node`.
    struct EmulatedRanks(Vec<String>);

    impl EmulatedRanks {
        fn on(nodes: &[&str]) -> Self {
            Self(nodes.iter().map(|node| (*node).into()).collect())
        }
    }

    fn near(ranks: &EmulatedRanks) -> RankTopology {
        RankTopology::of(ranks, Distance::Near)
    }

    impl Ranks for EmulatedRanks {
        fn rank(&self) -> u32 {
            0
        }
        fn ranks(&self) -> u32 {
            self.0.len() as u32
        }
        fn node(&self, rank: u32) -> &str {
            &self.0[rank as usize]
        }
        fn switches(&self, rank: u32) -> &str {
            let (above, _) = self.node(rank).split_once('/').unwrap_or_default();
            above
        }
        fn serve(&self, _: Arc<dyn RankService>) {}
        fn exchange(&self, _: &[u8], _: Duration) -> Result<Vec<Box<[u8]>>, RanksError> {
            Err(none())
        }
        fn report_progress(&self, _: RankProgress) {}
        fn common_progress(&self) -> RankProgress {
            RankProgress::default()
        }
        fn wait(&self, _: RankProgress, _: Duration) -> Result<(), RanksError> {
            Err(none())
        }
        fn grant(&self, _: u32, _: u64, _: u64, _: Duration) -> Result<String, RanksError> {
            Err(none())
        }
        fn put(&self, _: u32, _: u64, _: u64, _: &[u8], _: Duration) -> Result<u64, RanksError> {
            Err(none())
        }
        fn fetch(
            &self,
            _: u32,
            _: &str,
            _: u64,
            _: &mut [u8],
            _: Duration,
            _: &mut dyn FnMut(&[u8]),
        ) -> Result<(), RanksError> {
            Err(none())
        }
    }

    fn none() -> RanksError {
        RanksError::Invalid("they only have nodes".into())
    }

    #[test]
    fn no_set_has_two_ranks_of_a_node_and_all_are_in_one() {
        let nodes = EmulatedRanks::on(&["a", "a", "b", "b", "c", "c", "d", "e", "f", "g", "h"]);
        for size in 2..9 {
            let sets = sets(&nodes, &near(&nodes), size, false);
            let mut all: Vec<u32> = sets.concat();
            all.sort_unstable();
            assert_eq!(all, (0..11).collect::<Vec<_>>());
            for set in &sets {
                let mut of: Vec<&str> = set.iter().map(|r| nodes.node(*r)).collect();
                of.dedup();
                assert_eq!(of.len(), set.len(), "{sets:?}");
                assert!(set.len() > 1, "{sets:?}");
            }
        }
        assert_eq!(sets(&nodes, &near(&nodes), 4, true).len(), 2);
        // A node with more ranks than others: a rank that is alone has no partner.
        let nodes = EmulatedRanks::on(&["a", "a", "b"]);
        let sets = sets(&nodes, &near(&nodes), 2, false);
        assert_eq!(sets, [vec![0, 2], vec![1]]);
    }

    #[test]
    fn copies_are_on_other_nodes_and_all_keep_as_many() {
        let ranks = EmulatedRanks::on(&["a", "a", "b", "b", "c", "c"]);
        let nodes = near(&ranks);
        let mut kept = [0; 6];
        for of in 0..6 {
            let keepers: Vec<u32> = keepers(&nodes, of, 2, false).collect();
            let mut on: Vec<&str> = keepers.iter().map(|k| ranks.node(*k)).collect();
            on.push(ranks.node(of));
            on.sort_unstable();
            assert_eq!(on, ["a", "b", "c"]);
            keepers.iter().for_each(|k| kept[*k as usize] += 1);
        }
        assert_eq!(kept, [2; 6]);
        assert_eq!(keepers(&nodes, 0, 3, false).count(), 2);
        // The own node comes last, and never the rank itself.
        assert_eq!(keepers(&nodes, 1, 3, true).collect::<Vec<_>>(), [3, 5, 0]);
        assert_eq!((nodes.replicas(1, false), nodes.replicas(1, true)), (2, 3));
        let alone = near(&EmulatedRanks::on(&["a"]));
        assert_eq!((alone.replicas(0, false), alone.replicas(0, true)), (0, 0));
    }

    /// At the greatest number of ranks: a search through all of them for each of them would take too long here.
    #[test]
    fn each_of_16384_ranks_keeps_as_many_copies_as_others_keep_of_its_own() {
        for on_each in [1, 16] {
            let ranks = EmulatedRanks((0..16_384).map(|r| (r / on_each).to_string()).collect());
            let nodes = near(&ranks);
            assert_eq!(nodes.replicas(0, false), 16_384 / on_each - 1);
            for copies in 1..=3 {
                let wards = wards(&ranks, &nodes, Replicate::Copies(copies), false);
                assert_eq!(wards.unwrap().len(), copies);
            }
        }
    }

    /// Fernando 2016, section II: a buddy is one switch away, or two.
    #[test]
    fn buddies_are_below_the_same_switch_or_below_another_one() {
        let of = |ranks: &EmulatedRanks, distance| {
            let nodes = RankTopology::of(ranks, distance);
            let first = |rank| keepers(&nodes, rank, 1, false).next().unwrap();
            (0..ranks.ranks()).map(first).collect::<Vec<_>>()
        };
        let even = ["s1/a", "s1/b", "s1/c", "s2/d", "s2/e", "s2/f"];
        let even = EmulatedRanks::on(&even);
        assert_eq!(of(&even, Distance::Near), [1, 2, 0, 4, 5, 3]);
        assert_eq!(of(&even, Distance::Far), [3, 4, 5, 0, 1, 2]);
        // A rank that has no other below its switch takes the nearest; those with more below theirs share them.
        let uneven = ["r1.s1/a", "r1.s2/b", "r2.s3/c", "r2.s3/d", "r2.s4/e"];
        let uneven = EmulatedRanks::on(&uneven);
        assert_eq!(of(&uneven, Distance::Near), [1, 0, 3, 2, 2]);
        assert_eq!(of(&uneven, Distance::Far), [2, 4, 0, 0, 1]);
        let nodes = RankTopology::of(&uneven, Distance::Far);
        let all: Vec<u32> = keepers(&nodes, 2, 9, false).collect();
        assert_eq!(all, [0, 1, 4, 3]);
        // Sets for parity: with a switch no set loses two.
        let far = RankTopology::of(&even, Distance::Far);
        let sets = sets(&even, &far, 2, false);
        assert_eq!(sets, [[0, 3], [1, 4], [2, 5]]);
        // If no switches are known, all are alike.
        let plain = EmulatedRanks::on(&["a", "b", "c"]);
        assert_eq!(of(&plain, Distance::Near), of(&plain, Distance::Far));
    }
}
