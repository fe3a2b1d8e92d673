//! What a program has between its begin and its end.

use crate::environment::{distance, path, switches, text};
use crate::memory::{Element, ObjectMemory};
use crate::settings::{self, invalid};
use crate::transport;
use rustix::thread::CpuSet;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tarn_checkpoint_core::manifest::{MAX_DIMENSIONS, MAX_KEY, MAX_OBJECTS};
use tarn_checkpoint_core::{
    CheckpointError, CheckpointErrorCode, CommitObject, Committed, Empty, MAX_REPLICAS, MAX_SET,
    PersistenceLevel, Rank, RankStats, Replicate, Restorable, Shape, StagingShare, VersionId,
    VersionRequirements,
};
use tarn_dirty_pages::Tracker;
use tarn_media::{Device, Folder, Profile};
use tarn_ports::PowerFail;
use tarn_sys::signals::Blocked;

/// Longest wait for other ranks, unless told otherwise.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Smaller objects are not worth watching.
const WATCHED: usize = 4 << 20;

/// How a program wants it. What is not said is as the environment says, or as it is best.
#[derive(Debug, Clone)]
pub struct Options {
    /// Which rank this is.
    pub rank: u32,
    /// How many there are.
    pub ranks: u32,
    /// Copies of what is staged, each on another node: at most [`MAX_REPLICAS`]; else one if the ranks are on several nodes.
    pub replicas: Option<u32>,
    /// The program's name on this node; else `$TARN_PHX_RUN`, or "phx".
    pub run: Option<String>,
    /// A folder on the persistent tier; else `$TARN_PHX_TIER`.
    pub tier: Option<PathBuf>,
    /// A folder in memory; else `$TARN_PHX_MEMORY`, or /dev/shm.
    pub memory: Option<PathBuf>,
    /// HOST:PORT of rank 0, where ranks are on several nodes; else `$TARN_PHX_MEET`, or all are on this node.
    pub meet: Option<String>,
    /// A file with 64 hexadecimal digits that only this user can read; else `$TARN_PHX_KEY`.
    pub key: Option<PathBuf>,
    /// How bytes go to ranks of other nodes and come back: `tcp`, `libfabric:PROVIDER`, or `libfabric` for the best provider that there is;
    /// else `$TARN_PHX_TRANSPORT`, or `tcp`. Where that cannot be had it is TCP, and the next commit says so.
    pub transport: Option<String>,
    /// A slower persistent tier that is played; else `$TARN_PHX_PROFILE`, or none.
    pub profile: Option<String>,
    /// What is staged; else what is best for this tier.
    pub staging: Option<StagingShare>,
    /// A buddy on the same node will do (for tests).
    pub same_node: bool,
    /// How versions are kept on other nodes too, once they are durable.
    pub replicate: Replicate,
    /// Every so-many-eth of them.
    pub replicate_every: u64,
    /// The longest wait for other ranks.
    pub timeout: Duration,
    /// Whether a thread copies in the background.
    pub helper: bool,
    /// Processors that it may use; none: those of the program.
    pub processors: Vec<usize>,
    /// What was copied ahead is compared at the commit: finds writes that nobody sees.
    pub audit: bool,
    /// Writes are tracked by [`Tracker::by_mprotect`], whatever the kernel has for it: a handler of SIGSEGV is installed.
    pub mprotect: bool,
    /// What objects hold is encrypted wherever versions lie, with this user's key (`tarn key new`); else where `$TARN_PHX_ENCRYPT` is 1.
    /// Versions in clear are refused then, unless `$TARN_PHX_CLEAR` is 1.
    pub encrypt: bool,
    /// A folder on a store that outlives the nodes; else `$TARN_PHX_EXTERNAL`, or there is none.
    pub external: Option<PathBuf>,
    /// Every how many-eth version is flushed to it; else `$TARN_PHX_FLUSH_EVERY`, or none is.
    pub flush_every: Option<u64>,
    /// Bytes a second that are written to it and read back; else `$TARN_PHX_FLUSH_RATE`, such as 200MiB/s, or as many as it takes.
    pub flush_rate: Option<u64>,
}

