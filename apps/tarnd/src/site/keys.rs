//! The site's secrets, as a session brings them, and the keys derived from them for a user and the user's projects. docs/internals/site.md, "Encryption between jobs".

use super::site_registry;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use tarn_munge::{KEY_BYTES, SecretBytes};
use tarn_proto::site::{Gid, Owner, Uid};
use tarn_seal::wrap::WrappingKey;
use tarn_types::key::KeyId;

/// Secrets that the controller sends to a node's tarnd, and to nobody else.
#[derive(Clone)]
pub(crate) struct Secrets {
    /// Of workers' data plane.
    pub(crate) site: SecretBytes,
    /// Of encrypted data, the newest first.
    pub(crate) data: Vec<SecretBytes>,
}

/// The keys that a user's worker gets.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct UserKeys {
    /// The key of this user's data plane.
    pub(super) plane: [u8; KEY_BYTES],
    /// Wrapping keys, by the data's owner, the newest first.
    wrapping: Vec<(Owner, Vec<Derived>)>,
}

/// The id of a secret, and the key derived from it.
type Derived = ([u8; 16], [u8; KEY_BYTES]);

/// Wrapping keys, by the data's owner, the newest first.
pub(super) type WrappingKeys = BTreeMap<Owner, Vec<WrappingKey>>;

impl std::fmt::Debug for UserKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("UserKeys")
    }
}

impl Secrets {
    /// As they come with a session: the first is the site's.
    pub(crate) fn of(mut all: Vec<SecretBytes>) -> Option<Self> {
        let data = all.split_off(all.len().min(1));
        all.pop().map(|site| Self { site, data })
    }

    /// As they go with a session.
    pub(crate) fn all(&self) -> Vec<SecretBytes> {
        let site = std::iter::once(&self.site);
        site.chain(&self.data).cloned().collect()
    }

    /// Those of a user who is in these groups.
    pub(super) fn of_user(&self, user: Uid, groups: &[Gid]) -> UserKeys {
        let projects = groups.iter().map(|gid| Owner::Project(*gid));
        let owners = std::iter::once(Owner::User(user)).chain(projects);
        UserKeys {
            plane: site_registry::user_key(&self.site, user),
            wrapping: owners.map(|owner| (owner, self.of_owner(owner))).collect(),
        }
    }

    fn of_owner(&self, owner: Owner) -> Vec<Derived> {
        let purpose = match owner {
            Owner::User(user) => format!("data of user {user}"),
            Owner::Project(gid) => format!("data of project {gid}"),
        };
        let derived = self.data.iter().map(|secret| {
            let mut id = [0; 16];
            id.copy_from_slice(&secret.derive(b"id").bytes()[..16]);
            (id, *secret.derive(purpose.as_bytes()).bytes())
        });
        derived.collect()
    }
}

impl UserKeys {
    /// Keys that wrap those of data.
    pub(super) fn wrapping(&self) -> WrappingKeys {
        let key = |(id, secret): &Derived| WrappingKey::new(KeyId(*id), (*secret).into());
        let owners = self.wrapping.iter();
        let keys = owners.map(|(owner, keys)| (*owner, keys.iter().map(key).collect()));
        keys.collect()
    }
}
