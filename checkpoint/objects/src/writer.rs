//! Objects that nobody sees yet.

use crate::folder::{KeyFolder, UnpublishedFile, error};
use crate::keys::{ObjectSealer, memory};
use crate::object::ObjectInfo;
use rustix::rand::{GetRandomFlags, getrandom};
use std::path::Path;
use std::slice::from_ref;
use tarn_checkpoint_core::object::{MAX_BYTES, ObjectFileLayout, Trailer, check_about, chunks};
use tarn_checkpoint_core::{CheckpointError, CheckpointErrorCode};
use tarn_media::MappedFile;
use tarn_ports::{Medium, MediumWindow};
use tarn_types::crc::crc;

/// A version that is being made: memory of the store, from [`NodeObjectStore::create`], that is filled in
/// place and then published. Dropped before that, it leaves nothing. The next writer of the key removes the
/// remains of a killed process.
///
/// [`NodeObjectStore::create`]: crate::NodeObjectStore::create
///
/// # Examples
/// ```
/// use tarn_objects::NodeObjectStore;
///
/// let folder = tempfile::tempdir().unwrap();
/// let store = NodeObjectStore::open(Some(folder.path()))?;
/// let mut writer = store.create("field", 4 * 8)?;
/// for (i, value) in writer.bytes().chunks_exact_mut(8).enumerate() {
///     value.copy_from_slice(&(i as f64).to_le_bytes());
/// }
/// let info = writer.publish("f64 4")?; // not before, anybody sees it
/// assert_eq!((info.number, info.bytes, writer.is_done()), (1, 32, true));
///
/// let mut other = store.create("field", 1 << 20)?;
/// other.abandon();
/// assert_eq!(store.versions("field")?.len(), 1);
/// # Ok::<(), tarn_objects::CheckpointError>(())
/// ```
#[derive(Debug)]
pub struct ObjectWriter {
    part: UnpublishedFile,
    mapped: MappedFile,
    /// The memory that the program fills in place, for an encrypted object; none otherwise.
    clear: Option<MappedFile>,
    encrypt: bool,
    identity: u128,
    key: Box<str>,
    length: u64,
    layout: ObjectFileLayout,
    done: bool,
}

impl ObjectWriter {
    /// `in_place`: the program fills its memory.
    pub(crate) fn new(
        folder: KeyFolder,
        (key, length): (&str, u64),
        (encrypt, in_place): (bool, bool),
    ) -> Result<Self, CheckpointError> {
        let Some(layout) = ObjectFileLayout::of(length, encrypt) else {
            let text = format!("an object has at most {MAX_BYTES} bytes, not {length}");
            return Err(CheckpointError::new(CheckpointErrorCode::Invalid, text));
        };
        if encrypt {
            // A user without a key gets the error before there is anything to lose.
            ObjectSealer::new(key)?;
        }
        let clear = (encrypt && in_place).then(|| memory(length)).transpose()?;
        let clear = clear.map(|(_, memory)| memory);
        let identity = random()?;
        let (part, file) = folder.begin(identity)?;
        let path = part.folder.path.join(&part.name);
        let mapped = MappedFile::make(file, &path, layout.total)?;
        Ok(Self {
            part,
            mapped,
            clear,
            encrypt,
            identity,
            key: key.into(),
            length,
            layout,
            done: false,
        })
    }

    /// Its memory: as many bytes as were requested, all zero at first. It stays at its address while this
    /// lives. Nobody else sees the program's writes to it after [`ObjectWriter::publish`].
    pub fn bytes(&mut self) -> &mut [u8] {
        let memory = self.clear.as_mut().unwrap_or(&mut self.mapped);
        &mut memory.bytes()[..self.length as usize]
    }

    /// Publishes it, durably and once: all see it from now on, it has the next number of its key, and never
    /// changes. `about` is up to 255 bytes for readers.
    ///
    /// # Errors
    /// - [`Invalid`](CheckpointErrorCode::Invalid): it was published or abandoned before, or `about` is too
    ///   long.
    /// - [`Busy`](CheckpointErrorCode::Busy): another writer has the key's lock. Try again.
    /// - [`Unsupported`](CheckpointErrorCode::Unsupported): this is a child that was forked from the process
    ///   that made it, which may still be filling it.
    /// - Any other: the store cannot be written. It is abandoned and leaves nothing; only if just the last
    ///   sync failed, the version is there, and may not survive a loss of power.
    pub fn publish(&mut self, about: &str) -> Result<ObjectInfo, CheckpointError> {
        if !self.part.is_own() {
            let text = "this object is of the process that this one was forked from, which alone can publish it";
            return Err(CheckpointError::new(CheckpointErrorCode::Unsupported, text));
        }
        let length = self.length;
        if let Some(mut clear) = self.clear.take() {
            let sealed = self.copied(about, &clear.bytes()[..length as usize]);
            self.clear = Some(clear);
            return sealed;
        }
        self.seal(about, (true, None), |window| {
            let bytes = &window.bytes()[..length as usize];
            let part = |c: std::ops::Range<u64>| crc(&bytes[c.start as usize..c.end as usize]);
            let sums = chunks(length).flat_map(|c| part(c).to_le_bytes()).collect();
            window.filled(0..length)?;
            Ok(sums)
        })
    }

