//! What a program has between `phx_init` and `phx_finalize`.

use super::memory::Memory;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tarn_media::{Device, Folder, Profile};
use tarn_phx::manifest::{MAX_KEY, MAX_OBJECTS};
use tarn_phx::{Code, Empty, Fault, Item, Options, Rank, Restorable, Shape, Staging, VersionId};
use tarn_ranks::Meeting;
use tarn_track::Tracker;

/// Smaller objects are not worth watching.
const WATCHED: usize = 4 << 20;
/// What is kept in memory for all ranks of this user, below the folder of memory.
const MEMORY: &str = "tarn-phx-";

/// How the program wants it.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) rank: u32,
    pub(crate) ranks: u32,
    pub(crate) run: String,
    pub(crate) tier: PathBuf,
    pub(crate) memory: PathBuf,
    pub(crate) meet: Option<String>,
    pub(crate) key: Option<[u8; 32]>,
    pub(crate) profile: Profile,
    /// None: as it is best for this tier.
    pub(crate) staging: Option<Staging>,
    pub(crate) buddy: bool,
    pub(crate) same_node: bool,
    pub(crate) patience: Duration,
    pub(crate) helpers: usize,
    pub(crate) processors: Vec<usize>,
    pub(crate) audit: bool,
}

/// Whether an object is copied ahead of commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precopy {
    Never,
    WherePays,
    Always,
}

/// What is said of an object.
#[derive(Debug)]
pub(crate) struct Properties {
    pub(crate) transient: bool,
    pub(crate) precopy: Precopy,
    pub(crate) versions: usize,
    pub(crate) shape: Shape,
}

struct Object {
    memory: Memory,
    unit: u32,
    properties: Properties,
}

/// A program with checkpoints.
pub(crate) struct Session {
    pub(crate) rank: Rank<Folder, Folder>,
    objects: BTreeMap<Box<[u8]>, Object>,
    pub(crate) patience: Duration,
    /// None where the kernel cannot tell what was written.
    tracker: Option<Tracker>,
}

impl Session {
    pub(crate) fn begin(wanted: Wanted) -> Result<Self, Fault> {
        // Signals are the program's: no thread of this library takes one.
        let _blocked = tarn_sys::signals::Blocked::new();
        let name = &wanted.run;
        let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
        if name.is_empty() || name.len() > 200 || name.starts_with('.') || !name.chars().all(plain)
        {
            let text = format!(
                "the run's name is {name:?}; it has 1 to 200 letters, digits, '.', '_' and '-', and begins with no '.'"
            );
            return Err(Fault::new(Code::Invalid, text));
        }
        if wanted.rank >= wanted.ranks {
            let text = format!("rank {} of {} ranks", wanted.rank, wanted.ranks);
            return Err(Fault::new(Code::Invalid, text));
        }
        let user = rustix::process::geteuid().as_raw();
        let memory = wanted.memory.join(format!("{MEMORY}{user}")).join(name);
        let ranks = Meeting::join(tarn_ranks::Options {
            folder: memory.join("meet"),
            rank: wanted.rank,
            ranks: wanted.ranks,
            meet: wanted.meet,
            node: None,
            key: wanted.key,
            timeout: wanted.patience,
        })?;
        let tier = wanted.tier.join("phx").join(name);
        let slow = wanted.profile != Profile::none();
        let device = match slow {
            true => Device::shared(wanted.profile, &memory.join("meet/nvram"))?,
            false => Device::new(Profile::none()),
        };
        let tier = Folder::new(&tier, Arc::new(device))?;
        let plain = Arc::new(Device::new(Profile::none()));
        let staging = match wanted.staging {
            Some(staging) => staging,
            // A tier in memory is as fast as memory.
            None if !slow && tarn_sys::memory::in_memory(&wanted.tier) => Staging::None,
            None => Staging::Half,
        };
        let processors = wanted.processors;
        let options = Options {
            run: name.as_bytes().into(),
            identity: random()?,
            staging,
            buddy: wanted.buddy,
            same_node: wanted.same_node,
            patience: wanted.patience,
            helpers: wanted.helpers,
            audit: wanted.audit,
            enter: Arc::new(move || {
                tarn_sys::signals::Blocked::new().stay();
                stay_on(&processors);
            }),
        };
        Ok(Self {
            rank: Rank::begin(options, tier, Folder::new(&memory, plain)?, ranks)?,
            objects: BTreeMap::new(),
            patience: wanted.patience,
            tracker: Tracker::probe().ok(),
        })
    }

