//! Keys of encrypted versions: each rank of each start has one of its own, which is stored with its versions, wrapped with the user's.

use std::sync::Arc;
use tarn_checkpoint_core::seal::{RankSealer, Unwrap};
use tarn_checkpoint_core::{CheckpointError, CheckpointErrorCode};
use tarn_keyring::of_user;
use tarn_seal::ring::KeyRing;
use tarn_seal::wrap::WrappedKeyOwner;
use tarn_sys::private::random;
use tarn_types::key::{DataKey, KEY_BYTES, KeyId};

/// The version in the owner of each wrapped key; the dataset is the program's name.
const VERSION: &str = "checkpoint";

fn owner(run: &str) -> WrappedKeyOwner<'_> {
    WrappedKeyOwner {
        uid: rustix::process::geteuid().as_raw(),
        dataset: run,
        version: VERSION,
    }
}

fn keys() -> Result<KeyRing, CheckpointError> {
    of_user().map_err(|e| CheckpointError::new(CheckpointErrorCode::Invalid, e.to_string()))
}

/// Whether a variable requests encryption.
pub(crate) fn read_switch(name: &'static str) -> Result<bool, CheckpointError> {
    tarn_keyring::read_switch(name)
        .map_err(|e| CheckpointError::new(CheckpointErrorCode::Invalid, e.to_string()))
}

/// Whether a program that encrypts takes its older versions in clear, too.
pub(crate) fn takes_clear() -> Result<bool, CheckpointError> {
    read_switch("TARN_PHX_CLEAR")
}

fn unwrap_with(keys: KeyRing, run: &str) -> Arc<Unwrap> {
    let run = run.to_owned();
    Arc::new(move |wrapped| keys.unwrap(wrapped, owner(&run)))
}

/// Opens the keys of a program's versions.
pub(crate) fn opening(run: &str) -> Result<Arc<Unwrap>, CheckpointError> {
    Ok(unwrap_with(keys()?, run))
}

/// With a new key, for a start of this program.
pub(crate) fn sealing(run: &str) -> Result<Arc<RankSealer>, CheckpointError> {
    let failed = |e: std::io::Error| {
        CheckpointError::new(CheckpointErrorCode::Io, format!("no random bytes: {e}"))
    };
    let keys = keys()?;
    let secret = random::<KEY_BYTES>().map_err(failed)?;
    let key = DataKey::new(KeyId(random().map_err(failed)?), secret.into());
    let nonce = random().map_err(failed)?;
    let wrapped = keys.newest().wrap(&key, owner(run), nonce);
    let wrapped =
        wrapped.map_err(|e| CheckpointError::new(CheckpointErrorCode::Internal, e.to_string()))?;
    let clear = takes_clear()?;
    let sealing = RankSealer::new(&key, wrapped.into(), unwrap_with(keys, run), clear)?;
    Ok(Arc::new(sealing))
}