impl Default for Options {
    /// The only rank of a program.
    fn default() -> Self {
        Self {
            rank: 0,
            ranks: 1,
            replicas: None,
            run: None,
            tier: None,
            memory: None,
            meet: None,
            key: None,
            transport: None,
            profile: None,
            staging: None,
            same_node: false,
            replicate: Replicate::None,
            replicate_every: 1,
            timeout: TIMEOUT,
            helper: true,
            processors: Vec::new(),
            audit: false,
            mprotect: false,
            encrypt: false,
            external: None,
            flush_every: None,
            flush_rate: None,
        }
    }
}

/// Whether an object is copied ahead of commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Precopy {
    /// It is not: devices or other processes write to it.
    Never,
    /// If it is large, of this process alone, and it is learned that it pays.
    #[default]
    WherePays,
    /// As soon as possible.
    Always,
}

/// What is said of an object. A version is whole or none: of `versions`, `persistence` and `replicas` the most that an object asks for
/// counts, for all that is committed as long as that object is there.
#[derive(Debug, Clone)]
pub struct Properties {
    /// It is not part of checkpoints.
    pub transient: bool,
    /// Whether it is copied ahead.
    pub precopy: Precopy,
    /// How many versions are kept.
    pub versions: usize,
    /// What a version has reached when [`CheckpointSession::commit`] returns. From [`PersistenceLevel::Durable`] on nothing is staged; for more it is waited
    /// as [`CheckpointSession::wait`] does.
    pub persistence: PersistenceLevel,
    /// Copies of what is staged, each on another node: at most [`MAX_REPLICAS`]; else as many as the options say.
    pub replicas: Option<u32>,
    /// How it is a part of something that all ranks have together.
    pub shape: Shape,
}

impl Default for Properties {
    /// One version is kept, of what is this rank's own.
    fn default() -> Self {
        Self {
            transient: false,
            precopy: Precopy::WherePays,
            versions: 1,
            persistence: PersistenceLevel::Committed,
            replicas: None,
            shape: Shape::Own,
        }
    }
}

struct SessionObject {
    memory: ObjectMemory,
    unit: u32,
    properties: Properties,
}

/// A program with checkpoints, from its begin to its end.
pub struct CheckpointSession {
    rank: Rank<Folder, Folder>,
    objects: BTreeMap<Box<[u8]>, SessionObject>,
    timeout: Duration,
    /// Copies of what is staged, where objects do not say how many.
    replicas: u32,
    /// The process that began it.
    pub(crate) process: u32,
    /// None where nothing tells what was written.
    tracker: Option<Tracker>,
}

impl std::fmt::Debug for CheckpointSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let keys = self.objects.keys().map(|key| String::from_utf8_lossy(key));
        f.debug_struct("CheckpointSession")
            .field("generation", &self.rank.generation())
            .field("objects", &keys.collect::<Vec<_>>())
            .finish_non_exhaustive()
    }
}

