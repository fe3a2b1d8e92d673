//! Datasets of a site, as people name them: `alice/foam/mesh`, one's own `foam/mesh`, and `@climate/forcing` of a project. docs/guide/on-a-site.md.

use crate::bounds::MAX_NAME_BYTES;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The owner of a dataset.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Whose {
    /// The user who names it.
    Own,
    /// A user's, by name or number.
    User(String),
    /// A project's, which is a group, by name or number.
    Project(String),
}

/// A dataset of a site.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct NamedDataset {
    /// The owner.
    pub whose: Whose,
    /// The workflow that it belongs to; a project's belong to none.
    pub workflow: Option<String>,
    /// Its name.
    pub dataset: String,
}

/// A text that names no dataset of a site.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` names no dataset of a site: write `WORKFLOW/DATASET`, `USER/WORKFLOW/DATASET` or `@GROUP/DATASET`", .0.escape_debug())]
pub struct NotNamed(pub String);

/// A text that names no user and no group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{}` names neither a user nor a group: write `USER` or `@GROUP`", .0.escape_debug())]
pub struct Nobody(pub String);

/// Whether something may be the name of a workflow or a dataset, which become names of folders.
pub fn is_name(name: &str) -> bool {
    let fits = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    !name.is_empty()
        && name.len() <= MAX_NAME_BYTES
        && !name.starts_with('.')
        && name.bytes().all(fits)
}

/// Whether a text may be the name of a user or a group.
fn is_account(name: &str) -> bool {
    let fits = |c: char| !c.is_control() && !c.is_whitespace() && !matches!(c, '/' | '@' | ':');
    !name.is_empty() && name.len() <= MAX_NAME_BYTES && name.chars().all(fits)
}

impl NamedDataset {
    /// A project's dataset. `None` when one of them cannot be a name.
    pub fn of_project(group: &str, dataset: &str) -> Option<Self> {
        (is_account(group) && is_name(dataset)).then(|| Self {
            whose: Whose::Project(group.to_owned()),
            workflow: None,
            dataset: dataset.to_owned(),
        })
    }
}

impl FromStr for NamedDataset {
    type Err = NotNamed;

    fn from_str(text: &str) -> Result<Self, NotNamed> {
        let refused = || NotNamed(text.to_owned());
        let words: Vec<&str> = text.split('/').collect();
        if let [group, dataset] = words[..]
            && let Some(group) = group.strip_prefix('@')
        {
            return Self::of_project(group, dataset).ok_or_else(refused);
        }
        let (whose, workflow, dataset) = match words[..] {
            [workflow, dataset] => (Whose::Own, workflow, dataset),
            [user, workflow, dataset] if is_account(user) => {
                (Whose::User(user.to_owned()), workflow, dataset)
            }
            _ => return Err(refused()),
        };
        match is_name(workflow) && is_name(dataset) {
            true => Ok(Self {
                whose,
                workflow: Some(workflow.to_owned()),
                dataset: dataset.to_owned(),
            }),
            false => Err(refused()),
        }
    }
}

impl FromStr for Whose {
    type Err = Nobody;

    fn from_str(text: &str) -> Result<Self, Nobody> {
        let whose = match text.strip_prefix('@') {
            Some(group) if is_account(group) => Self::Project(group.to_owned()),
            None if is_account(text) => Self::User(text.to_owned()),
            _ => return Err(Nobody(text.to_owned())),
        };
        Ok(whose)
    }
}

impl fmt::Display for Whose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => Ok(()),
            Self::User(name) => write!(f, "{name}"),
            Self::Project(name) => write!(f, "@{name}"),
        }
    }
}

impl fmt::Display for NamedDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.whose != Whose::Own {
            write!(f, "{}/", self.whose)?;
        }
        if let Some(workflow) = &self.workflow {
            write!(f, "{workflow}/")?;
        }
        f.write_str(&self.dataset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        for text in [
            "foam/mesh",
            "alice/foam/mesh",
            "@climate/forcing",
            "1000/w.17/x",
        ] {
            let named: NamedDataset = text.parse().expect(text);
            assert_eq!(named.to_string(), text);
        }
        assert_eq!("@g".parse::<Whose>(), Ok(Whose::Project("g".into())));
        assert_eq!("bob".parse::<Whose>(), Ok(Whose::User("bob".into())));
    }

    #[test]
    fn attack_what_is_no_name_reaches_no_folder() {
        for text in [
            "",
            "mesh",
            "/",
            "a/b/c/d",
            "../mesh",
            "foam/..",
            "alice/../mesh",
            "@climate/../x",
            "@climate/a/b",
            "@/x",
            "@a@b/x",
            "foam/me\nsh",
            "foam/\u{1b}[2J",
            "al ice/foam/mesh",
            "foam/.hidden",
            "/foam/mesh",
            "foam//mesh",
        ] {
            let why = text.parse::<NamedDataset>().expect_err(text).to_string();
            assert!(!why.contains(char::is_control), "{why:?}");
        }
        for text in ["", "@", "a/b", "@a/b", "a\u{7}", "a b"] {
            assert!(text.parse::<Whose>().is_err(), "{text:?}");
        }
    }
}
