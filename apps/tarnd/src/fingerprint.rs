//! The fingerprint of a list of files, to tell later whether they are still the same.

use tarn_types::hash::Hash;
use tarn_types::manifest::{EntryKind, Manifest};

/// A hash that shows whether an object is still the listed one, and nothing has been written since: of its device and inode, names
/// (not that of a single file), kinds, sizes, modes and times. An object that has taken its name meanwhile may look the same, and
/// be its own copy, where two nodes or names lead to one place.
pub(crate) fn fingerprint(list: &Manifest, (device, inode): (u64, u64)) -> u128 {
    let mut hasher = tarn_types::hash::Hasher::new();
    hasher.field(b"tarn list 2").number(device).number(inode);
    let single =
        matches!(&list.entries[..], [only] if !only.is_folder() && !only.path.contains(&b'/'));
    for entry in &list.entries {
        if !single {
            hasher.field(&entry.path);
        }
        match &entry.kind {
            EntryKind::Directory => hasher.field(b"d"),
            EntryKind::File { size, .. } => hasher.field(b"f").number(*size),
            EntryKind::Symlink(target) => hasher.field(b"l").field(target),
        };
        hasher
            .number(u64::from(entry.mode))
            .number(entry.mtime.cast_unsigned());
    }
    let Hash(print) = hasher.finish();
    print
}