impl CheckpointSession {
    /// Begins. All ranks call it.
    ///
    /// # Errors
    /// When an option makes no sense or cannot be had, another program has the run's name, ranks do not come, or folders cannot be used.
    pub fn begin(options: Options) -> Result<Self, CheckpointError> {
        // Signals are the program's: no thread of this library takes one.
        let _blocked = Blocked::new();
        let name = &*settings::name_of(options.run.clone())?;
        check(&options)?;
        let processors = options.processors;
        let tracker = settings::tracker(options.mprotect)?;
        let (tier, memory) = settings::folders(options.tier, options.memory)?;
        let key_file = options.key.or_else(|| path("TARN_PHX_KEY"));
        let key = key_file.as_deref().map(settings::key).transpose()?;
        let providers = transport::providers(options.transport)?;
        let profile = options.profile.or_else(|| text("TARN_PHX_PROFILE"));
        let profile = settings::profile_of(profile)?;
        let external = options.external.or_else(|| path("TARN_PHX_EXTERNAL"));
        let external =
            settings::external_store(external, options.flush_every, options.flush_rate, name)?;
        let encrypt = options.encrypt || crate::keys::read_switch("TARN_PHX_ENCRYPT")?;
        let seal = encrypt.then(|| crate::keys::sealing(name)).transpose()?;
        let plain = Arc::new(Device::new(Profile::none()));
        let memory = settings::memory_of(&memory, name, Arc::clone(&plain))?;
        let meeting = tarn_ranks::Options {
            folder: memory.join("meet"),
            rank: options.rank,
            ranks: options.ranks,
            meet: options.meet.or_else(|| text("TARN_PHX_MEET")),
            node: None,
            switches: switches(),
            key,
            timeout: options.timeout,
        };
        let (ranks, several) = transport::join(meeting, &providers)?;
        let replicas = options.replicas.unwrap_or(u32::from(several));
        let slow = profile != Profile::none();
        let device = match slow {
            true => Device::shared(profile, &memory.join("meet/nvram"))?,
            false => Device::new(Profile::none()),
        };
        let folder = Folder::new(&tier.join("phx").join(name), Arc::new(device))?;
        let staging = options
            .staging
            .unwrap_or_else(|| settings::staging_of(slow, &tier));
        let rank = tarn_checkpoint_core::Options {
            run: name.as_bytes().into(),
            identity: settings::random()?,
            staging,
            buddies: replicas as usize,
            same_node: options.same_node,
            distance: distance()?,
            replicate: options.replicate,
            replicate_every: options.replicate_every,
            timeout: options.timeout,
            helpers: usize::from(options.helper),
            audit: options.audit,
            enter: Arc::new(move || {
                Blocked::new().stay();
                settings::stay_on(&processors);
            }),
            external,
            seal,
            leaves_out: false,
        };
        Ok(Self {
            rank: Rank::begin(rank, folder, Folder::new(&memory, plain)?, ranks)?,
            objects: BTreeMap::new(),
            timeout: options.timeout,
            replicas,
            process: std::process::id(),
            tracker,
        })
    }

    /// Makes an object of new memory, all zero: `len` bytes of elements of `unit` bytes.
    ///
    /// # Errors
    /// When the key is taken, the shape does not fit, or there is no room for all objects then.
    pub fn create(
        &mut self,
        key: &str,
        len: usize,
        unit: usize,
        properties: Properties,
    ) -> Result<(), CheckpointError> {
        self.add(key.as_bytes(), ObjectMemory::new(len)?, unit, properties)
    }

    /// What an object that was made by [`CheckpointSession::create`] holds, in elements.
    ///
    /// # Errors
    /// When there is none, or its memory is no whole number of such elements.
    pub fn values<T: Element>(&mut self, key: &str) -> Result<&mut [T], CheckpointError> {
        let memory = &mut self.object(key.as_bytes())?.memory;
        if !memory.made() || !memory.size().is_multiple_of(size_of::<T>()) {
            let text = format!(
                "object {key:?} has {} bytes, and was made here: {}; that is no slice of elements of {} bytes",
                memory.size(),
                memory.made(),
                size_of::<T>()
            );
            return Err(invalid(text));
        }
        if memory.size() == 0 {
            return Ok(&mut []);
        }
        // SAFETY: it was made here, on pages of its own, all bytes are written, and any are an `Element`; whoever has the slice has
        // this session for as long.
        Ok(unsafe {
            std::slice::from_raw_parts_mut(
                memory.start().as_ptr().cast(),
                memory.size() / size_of::<T>(),
            )
        })
    }