    /// Adds an object, if there is room for all then.
    pub(crate) fn add(
        &mut self,
        key: &[u8],
        memory: Memory,
        unit: usize,
        properties: Properties,
    ) -> Result<(), Fault> {
        let name = String::from_utf8_lossy(key);
        if key.is_empty() || key.len() > MAX_KEY {
            let text = format!("a key has 1 to {MAX_KEY} bytes, not {}", key.len());
            return Err(Fault::new(Code::Invalid, text));
        }
        if self.objects.contains_key(key) {
            let text = format!(
                "there is an object {name:?} already: destroy it first, or choose another key"
            );
            return Err(Fault::new(Code::Exists, text));
        }
        if self.objects.len() == MAX_OBJECTS {
            let text = format!("a program has at most {MAX_OBJECTS} objects");
            return Err(Fault::new(Code::Invalid, text));
        }
        let unit = element(&name, memory.len(), unit, &properties.shape)?;
        let versions = properties.versions;
        let object = Object {
            memory,
            unit,
            properties,
        };
        self.objects.insert(key.into(), object);
        let room = self.room(versions);
        if room.is_err() {
            self.objects.remove(key);
            return room;
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
        let memory = &object.memory;
        let wanted = match precopy {
            Precopy::Never => false,
            Precopy::Always => true,
            // What other processes or devices write is not seen. Pinned pages may be anybody's.
            Precopy::WherePays => {
                memory.len() >= WATCHED
                    && (memory.made() || tarn_track::is_private(memory.start(), memory.len()))
                    && tarn_track::pinned().is_ok_and(|bytes| bytes == 0)
            }
        };
        if transient || !wanted || memory.len() == 0 {
            return;
        }
        // SAFETY: it is unwatched before it is resized or destroyed, and the header says that the program keeps it until then.
        let watched = unsafe { tracker.watch(memory.start(), memory.len()) };
        if let Ok(watched) = watched {
            self.rank
                .watch(key, Box::new(watched), precopy == Precopy::Always);
        }
    }

    /// Takes the room that all objects need.
    fn room(&mut self, versions: usize) -> Result<(), Fault> {
        let kept = self.kept().map(|(_, o)| o.properties.versions);
        self.rank.keep(kept.max().unwrap_or(1).max(versions))?;
        let sizes: Vec<u64> = self.kept().map(|(_, o)| o.memory.len() as u64).collect();
        self.rank.reserve(&sizes)
    }

    fn kept(&self) -> impl Iterator<Item = (&[u8], &Object)> {
        let all = self.objects.iter().map(|(key, object)| (&**key, object));
        all.filter(|(_, object)| !object.properties.transient)
    }

    fn object(&mut self, key: &[u8]) -> Result<&mut Object, Fault> {
        self.objects.get_mut(key).ok_or_else(|| unknown(key))
    }

    /// Where an object is, and how large.
    pub(crate) fn memory(&mut self, key: &[u8]) -> Result<&Memory, Fault> {
        self.object(key).map(|object| &object.memory)
    }

    pub(crate) fn resize(&mut self, key: &[u8], len: usize) -> Result<&Memory, Fault> {
        let object = self.object(key)?;
        let name = String::from_utf8_lossy(key);
        if !object.memory.made() {
            let text = format!(
                "object {name:?} is the program's own memory: destroy it, and register what it has become"
            );
            return Err(Fault::new(Code::Invalid, text));
        }
        if let Shape::Block(_) = object.properties.shape {
            let text = format!(
                "object {name:?} is a block of an array: destroy it, and create what it has become"
            );
            return Err(Fault::new(Code::Invalid, text));
        }
        element(&name, len, object.unit as usize, &object.properties.shape)?;
        let (old, versions) = (object.memory.len(), object.properties.versions);
        self.rank.unwatch(key);
        let resized = self.object(key)?.memory.resize(len);
        let resized = resized.and_then(|()| match self.room(versions) {
            Ok(()) => Ok(()),
            Err(fault) => {
                self.object(key)?.memory.resize(old)?;
                Err(fault)
            }
        });
        self.watch(key);
        resized?;
        self.memory(key)
    }

    pub(crate) fn destroy(&mut self, key: &[u8]) -> Result<(), Fault> {
        self.objects
            .remove(key)
            .map(drop)
            .ok_or_else(|| unknown(key))
    }

    pub(crate) fn commit(&mut self) -> Result<tarn_phx::Committed, Fault> {
        let kept = self.objects.iter().filter(|(_, o)| !o.properties.transient);
        let items: Vec<Item<'_>> = kept
            .map(|(key, object)| Item {
                key,
                unit: object.unit,
                shape: object.properties.shape.clone(),
                // SAFETY: the header says that the program does not write to its objects during a commit.
                bytes: unsafe { object.memory.bytes() },
            })
            .collect();
        self.rank.commit(&items)
    }

    pub(crate) fn restart(&mut self, which: Option<VersionId>) -> Result<Option<VersionId>, Fault> {
        let kept = self
            .objects
            .iter_mut()
            .filter(|(_, o)| !o.properties.transient);
        let mut objects: Vec<Empty<'_>> = kept
            .map(|(key, object)| Empty {
                key,
                shape: object.properties.shape.clone(),
                // SAFETY: the header says that the program does not use its objects during a restart, and registers no memory twice.
                bytes: unsafe { object.memory.bytes_mut() },
            })
            .collect();
        self.rank.restart(which, &mut objects)
    }

    pub(crate) fn versions(&self) -> Vec<Restorable> {
        self.rank.restorable()
    }
}

/// The size of an element, if it and the shape fit an object.
fn element(name: &str, len: usize, unit: usize, shape: &Shape) -> Result<u32, Fault> {
    let fits = u32::try_from(unit)
        .ok()
        .filter(|u| *u > 0 && len.is_multiple_of(unit));
    let Some(unit) = fits else {
        let text = format!(
            "object {name:?} has {len} bytes, which is no multiple of elements of {unit} bytes"
        );
        return Err(Fault::new(Code::Invalid, text));
    };
    let wanted = match shape {
        Shape::Own | Shape::Replicated => return Ok(unit),
        Shape::Irregular(row) if (len as u64).is_multiple_of(*row) => return Ok(unit),
        Shape::Irregular(row) => format!("rows of {row} bytes"),
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
    Err(Fault::new(
        Code::Invalid,
        format!("object {name:?} has {len} bytes, and is said to be {wanted}"),
    ))
}

fn unknown(key: &[u8]) -> Fault {
    let text = format!(
        "there is no object {:?}: create or register it first",
        String::from_utf8_lossy(key)
    );
    Fault::new(Code::NotFound, text)
}

fn random() -> Result<u128, Fault> {
    let mut bytes = [0; 16];
    let mut filled = 0;
    while filled < bytes.len() {
        let got =
            rustix::rand::getrandom(&mut bytes[filled..], rustix::rand::GetRandomFlags::empty());
        filled += got.map_err(|e| Fault::new(Code::Io, format!("no random numbers: {e}")))?;
    }
    Ok(u128::from_le_bytes(bytes))
}

/// The thread stays on these processors; where it may not, it goes where it is sent.
fn stay_on(processors: &[usize]) {
    if !processors.is_empty() {
        let mut set = rustix::thread::CpuSet::new();
        processors.iter().for_each(|p| set.set(*p));
        let _ = rustix::thread::sched_setaffinity(None, &set);
    }
}

/// A key: `hex:` and its 64 hexadecimal digits, or a file that holds them, for its owner alone.
pub(crate) fn key(given: &Path) -> Result<[u8; 32], Fault> {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::MetadataExt;
    if let Some(text) = given.as_os_str().as_bytes().strip_prefix(b"hex:") {
        let text = String::from_utf8_lossy(text);
        return digits(&text).ok_or_else(|| {
            let text = "the key after hex: is not 64 hexadecimal digits";
            Fault::new(Code::Invalid, text)
        });
    }
    let bad = |why: String| {
        Fault::new(
            Code::Invalid,
            format!("the key in {}: {why}", given.display()),
        )
    };
    let meta = std::fs::metadata(given).map_err(|e| bad(e.to_string()))?;
    if meta.mode() & 0o077 != 0 {
        return Err(bad("others can read it: chmod 600".into()));
    }
    let text = std::fs::read_to_string(given).map_err(|e| bad(e.to_string()))?;
    digits(text.trim()).ok_or_else(|| bad("it is not 64 hexadecimal digits".into()))
}

fn digits(text: &str) -> Option<[u8; 32]> {
    let digits: Option<Vec<u8>> = text.chars().map(|c| Some(c.to_digit(16)? as u8)).collect();
    let digits = digits.filter(|d| d.len() == 64)?;
    let mut key = [0; 32];
    for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
        *byte = pair[0] << 4 | pair[1];
    }
    Some(key)
}
