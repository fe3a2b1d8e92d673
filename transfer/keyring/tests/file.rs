//! The file of a user's keys.

use std::os::unix::fs::PermissionsExt;
use tarn_keyring::{self as keys, KeyFileError};
use tarn_seal::ring::KeyRing;

#[test]
fn the_users_file_of_keys_is_their_own() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("tarn/key");
    assert!(matches!(keys::read(&path), Err(KeyFileError::Missing(_))));
    let first = KeyRing::new(keys::fresh().expect("random bytes"));
    keys::write(&path, &first, false).expect("a file");
    let mode = path.metadata().expect("a file").permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    assert!(matches!(
        keys::write(&path, &first, false),
        Err(KeyFileError::Exists(_))
    ));
    let read = keys::read(&path).expect("keys");
    assert_eq!(read.newest().id(), first.newest().id());
    for mode in [0o640, 0o604, 0o620] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("a mode");
        let refused = keys::read(&path)
            .expect_err("others can read it")
            .to_string();
        assert!(refused.contains("chmod 600"), "{refused}");
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("a mode");
    std::fs::write(&path, "tarn-key 1 00 11").expect("a file");
    assert!(matches!(
        keys::read(&path),
        Err(KeyFileError::Content { .. })
    ));
    std::fs::write(&path, vec![b'#'; 1 << 20]).expect("a file");
    assert!(matches!(
        keys::read(&path),
        Err(KeyFileError::Content { .. })
    ));
    let left = std::fs::read_dir(dir.path().join("tarn")).expect("a folder");
    assert_eq!(left.count(), 1, "no temporary file is left");
}
