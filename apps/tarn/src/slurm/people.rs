//! Users and groups of a site: people write names, the site has numbers.

use crate::error::{CliError, CliResult};
use std::collections::BTreeMap;
use tarn_proto::site::{Gid, Owner, Uid};
use tarn_sys::users;
use tarn_types::codes::Exit;
use tarn_types::named::{NamedDataset, Whose};

fn unknown(what: &str, why: &std::io::Error) -> CliError {
    let text = format!("who {what} is cannot be found out: {why}");
    CliError::new(Exit::State, text)
}

/// The groups that a user is in.
pub(crate) fn groups_of(user: Uid, group: Gid) -> CliResult<Vec<Gid>> {
    users::groups_of(user, group).map_err(|e| unknown(&format!("user {user}"), &e))
}

/// Whom these name, as far as they are known here.
pub(crate) fn numbers<'a>(
    named: impl Iterator<Item = &'a NamedDataset>,
) -> CliResult<BTreeMap<String, Owner>> {
    let mut all = BTreeMap::new();
    for whose in named.map(|n| &n.whose).filter(|w| **w != Whose::Own) {
        if let Some(owner) = find_owner(whose)? {
            all.insert(whose.to_string(), owner);
        }
    }
    Ok(all)
}

/// The user or project, by its name, or by its number if nobody has it for a name. `Own` is the caller.
fn find_owner(whose: &Whose) -> CliResult<Option<Owner>> {
    let failed = |e| unknown(&whose.to_string(), &e);
    let number = |text: &str| text.parse().ok();
    Ok(match whose {
        Whose::Own => Some(Owner::User(rustix::process::getuid().as_raw())),
        Whose::User(name) => {
            let known = users::user(name).map_err(failed)?;
            known.or_else(|| number(name)).map(Owner::User)
        }
        Whose::Project(name) => {
            let known = users::group(name).map_err(failed)?;
            known.or_else(|| number(name)).map(Owner::Project)
        }
    })
}

/// The same, and an error where nobody is called so.
pub(crate) fn number(whose: &Whose) -> CliResult<Owner> {
    find_owner(whose)?.ok_or_else(|| {
        let what = match whose {
            Whose::Project(_) => "group",
            _ => "user",
        };
        let text = format!("there is no {what} `{whose}` on this host");
        CliError::new(Exit::NotFound, text)
    })
}

/// Names of numbers, each looked up once.
#[derive(Debug, Default)]
pub(crate) struct OwnerNames(BTreeMap<Owner, String>);

impl OwnerNames {
    /// As people write it; the number where there is no name.
    pub(crate) fn of(&mut self, owner: Owner) -> &str {
        self.0.entry(owner).or_insert_with(|| match owner {
            Owner::User(uid) => {
                let name = users::user_name(uid).ok().flatten();
                name.unwrap_or_else(|| uid.to_string())
            }
            Owner::Project(gid) => {
                let name = users::group_name(gid).ok().flatten();
                format!("@{}", name.unwrap_or_else(|| gid.to_string()))
            }
        })
    }

    /// A dataset's whole name.
    pub(crate) fn dataset(&mut self, owner: Owner, workflow: &str, dataset: &str) -> String {
        let whose = self.of(owner);
        match owner {
            Owner::User(_) => format!("{whose}/{workflow}/{dataset}"),
            Owner::Project(_) => format!("{whose}/{dataset}"),
        }
    }
}
