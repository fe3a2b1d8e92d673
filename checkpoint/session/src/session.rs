//! The session of a program, from its begin to its end.

use crate::environment::{distance, path, switches, text};
use crate::memory::{Element, ObjectMemory};
use crate::options::{Options, Precopy, Properties};
use crate::settings::{self, invalid};
use crate::transport;
use rustix::thread::CpuSet;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tarn_checkpoint_core::manifest::{MAX_DIMENSIONS, MAX_KEY, MAX_OBJECTS};
use tarn_checkpoint_core::{
    CheckpointError, CheckpointErrorCode, CommitObject, Committed, Empty, MAX_REPLICAS, MAX_SET,
    PersistenceLevel, Rank, RankStats, Replicate, Restorable, Shape, VersionId,
    VersionRequirements,
};
use tarn_dirty_pages::Tracker;
use tarn_media::{Device, Folder, Profile};
use tarn_ports::PowerFail;
use tarn_sys::signals::Blocked;

/// Smaller objects are not worth watching.
const WATCHED: usize = 4 << 20;

struct SessionObject {
    memory: ObjectMemory,
    unit: u32,
    properties: Properties,
}

/// A program with checkpoints, from its begin to its end.
///
/// All ranks make the same calls of [`begin`](Self::begin), [`restart`](Self::restart),
/// [`commit`](Self::commit), [`due`](Self::due) and [`end`](Self::end), in the same order. A session that is
/// dropped ends as if its process was killed: the next start has what was committed.
///
/// # Examples
/// ```
/// use tarn_checkpoint::{CheckpointSession, Options, PersistenceLevel, Properties};
///
/// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
/// let [tier, memory] = ["tier", "memory"].map(|name| Some(folder.path().join(name)));
/// let options = || Options { tier: tier.clone(), memory: memory.clone(), ..Options::default() };
/// // The first start finds no version, and computes.
/// let mut session = CheckpointSession::begin(options())?;
/// session.create("field", 1000 * 8, 8, Properties::default())?;
/// assert_eq!(session.restart(None)?, None);
/// session.values::<f64>("field")?.fill(0.5);
/// let version = session.commit()?.id;
/// assert_eq!(version.to_string(), "1.1"); // the first commit of the first start
/// session.wait(version, PersistenceLevel::Durable, None)?;
/// drop(session); // as if it was killed
///
/// // The second start makes the same objects, and continues from that version.
/// let mut session = CheckpointSession::begin(options())?;
/// session.create("field", 1000 * 8, 8, Properties::default())?;
/// assert_eq!(session.restart(None)?, Some(version));
/// assert_eq!(session.values::<f64>("field")?, [0.5; 1000]);
/// session.end()?;
/// # Ok::<(), tarn_checkpoint::CheckpointError>(())
/// ```
pub struct CheckpointSession {
    rank: Rank<Folder, Folder>,
    objects: BTreeMap<Box<[u8]>, SessionObject>,
    timeout: Duration,
    /// Copies of the staged bytes, where objects set no number.
    replicas: u32,
    /// The process that began it.
    pub(crate) process: u32,
    /// None where nothing finds the written pages.
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
    /// Begins: the ranks meet, and each completes the versions of its earlier starts. All ranks call it. Folders
    /// that are missing are made, but for those that would be on the root disk.
    ///
    /// # Errors
    /// - [`Invalid`](CheckpointErrorCode::Invalid): no tier is named, an option makes no sense, a folder is
    ///   relative or would be made on the node's root disk.
    /// - [`Busy`](CheckpointErrorCode::Busy): another program of this name runs on the node.
    /// - [`TimedOut`](CheckpointErrorCode::TimedOut), [`Lost`](CheckpointErrorCode::Lost): a rank did not
    ///   come within `timeout`, or died.
    /// - [`Io`](CheckpointErrorCode::Io), [`NoSpace`](CheckpointErrorCode::NoSpace),
    ///   [`Unsupported`](CheckpointErrorCode::Unsupported): a folder cannot be used, or the system lacks a
    ///   requested feature.
    ///
    /// # Examples
    /// Two ranks on one node, here as threads; usually each is a process of its own:
    /// ```
    /// use tarn_checkpoint::{CheckpointError, CheckpointSession, Options, Properties};
    ///
    /// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    /// let (tier, memory) = (folder.path().join("tier"), folder.path().join("memory"));
    /// let program = &|rank: u32| -> Result<String, CheckpointError> {
    ///     let mut session = CheckpointSession::begin(Options {
    ///         rank,
    ///         ranks: 2,
    ///         tier: Some(tier.clone()),
    ///         memory: Some(memory.clone()),
    ///         ..Options::default()
    ///     })?;
    ///     session.create("mine", 8, 8, Properties::default())?;
    ///     session.values::<u64>("mine")?[0] = rank.into();
    ///     let version = session.commit()?.id;
    ///     session.end()?;
    ///     Ok(version.to_string())
    /// };
    /// let versions = std::thread::scope(|scope| {
    ///     let ranks = [0, 1].map(|rank| scope.spawn(move || program(rank)));
    ///     ranks.map(|rank| rank.join().unwrap())
    /// });
    /// assert_eq!(versions, [Ok("1.1".into()), Ok("1.1".into())]);
    /// ```
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

