//! L3: the file of a user's keys. docs/admin/security.md describes their use, docs/reference/formats.md the content.

use std::fs::OpenOptions;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use tarn_seal::ring::{KeyRing, MAX_BYTES, RingError};
use tarn_seal::wrap::WrappingKey;
use tarn_sys::private::{publish, random};
use tarn_types::key::{KEY_BYTES, KeyId};
use zeroize::Zeroizing;

/// Why a user's file of keys cannot be used. It never quotes what is in it.
#[derive(Debug, thiserror::Error)]
pub enum KeyFileError {
    /// There is none.
    #[error("there is no key of yours at {}; `tarn key new` makes one", .0.display())]
    Missing(PathBuf),
    /// There is one already.
    #[error("{} is there already, and data may be sealed with it; `tarn key rotate` makes a new key beside it", .0.display())]
    Exists(PathBuf),
    /// Others could read it.
    #[error("{} has mode {mode:04o}: others can read your keys; `chmod 600` it, and rotate them if somebody has", .path.display())]
    Open {
        /// The file.
        path: PathBuf,
        /// Its mode.
        mode: u32,
    },
    /// It is somebody else's, or no file.
    #[error("{} is not a regular file that you own; remove it, or give the folder of your keys (XDG_CONFIG_HOME)", .0.display())]
    Foreign(PathBuf),
    /// There is nowhere to look.
    #[error(
        "neither XDG_CONFIG_HOME nor HOME is set, so there is no place for your keys; set one of them"
    )]
    Homeless,
    /// Its content is not valid.
    #[error("{}: {source}", .path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The error in it.
        source: RingError,
    },
    /// A variable that is neither on nor off.
    #[error("{name} is {value:?}: set it to 1, or to 0, or not at all")]
    Switch {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
    },
    /// The system refused something.
    #[error("cannot {what} {}: {source}", .path.display())]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// To what.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

fn io_error(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> KeyFileError {
    let path = path.to_path_buf();
    move |source| KeyFileError::Io { what, path, source }
}

/// The file of the user's keys: `tarn/key` in the folder of configurations.
///
/// # Errors
/// [`KeyFileError::Homeless`].
pub fn user_file() -> Result<PathBuf, KeyFileError> {
    let folder = |name: &str| std::env::var_os(name).filter(|v| Path::new(v).is_absolute());
    let config = folder("XDG_CONFIG_HOME").map(PathBuf::from);
    let config = config.or_else(|| Some(PathBuf::from(folder("HOME")?).join(".config")));
    Ok(config
        .ok_or(KeyFileError::Homeless)?
        .join("tarn")
        .join("key"))
}

/// Whether a variable asks for encryption. A value that is neither 1 nor 0 is refused: taken for 0, it would leave in clear data
/// that the user wants encrypted.
///
/// # Errors
/// [`KeyFileError::Switch`].
pub fn read_switch(name: &'static str) -> Result<bool, KeyFileError> {
    let value = std::env::var_os(name).unwrap_or_default();
    match value.as_encoded_bytes() {
        b"" | b"0" => Ok(false),
        b"1" => Ok(true),
        _ => Err(KeyFileError::Switch {
            name,
            value: value.to_string_lossy().into_owned(),
        }),
    }
}

/// The keys of the user that this program runs as.
///
/// # Errors
/// As of [`user_file`] and [`read`].
pub fn of_user() -> Result<KeyRing, KeyFileError> {
    read(&user_file()?)
}

/// Reads a user's keys.
///
/// # Errors
/// When there is none, others could read it, or it holds anything else.
pub fn read(path: &Path) -> Result<KeyRing, KeyFileError> {
    let mut options = OpenOptions::new();
    // A pipe that is put there must not stop us.
    let flags = rustix::fs::OFlags::NONBLOCK.bits();
    let opened = options.read(true).custom_flags(flags as i32).open(path);
    let file = opened.map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => KeyFileError::Missing(path.into()),
        _ => io_error("open", path)(e),
    })?;
    let meta = file.metadata().map_err(io_error("examine", path))?;
    if !meta.is_file() || meta.uid() != rustix::process::geteuid().as_raw() {
        return Err(KeyFileError::Foreign(path.into()));
    }
    let mode = meta.mode() & 0o7777;
    if mode & 0o077 != 0 {
        return Err(KeyFileError::Open {
            path: path.into(),
            mode,
        });
    }
    // Room for all of it from the start: a buffer that grows leaves copies behind.
    let mut text = Zeroizing::new(String::with_capacity(MAX_BYTES + 1));
    let most = MAX_BYTES as u64 + 1;
    let read = file.take(most).read_to_string(&mut text);
    read.map_err(io_error("read", path))?;
    let content = |source| KeyFileError::Content {
        path: path.into(),
        source,
    };
    match text.len() > MAX_BYTES {
        true => Err(content(RingError::Many)),
        false => KeyRing::parse(&text).map_err(content),
    }
}

/// Writes a user's keys, whole or not at all.
///
/// # Errors
/// [`KeyFileError::Exists`] unless it may `replace` what is there.
pub fn write(path: &Path, keys: &KeyRing, replace: bool) -> Result<(), KeyFileError> {
    if !replace && path.symlink_metadata().is_ok() {
        return Err(KeyFileError::Exists(path.into()));
    }
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(io_error("create", folder))?;
    }
    let text = keys.text();
    publish(path, text.as_bytes(), replace).map_err(|e| match e.kind() {
        io::ErrorKind::AlreadyExists => KeyFileError::Exists(path.into()),
        _ => io_error("write", path)(e),
    })
}

/// A new wrapping key.
///
/// # Errors
/// When the machine has no random bytes.
pub fn fresh() -> io::Result<WrappingKey> {
    let secret = Zeroizing::new(random::<KEY_BYTES>()?);
    Ok(WrappingKey::new(KeyId(random()?), secret))
}