    /// Makes an object of this memory, if there is room for all then.
    ///
    /// # Errors
    /// When the key or some of the memory is taken, the shape does not fit, or there is no room.
    pub fn add(
        &mut self,
        key: &[u8],
        memory: ObjectMemory,
        unit: usize,
        properties: Properties,
    ) -> Result<(), CheckpointError> {
        let name = String::from_utf8_lossy(key);
        if key.is_empty() || key.len() > MAX_KEY {
            let text = format!("a key has 1 to {MAX_KEY} bytes, not {}", key.len());
            return Err(invalid(text));
        }
        if self.objects.contains_key(key) {
            let text = format!(
                "there is an object {name:?} already: destroy it first, or choose another key"
            );
            return Err(CheckpointError::new(CheckpointErrorCode::Exists, text));
        }
        if self.objects.len() == MAX_OBJECTS {
            let text = format!("a program has at most {MAX_OBJECTS} objects");
            return Err(invalid(text));
        }
        if let Some((other, _)) = self.objects.iter().find(|(_, o)| o.memory.meets(&memory)) {
            let text = format!(
                "object {name:?} would have some of the memory of {:?}: register what is one object once",
                String::from_utf8_lossy(other)
            );
            return Err(invalid(text));
        }
        let unit = element(&name, memory.size(), unit, &properties.shape)?;
        possible(properties.replicas)?;
        let object = SessionObject {
            memory,
            unit,
            properties,
        };
        self.objects.insert(key.into(), object);
        let reserved = self.reserve_space(None);
        if reserved.is_err() {
            self.objects.remove(key);
            self.ask_less();
            return reserved;
        }
        self.watch(key);
        Ok(())
    }

    /// Has an object copied ahead, if that may be, and might pay.
    fn watch(&mut self, key: &[u8]) {
        let (Some(tracker), Some(object)) = (&self.tracker, self.objects.get(key)) else {
            return;
        };
        let Properties {
            transient, precopy, ..
        } = object.properties;
        let (start, size) = (object.memory.start(), object.memory.size());
        let wanted = match precopy {
            Precopy::Never => false,
            Precopy::Always => true,
            // What other processes or devices write is not seen. Pinned pages may be anybody's.
            Precopy::WherePays => {
                size >= WATCHED
                    && (object.memory.made() || tarn_dirty_pages::is_private(start, size))
                    && tarn_dirty_pages::pinned().is_ok_and(|bytes| bytes == 0)
            }
        };
        if transient || !wanted || size == 0 {
            return;
        }
        // SAFETY: it is not watched any more before it is resized or goes, and whoever has given it keeps it until then.
        let watched = unsafe {
            match object.memory.made() {
                true => tracker.watch_mapping(start, size),
                false => tracker.watch(start, size),
            }
        };
        if let Ok(watched) = watched {
            let always = precopy == Precopy::Always;
            self.rank.watch(key, Box::new(watched), always);
        }
    }

    /// Takes the space that all objects need, one of them with the size that it shall have.
    fn reserve_space(&mut self, resized: Option<(&[u8], usize)>) -> Result<(), CheckpointError> {
        let size = |(key, object): (&[u8], &SessionObject)| match resized {
            Some((of, len)) if of == key => len as u64,
            _ => object.memory.size() as u64,
        };
        let sizes: Vec<u64> = self.kept().map(size).collect();
        self.rank.require(self.version_requirements())?;
        self.rank.reserve(&sizes)
    }

    /// What objects require of versions.
    fn version_requirements(&self) -> VersionRequirements {
        let of_object = |of: &Properties| VersionRequirements {
            versions: of.versions,
            replicas: of.replicas.unwrap_or(self.replicas) as usize,
            persistence: of.persistence,
        };
        let all = self.kept().map(|(_, object)| of_object(&object.properties));
        let none = || of_object(&Properties::default());
        all.reduce(VersionRequirements::and).unwrap_or_else(none)
    }

    /// What an object that is gone required does not count any more.
    fn ask_less(&mut self) {
        // What was granted with it is not refused without it.
        let _ = self.rank.require(self.version_requirements());
    }

    fn kept(&self) -> impl Iterator<Item = (&[u8], &SessionObject)> {
        let all = self.objects.iter().map(|(key, object)| (&**key, object));
        all.filter(|(_, object)| !object.properties.transient)
    }

    fn object(&mut self, key: &[u8]) -> Result<&mut SessionObject, CheckpointError> {
        self.objects.get_mut(key).ok_or_else(|| unknown(key))
    }

    /// Where an object is, and how large.
    ///
    /// # Errors
    /// When there is none.
    pub fn memory(&mut self, key: &[u8]) -> Result<&ObjectMemory, CheckpointError> {
        self.object(key).map(|object| &object.memory)
    }

