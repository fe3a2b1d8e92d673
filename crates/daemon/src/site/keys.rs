//! The site's secrets, as a session brings them, and what is derived from them for a user. docs/site.md, "Encryption between jobs".

use super::shelf;
use serde::{Deserialize, Serialize};
use tarn_base::key::KeyId;
use tarn_munge::{KEY_BYTES, Secret};
use tarn_proto::site::Uid;
use tarn_seal::wrap::WrappingKey;

/// What the controller tells a node's tarnd, and nobody else.
#[derive(Clone)]
pub(crate) struct Secrets {
    /// Of workers' data plane.
    pub(crate) site: Secret,
    /// Of encrypted data, the newest first.
    pub(crate) data: Vec<Secret>,
}

/// What a user's worker is told.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct UserKeys {
    /// The key of this user's data plane.
    pub(super) plane: [u8; KEY_BYTES],
    /// The user's wrapping keys, the newest first.
    wrapping: Vec<([u8; 16], [u8; KEY_BYTES])>,
}

impl std::fmt::Debug for UserKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UserKeys")
    }
}

impl Secrets {
    /// As they come with a session: the first is the site's.
    pub(crate) fn of(mut all: Vec<Secret>) -> Option<Self> {
        let data = all.split_off(all.len().min(1));
        all.pop().map(|site| Self { site, data })
    }

    /// As they go with a session.
    pub(crate) fn all(&self) -> Vec<Secret> {
        let site = std::iter::once(&self.site);
        site.chain(&self.data).cloned().collect()
    }

    pub(super) fn of_user(&self, user: Uid) -> UserKeys {
        let derived = self.data.iter().map(|secret| {
            let mut id = [0; 16];
            id.copy_from_slice(&secret.derive(b"id").bytes()[..16]);
            let purpose = format!("data of user {user}");
            (id, *secret.derive(purpose.as_bytes()).bytes())
        });
        UserKeys {
            plane: shelf::user_key(&self.site, user),
            wrapping: derived.collect(),
        }
    }
}

impl UserKeys {
    /// Keys that wrap those of data.
    pub(super) fn wrapping(&self) -> Vec<WrappingKey> {
        let keys = self.wrapping.iter();
        let key = |(id, secret): &([u8; 16], [u8; KEY_BYTES])| {
            WrappingKey::new(KeyId(*id), (*secret).into())
        };
        keys.map(key).collect()
    }
}