    /// Creates an object in new memory, all zero: `len` bytes, in elements of `unit` bytes. The key has 1 to
    /// 255 bytes. Space for all objects is taken at once, so that no commit runs out of it.
    ///
    /// # Errors
    /// - [`Exists`](CheckpointErrorCode::Exists): there is an object of this key.
    /// - [`Invalid`](CheckpointErrorCode::Invalid): the key is empty or too long, `len` is no multiple of
    ///   `unit`, the shape has another size, or no version of this start can meet the properties.
    /// - [`Unsupported`](CheckpointErrorCode::Unsupported): there are too few other nodes for `replicas`.
    /// - [`NoSpace`](CheckpointErrorCode::NoSpace), [`NoMem`](CheckpointErrorCode::NoMem): the tier or memory
    ///   has no space for all objects. The object is not created then.
    ///
    /// # Examples
    /// ```
    /// use tarn_checkpoint::{CheckpointErrorCode, CheckpointSession, Options, Properties, Shape};
    ///
    /// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    /// let [tier, memory] = ["tier", "memory"].map(|name| Some(folder.path().join(name)));
    /// let options = || Options { tier: tier.clone(), memory: memory.clone(), ..Options::default() };
    /// let mut session = CheckpointSession::begin(options())?;
    /// let shared = Properties { shape: Shape::Replicated, ..Properties::default() };
    /// session.create("step", 8, 8, shared)?; // the same on all ranks
    /// session.create("field", 300 * 400 * 8, 8, Properties::default())?;
    ///
    /// let taken = session.create("step", 8, 8, Properties::default()).unwrap_err();
    /// assert_eq!(taken.code, CheckpointErrorCode::Exists);
    /// let odd = session.create("odd", 10, 8, Properties::default()).unwrap_err();
    /// assert_eq!(odd.code, CheckpointErrorCode::Invalid);
    /// # Ok::<(), tarn_checkpoint::CheckpointError>(())
    /// ```
    pub fn create(
        &mut self,
        key: &str,
        len: usize,
        unit: usize,
        properties: Properties,
    ) -> Result<(), CheckpointError> {
        self.add(key.as_bytes(), ObjectMemory::new(len)?, unit, properties)
    }