    /// The same for data that the program has elsewhere: they are read once, copied and checksummed on the way.
    pub(crate) fn put(mut self, bytes: &[u8], about: &str) -> Result<ObjectInfo, CheckpointError> {
        self.copied(about, bytes)
    }

    /// Copies it to the store, sealed if it is to be, and publishes it.
    fn copied(&mut self, about: &str, bytes: &[u8]) -> Result<ObjectInfo, CheckpointError> {
        // Each try has a key of its own: memory may be another at the next.
        let sealing = self
            .encrypt
            .then(|| ObjectSealer::new(&self.key))
            .transpose()?;
        let identity = self.identity;
        self.seal(about, (false, sealing.as_ref()), |window| {
            let mut known = Vec::new();
            let mut buffer = Vec::new();
            for (number, c) in (0..).zip(chunks(bytes.len() as u64)) {
                let chunk = &bytes[c.start as usize..c.end as usize];
                let Some(sealing) = &sealing else {
                    known.extend(window.write(c.start, chunk)?.to_le_bytes());
                    continue;
                };
                buffer.clear();
                buffer.extend_from_slice(chunk);
                let proof = sealing.seal(identity, number, &mut buffer)?;
                known.extend(window.write(c.start, &buffer)?.to_le_bytes());
                known.extend(proof);
            }
            Ok(known)
        })
    }

    /// Fills and publishes it, with its key if it is sealed. Memory that was filled in place stays with the program.
    /// `fill` returns the chunks' entries.
    fn seal(
        &mut self,
        about: &str,
        how: (bool, Option<&ObjectSealer>),
        fill: impl FnOnce(&mut tarn_media::MappedPart<'_>) -> Result<Vec<u8>, CheckpointError>,
    ) -> Result<ObjectInfo, CheckpointError> {
        check_about(about)?;
        if self.done {
            let text = format!(
                "this draft of {:?} was published or abandoned before: create another",
                self.key
            );
            return Err(CheckpointError::new(CheckpointErrorCode::Invalid, text));
        }
        let sealed = self.seal_once(about, how, fill);
        let again = |why: &CheckpointError| why.code == CheckpointErrorCode::Busy && !self.done;
        if sealed.as_ref().is_err_and(|why| !again(why)) {
            // A file that may be there in part is not tried again.
            self.abandon();
        }
        sealed
    }

    fn seal_once(
        &mut self,
        about: &str,
        (in_place, sealing): (bool, Option<&ObjectSealer>),
        fill: impl FnOnce(&mut tarn_media::MappedPart<'_>) -> Result<Vec<u8>, CheckpointError>,
    ) -> Result<ObjectInfo, CheckpointError> {
        let mut windows = self.mapped.windows(from_ref(&(0..self.layout.total)))?;
        let window = &mut windows[0];
        let sums = fill(window)?;
        window.write(self.layout.sums, &sums)?;
        window.persist()?;
        let folder = &self.part.folder;
        let _lock = folder.lock()?;
        let last = folder.used()?.pop();
        let number = last.unwrap_or(0).checked_add(1).ok_or_else(|| {
            let text = format!("all numbers of object {:?} are used up", self.key);
            CheckpointError::new(CheckpointErrorCode::NoSpace, text)
        })?;
        let mut trailer = Trailer {
            identity: self.identity,
            key: self.key.clone(),
            number,
            length: self.length,
            sum: crc(&sums),
            about: about.into(),
            seal: None,
        };
        trailer.seal = sealing.map(|s| s.wrapped(&trailer)).transpose()?;
        window.write(self.layout.trailer, &trailer.encode())?;
        window.persist()?;
        self.done = true;
        if in_place {
            self.mapped.freeze()?;
        }
        folder.publish(&self.part.name, number, last)?;
        Ok((&trailer).into())
    }

    /// Whether it was published or abandoned.
    pub fn is_done(&self) -> bool {
        self.done
    }

    /// Gives it up at once, unless it was published. Its memory stays while this lives.
    pub fn abandon(&mut self) {
        self.done = true;
        self.part.remove();
    }
}

/// A number that no other object has.
pub(crate) fn random() -> Result<u128, CheckpointError> {
    let mut bytes = [0; 16];
    let got = getrandom(&mut bytes, GetRandomFlags::empty());
    // So few are given whole, or not at all.
    got.map_err(error("read", Path::new("random numbers")))?;
    Ok(u128::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use crate::{CheckpointErrorCode, NodeObjectStore};

    #[test]
    fn what_could_not_be_published_in_time_is_tried_again() {
        let folder = tempfile::tempdir_in("/dev/shm").unwrap();
        let store = NodeObjectStore::open(Some(folder.path())).unwrap();
        let mut draft = store.create("k", 3).unwrap();
        draft.bytes().copy_from_slice(b"all");
        let error = draft.publish(&"x".repeat(256)).unwrap_err();
        assert_eq!(error.code, CheckpointErrorCode::Invalid);
        let key = std::fs::File::open(folder.path().join("k")).unwrap();
        key.lock().unwrap();
        assert_eq!(
            draft.publish("").unwrap_err().code,
            CheckpointErrorCode::Busy
        );
        assert!(!draft.is_done());
        drop(key);
        assert_eq!(draft.publish("").unwrap().number, 1);
        assert!(draft.is_done());
        assert_eq!(store.get("k", None).unwrap(), b"all");
    }
}
