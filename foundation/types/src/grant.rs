//! Access lists: rights to things of another owner.

use serde::{Deserialize, Serialize};

/// Lines of an access list, at most.
pub const MAX_GRANTS: usize = 64;

/// A user or group that may have something, besides its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Grantee {
    /// A user, as the kernel numbers them.
    User(u32),
    /// A group.
    Group(u32),
}

/// One line of an access list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The reader.
    pub who: Grantee,
    /// And write it.
    pub write: bool,
}

/// Whether a user of these groups may have it, to read or to `write`: one line with the right is enough.
pub fn admits(owner: u32, grants: &[Grant], user: u32, groups: &[u32], write: bool) -> bool {
    let named = |who: Grantee| match who {
        Grantee::User(id) => id == user,
        Grantee::Group(id) => groups.contains(&id),
    };
    let granted = |grant: &Grant| named(grant.who) && (grant.write || !write);
    user == owner || grants.iter().any(granted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_owner_and_who_is_named_may_and_nobody_else() {
        let list = [
            Grant {
                who: Grantee::User(7),
                write: false,
            },
            Grant {
                who: Grantee::Group(7),
                write: true,
            },
        ];
        let may =
            |user, groups: &[u32]| [false, true].map(|write| admits(1, &list, user, groups, write));
        assert_eq!(may(1, &[]), [true, true]);
        assert_eq!(may(7, &[1, 100]), [true, false]);
        assert_eq!(may(8, &[7]), [true, true]);
        assert_eq!(may(7, &[7]), [true, true]);
        assert_eq!(may(8, &[1, 8]), [false, false]);
        assert_eq!(may(0, &[0]), [false, false]);
    }
}