    /// The content of an object that [`CheckpointSession::create`] made: a slice of `len / size_of::<T>()`
    /// elements. It borrows the session, so nobody has a slice during a commit.
    ///
    /// # Errors
    /// - [`NotFound`](CheckpointErrorCode::NotFound): there is no such object.
    /// - [`Invalid`](CheckpointErrorCode::Invalid): the object is the program's own memory
    ///   ([`CheckpointSession::add`]), or its size is no multiple of `size_of::<T>()`.
    ///
    /// # Examples
    /// ```
    /// use tarn_checkpoint::{CheckpointErrorCode, CheckpointSession, Options, Properties};
    ///
    /// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    /// let [tier, memory] = ["tier", "memory"].map(|name| Some(folder.path().join(name)));
    /// let options = || Options { tier: tier.clone(), memory: memory.clone(), ..Options::default() };
    /// let mut session = CheckpointSession::begin(options())?;
    /// session.create("field", 12, 4, Properties::default())?;
    /// session.values::<f32>("field")?[2] = 1.5;
    /// assert_eq!(session.values::<f32>("field")?, [0.0, 0.0, 1.5]);
    ///
    /// let why = session.values::<f64>("field").unwrap_err(); // 12 bytes are no whole number of f64
    /// assert_eq!(why.code, CheckpointErrorCode::Invalid);
    /// # Ok::<(), tarn_checkpoint::CheckpointError>(())
    /// ```
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
        // SAFETY: it was made here, on pages of its own, all bytes are written, and any are an `Element`; the holder of the slice
        // has this session for as long.
        Ok(unsafe {
            std::slice::from_raw_parts_mut(
                memory.start().as_ptr().cast(),
                memory.size() / size_of::<T>(),
            )
        })
    }

    /// Registers memory as an object, in elements of `unit` bytes: that of the program, or new memory
    /// ([`ObjectMemory`]).
    ///
    /// # Errors
    /// As [`CheckpointSession::create`], and [`Invalid`](CheckpointErrorCode::Invalid) where another object
    /// has some of the memory, or there are 65,536 objects.
    ///
    /// # Examples
    /// ```
    /// use std::ptr::NonNull;
    /// use tarn_checkpoint::{CheckpointSession, ObjectMemory, Options, Properties};
    ///
    /// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    /// let [tier, memory] = ["tier", "memory"].map(|name| Some(folder.path().join(name)));
    /// let options = || Options { tier: tier.clone(), memory: memory.clone(), ..Options::default() };
    /// let mut step = [0_u64; 1];
    /// let start = NonNull::from(&mut step).cast();
    /// let mut session = CheckpointSession::begin(options())?;
    /// // SAFETY: `step` outlives the session, and is not used during its calls.
    /// let memory = unsafe { ObjectMemory::of(start, 8) };
    /// session.add(b"step", memory, 8, Properties::default())?;
    /// session.commit()?;
    /// session.end()?;
    /// # Ok::<(), tarn_checkpoint::CheckpointError>(())
    /// ```
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
            // Writes of other processes or devices are not seen. Pinned pages may be anybody's.
            Precopy::WherePays => {
                size >= WATCHED
                    && (object.memory.made() || tarn_dirty_pages::is_private(start, size))
                    && tarn_dirty_pages::pinned().is_ok_and(|bytes| bytes == 0)
            }
        };
        if transient || !wanted || size == 0 {
            return;
        }
        // SAFETY: it is not watched any more before it is resized or goes, and the program that has given it keeps it until then.
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

    /// The requirements that objects make of versions.
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

    /// Drops the requirements of an object that is gone.
    fn ask_less(&mut self) {
        // Requirements that were granted with it are not refused without it.
        let _ = self.rank.require(self.version_requirements());
    }

    fn kept(&self) -> impl Iterator<Item = (&[u8], &SessionObject)> {
        let all = self.objects.iter().map(|(key, object)| (&**key, object));
        all.filter(|(_, object)| !object.properties.transient)
    }

    fn object(&mut self, key: &[u8]) -> Result<&mut SessionObject, CheckpointError> {
        self.objects.get_mut(key).ok_or_else(|| unknown(key))
    }

    /// An object's address and its size in bytes.
    ///
    /// # Errors
    /// [`NotFound`](CheckpointErrorCode::NotFound): there is no such object.
    pub fn memory(&mut self, key: &[u8]) -> Result<&ObjectMemory, CheckpointError> {
        self.object(key).map(|object| &object.memory)
    }

    /// Resizes an object that [`CheckpointSession::create`] made to `len` bytes. It keeps as much as fits, new
    /// bytes are zero, and it may move.
    ///
    /// # Errors
    /// - [`NotFound`](CheckpointErrorCode::NotFound): there is no such object.
    /// - [`Invalid`](CheckpointErrorCode::Invalid): it is the program's own memory, a block of an array, or
    ///   `len` is no multiple of its elements.
    /// - [`NoSpace`](CheckpointErrorCode::NoSpace), [`NoMem`](CheckpointErrorCode::NoMem): there is no space;
    ///   the object is as it was.
    ///
    /// # Examples
    /// ```
    /// use tarn_checkpoint::{CheckpointSession, Options, Properties};
    ///
    /// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    /// let [tier, memory] = ["tier", "memory"].map(|name| Some(folder.path().join(name)));
    /// let options = || Options { tier: tier.clone(), memory: memory.clone(), ..Options::default() };
    /// let mut session = CheckpointSession::begin(options())?;
    /// session.create("particles", 16, 8, Properties::default())?;
    /// session.values::<f64>("particles")?.fill(1.0);
    /// assert_eq!(session.resize(b"particles", 24)?.size(), 24);
    /// assert_eq!(session.values::<f64>("particles")?, [1.0, 1.0, 0.0]);
    /// session.destroy(b"particles")?;
    /// # Ok::<(), tarn_checkpoint::CheckpointError>(())
    /// ```
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
        // An impossible size is refused before anything moves.
        self.reserve_space(Some((key, len)))?;
        self.rank.unwatch(key);
        let resized = self.object(key)?.memory.resize(len);
        self.watch(key);
        resized?;
        self.memory(key)
    }

    /// Forgets an object and its requirements of versions; frees its memory if [`CheckpointSession::create`]
    /// made it. Versions that have the object keep it.
    ///
    /// # Errors
    /// [`NotFound`](CheckpointErrorCode::NotFound): there is no such object.
    pub fn destroy(&mut self, key: &[u8]) -> Result<(), CheckpointError> {
        self.rank.unwatch(key);
        self.objects.remove(key).ok_or_else(|| unknown(key))?;
        self.ask_less();
        Ok(())
    }

    /// Commits the state of all objects as a new version (Fernando et al. 2016, section II). All ranks call
    /// it equally often: a failed commit counts too, so do not repeat it on one rank alone. A rank waits for
    /// others only for space, and for the level that objects require.
    ///
    /// The version survives the process when this returns. [`Committed::degraded`] is the reason why it has
    /// fewer copies than were requested.
    ///
    /// # Errors
    /// The version does not exist on this rank then, and the versions before are as they were.
    /// - [`NoSpace`](CheckpointErrorCode::NoSpace), [`NoMem`](CheckpointErrorCode::NoMem): the tier or memory
    ///   is full.
    /// - [`Invalid`](CheckpointErrorCode::Invalid): this rank is 32 commits ahead of another.
    /// - [`Corrupt`](CheckpointErrorCode::Corrupt), [`Io`](CheckpointErrorCode::Io): the version before
    ///   cannot be de-staged.
    ///
    /// # Examples
    /// ```
    /// use tarn_checkpoint::{CheckpointSession, Options, Properties};
    ///
    /// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    /// let [tier, memory] = ["tier", "memory"].map(|name| Some(folder.path().join(name)));
    /// let options = || Options { tier: tier.clone(), memory: memory.clone(), ..Options::default() };
    /// let mut session = CheckpointSession::begin(options())?;
    /// session.create("field", 8000, 8, Properties::default())?;
    /// let committed = session.commit()?;
    /// assert_eq!((committed.id.generation, committed.id.number), (1, 1));
    /// assert_eq!(committed.degraded, None); // all copies that were asked for are there
    /// assert_eq!(session.stats().bytes, 8000);
    /// # Ok::<(), tarn_checkpoint::CheckpointError>(())
    /// ```
    pub fn commit(&mut self) -> Result<Committed, CheckpointError> {
        let kept = self.objects.iter().filter(|(_, o)| !o.properties.transient);
        let items: Vec<CommitObject<'_>> = kept
            .map(|(key, object)| CommitObject {
                key,
                unit: object.unit,
                shape: object.properties.shape.clone(),
                // SAFETY: memory made here is borrowed only while this is not in use; `Memory::of` requires that of the program's
                // own.
                bytes: unsafe { object.memory.bytes() },
            })
            .collect();
        self.rank.commit(&items)
    }

    /// Fills all objects from a version, or from the newest that all ranks can have. All ranks call it, with
    /// the same objects, before their first commit. Returns the version; `None` where there is none: a fresh
    /// start.
    ///
    /// # Errors
    /// - [`NotFound`](CheckpointErrorCode::NotFound): `which` cannot be restored.
    /// - [`Invalid`](CheckpointErrorCode::Invalid): the objects are not those of the version, ranks request
    ///   different versions, or this start has committed.
    /// - [`Shape`](CheckpointErrorCode::Shape): the number of ranks has changed, and an object's shape does
    ///   not define how it divides.
    /// - [`Corrupt`](CheckpointErrorCode::Corrupt): no undamaged copy is left.
    /// - [`TimedOut`](CheckpointErrorCode::TimedOut), [`Lost`](CheckpointErrorCode::Lost): a rank did not
    ///   come, or died.
    ///
    /// # Examples
    /// ```
    /// use tarn_checkpoint::{CheckpointErrorCode, CheckpointSession, Options, Properties, VersionId};
    ///
    /// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    /// let [tier, memory] = ["tier", "memory"].map(|name| Some(folder.path().join(name)));
    /// let options = || Options { tier: tier.clone(), memory: memory.clone(), ..Options::default() };
    /// let mut session = CheckpointSession::begin(options())?;
    /// session.create("step", 8, 8, Properties { versions: 2, ..Properties::default() })?;
    /// for _ in 0..2 {
    ///     session.values::<u64>("step")?[0] += 1;
    ///     session.commit()?;
    /// }
    /// session.end()?;
    /// // An earlier start committed versions 1.1 and 1.2. The newest turned out bad: go back by one.
    /// let mut session = CheckpointSession::begin(options())?;
    /// session.create("step", 8, 8, Properties::default())?;
    /// let versions = session.versions();
    /// assert_eq!(versions.last().unwrap().id.to_string(), "1.2");
    /// let before = versions[0].id;
    /// assert_eq!(session.restart(Some(before))?, Some(before));
    /// assert_eq!(session.values::<u64>("step")?[0], 1);
    ///
    /// let other = VersionId { generation: 7, number: 1 };
    /// assert_eq!(session.restart(Some(other)).unwrap_err().code, CheckpointErrorCode::NotFound);
    /// # Ok::<(), tarn_checkpoint::CheckpointError>(())
    /// ```
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

    /// The versions that [`CheckpointSession::restart`] can take, newest last. They are those of earlier
    /// starts.
    pub fn versions(&self) -> Vec<Restorable> {
        self.rank.restorable()
    }

    /// Whether `interval` has passed since the last commit, or the begin, by the clock of rank 0: the same
    /// answer on all ranks, so that all commit or none. All ranks call it.
    ///
    /// # Errors
    /// - [`TimedOut`](CheckpointErrorCode::TimedOut), [`Lost`](CheckpointErrorCode::Lost): a rank did not
    ///   come, or died.
    /// - [`Invalid`](CheckpointErrorCode::Invalid): a rank makes another call.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tarn_checkpoint::{CheckpointSession, Options};
    ///
    /// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    /// let [tier, memory] = ["tier", "memory"].map(|name| Some(folder.path().join(name)));
    /// let options = || Options { tier: tier.clone(), memory: memory.clone(), ..Options::default() };
    /// let mut session = CheckpointSession::begin(options())?;
    /// assert!(session.due(Duration::ZERO)? && !session.due(Duration::from_secs(3600))?);
    /// # Ok::<(), tarn_checkpoint::CheckpointError>(())
    /// ```
    pub fn due(&self, interval: Duration) -> Result<bool, CheckpointError> {
        self.rank.due(interval)
    }

    /// Waits until a version has a level on all ranks: at most `within`, or the `timeout` of the options.
    ///
    /// # Errors
    /// - [`TimedOut`](CheckpointErrorCode::TimedOut): it has not come to that in time.
    /// - [`NotFound`](CheckpointErrorCode::NotFound): there is no such version (any more), or it is not one
    ///   of those that are replicated.
    /// - [`Unsupported`](CheckpointErrorCode::Unsupported): [`Replicated`](PersistenceLevel::Replicated)
    ///   without `replicate`, [`Flushed`](PersistenceLevel::Flushed) without `external`.
    /// - [`NoSpace`](CheckpointErrorCode::NoSpace): a rank could not keep it for others.
    /// - [`Lost`](CheckpointErrorCode::Lost): a rank died.
    ///
    /// # Examples
    /// ```
    /// use std::time::Duration;
    /// use tarn_checkpoint::{CheckpointErrorCode, CheckpointSession, Options, PersistenceLevel, Properties};
    ///
    /// let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    /// let [tier, memory] = ["tier", "memory"].map(|name| Some(folder.path().join(name)));
    /// let options = || Options { tier: tier.clone(), memory: memory.clone(), ..Options::default() };
    /// let mut session = CheckpointSession::begin(options())?;
    /// session.create("field", 8000, 8, Properties::default())?;
    /// let version = session.commit()?.id;
    /// session.wait(version, PersistenceLevel::Durable, Some(Duration::from_secs(10)))?;
    ///
    /// // Nothing is kept on other nodes unless the options ask for it.
    /// let why = session.wait(version, PersistenceLevel::Replicated, None).unwrap_err();
    /// assert_eq!(why.code, CheckpointErrorCode::Unsupported);
    /// # Ok::<(), tarn_checkpoint::CheckpointError>(())
    /// ```
    pub fn wait(
        &self,
        id: VersionId,
        level: PersistenceLevel,
        within: Option<Duration>,
    ) -> Result<(), CheckpointError> {
        self.rank.wait(id, level, within.unwrap_or(self.timeout))
    }

    /// Counts, bytes and times since the begin.
    pub fn stats(&self) -> RankStats {
        self.rank.stats()
    }

    /// When durable data survives a loss of power, by the promise of the tier's medium; `None` before there were
    /// objects.
    pub fn power_fail(&self) -> Option<PowerFail> {
        self.rank.power_fail()
    }

    /// Ends: de-stages and frees the memory. The versions stay. All ranks call it. A flush
    /// that is under way is not waited for. (A session that is dropped ends as if the program was killed.)
    ///
    /// # Errors
    /// [`Io`](CheckpointErrorCode::Io), [`Corrupt`](CheckpointErrorCode::Corrupt),
    /// [`NoSpace`](CheckpointErrorCode::NoSpace): staged bytes cannot be de-staged. They stay in memory, and
    /// the next start tries again.
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

/// Whether there can be so many replicas, if a number was given.
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