    /// Gives an object that was made here another size; what it held stays, as far as it fits. It may move.
    ///
    /// # Errors
    /// When it was not made here or is a block, or there is no room.
    pub fn resize(&mut self, key: &[u8], len: usize) -> Result<&ObjectMemory, CheckpointError> {
        let object = self.object(key)?;
        let name = String::from_utf8_lossy(key);
        if !object.memory.made() {
            let text = format!(
                "object {name:?} is the program's own memory: destroy it, and register what it has become"
            );
            return Err(invalid(text));
        }
        if let Shape::Block(_) = object.properties.shape {
            let text = format!(
                "object {name:?} is a block of an array: destroy it, and create what it has become"
            );
            return Err(invalid(text));
        }
        element(&name, len, object.unit as usize, &object.properties.shape)?;
        // What cannot be done is known before anything moves.
        self.reserve_space(Some((key, len)))?;
        self.rank.unwatch(key);
        let resized = self.object(key)?.memory.resize(len);
        self.watch(key);
        resized?;
        self.memory(key)
    }

    /// Forgets an object, its memory if it was made here, and what it asked of versions. Versions that have it keep it.
    ///
    /// # Errors
    /// When there is none.
    pub fn destroy(&mut self, key: &[u8]) -> Result<(), CheckpointError> {
        self.rank.unwatch(key);
        self.objects.remove(key).ok_or_else(|| unknown(key))?;
        self.ask_less();
        Ok(())
    }

    /// Keeps the state of all objects. All ranks call it; none waits for the others but for room, and for what objects ask for.
    ///
    /// # Errors
    /// As [`Rank::commit`].
    pub fn commit(&mut self) -> Result<Committed, CheckpointError> {
        let kept = self.objects.iter().filter(|(_, o)| !o.properties.transient);
        let items: Vec<CommitObject<'_>> = kept
            .map(|(key, object)| CommitObject {
                key,
                unit: object.unit,
                shape: object.properties.shape.clone(),
                // SAFETY: memory made here is borrowed only as long as this is not in use; `Memory::of` says it of the program's own.
                bytes: unsafe { object.memory.bytes() },
            })
            .collect();
        self.rank.commit(&items)
    }

    /// Fills all objects from a version, or from the newest that all ranks can have. All ranks call it, with the same objects, before
    /// their first commit. None if there is no version: a fresh start.
    ///
    /// # Errors
    /// As [`Rank::restart`].
    pub fn restart(
        &mut self,
        which: Option<VersionId>,
    ) -> Result<Option<VersionId>, CheckpointError> {
        let kept = self
            .objects
            .iter_mut()
            .filter(|(_, o)| !o.properties.transient);
        let mut objects: Vec<Empty<'_>> = kept
            .map(|(key, object)| Empty {
                key,
                shape: object.properties.shape.clone(),
                // SAFETY: as for a commit; and no two objects have the same memory, as `add` saw to.
                bytes: unsafe { object.memory.bytes_mut() },
            })
            .collect();
        self.rank.restart(which, &mut objects)
    }

    /// The versions that [`CheckpointSession::restart`] could take, newest last.
    pub fn versions(&self) -> Vec<Restorable> {
        self.rank.restorable()
    }

    /// Whether so long a time has gone by since the last commit, or the begin, by the clock of rank 0: the same on all ranks, so that all
    /// commit or none. All ranks call it.
    ///
    /// # Errors
    /// As [`Rank::due`].
    pub fn due(&self, interval: Duration) -> Result<bool, CheckpointError> {
        self.rank.due(interval)
    }

    /// Waits until a version has a level, for all ranks; not longer than this, or than for other ranks.
    ///
    /// # Errors
    /// When it has not within the time, or never will.
    pub fn wait(
        &self,
        id: VersionId,
        level: PersistenceLevel,
        within: Option<Duration>,
    ) -> Result<(), CheckpointError> {
        self.rank.wait(id, level, within.unwrap_or(self.timeout))
    }

    /// What was done.
    pub fn stats(&self) -> RankStats {
        self.rank.stats()
    }

    /// When what is durable outlives a loss of power; none before there were objects.
    pub fn power_fail(&self) -> Option<PowerFail> {
        self.rank.power_fail()
    }

    /// Ends: what is staged is de-staged, memory is given back. The versions stay. All ranks call it. (A session that is dropped ends as
    /// if the program was killed.)
    ///
    /// # Errors
    /// As [`Rank::end`].
    pub fn end(self) -> Result<(), CheckpointError> {
        self.rank.end()
    }
}

/// Checks the options that stand for themselves, before anything is touched.
fn check(options: &Options) -> Result<(), CheckpointError> {
    if options.rank >= options.ranks {
        return Err(invalid(format!(
            "rank {} of {} ranks",
            options.rank, options.ranks
        )));
    }
    possible(options.replicas)?;
    match options.replicate {
        Replicate::Copies(copies) if !(1..=MAX_REPLICAS as usize).contains(&copies) => {
            let text =
                format!("{copies} copies of all of a version: 1 to {MAX_REPLICAS} are possible");
            return Err(invalid(text));
        }
        Replicate::Parity(ranks) if !(2..=MAX_SET).contains(&ranks) => {
            let text = format!("sets of {ranks} ranks: 2 to {MAX_SET} are possible");
            return Err(invalid(text));
        }
        _ => {}
    }
    if let Some(high) = options.processors.iter().find(|p| **p >= CpuSet::MAX_CPU) {
        return Err(invalid(format!("there is no processor {high}")));
    }
    Ok(())
}

/// Whether there can be so many replicas, if any number was said.
fn possible(replicas: Option<u32>) -> Result<(), CheckpointError> {
    match replicas {
        Some(many) if many > MAX_REPLICAS => Err(invalid(format!(
            "{many} replicas of what is staged: 0 to {MAX_REPLICAS} are possible"
        ))),
        _ => Ok(()),
    }
}

/// The size of an element, if it and the shape fit an object.
fn element(name: &str, len: usize, unit: usize, shape: &Shape) -> Result<u32, CheckpointError> {
    let fits = u32::try_from(unit)
        .ok()
        .filter(|u| *u > 0 && len.is_multiple_of(unit));
    let Some(unit) = fits else {
        let text = format!(
            "object {name:?} has {len} bytes, which is no multiple of elements of {unit} bytes"
        );
        return Err(invalid(text));
    };
    let wanted = match shape {
        Shape::Own | Shape::Replicated => return Ok(unit),
        Shape::Irregular(row) if *row > 0 && (len as u64).is_multiple_of(*row) => return Ok(unit),
        Shape::Irregular(row) => format!("rows of {row} bytes"),
        Shape::Block(dimensions) if !(1..=MAX_DIMENSIONS).contains(&dimensions.len()) => {
            format!(
                "a block of {} dimensions, where 1 to {MAX_DIMENSIONS} are possible",
                dimensions.len()
            )
        }
        Shape::Block(dimensions) if let Some(d) = dimensions.iter().find(|d| !within(d)) => {
            format!(
                "a block of {} elements from {} on, with {} ghosts, which is not a part of {}",
                d[2], d[1], d[3], d[0]
            )
        }
        Shape::Block(dimensions) => {
            let mut counts = dimensions.iter().map(|d| d[2]);
            let bytes = counts.try_fold(u64::from(unit), u64::checked_mul);
            if bytes == Some(len as u64) {
                return Ok(unit);
            }
            format!(
                "a block of {:?} elements of {unit} bytes",
                dimensions.iter().map(|d| d[2]).collect::<Vec<_>>()
            )
        }
    };
    Err(invalid(format!(
        "object {name:?} has {len} bytes, but is declared as {wanted}"
    )))
}

/// Whether a box is within its array.
fn within([all, first, count, ghost]: &[u64; 4]) -> bool {
    let end = first.checked_add(*count);
    end.is_some_and(|end| end <= *all) && ghost <= count
}

fn unknown(key: &[u8]) -> CheckpointError {
    let text = format!(
        "there is no object {:?}: create or register it first",
        String::from_utf8_lossy(key)
    );
    CheckpointError::new(CheckpointErrorCode::NotFound, text)
}
