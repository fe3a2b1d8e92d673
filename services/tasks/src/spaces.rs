//! Changes of dataspaces.

use crate::core::Core;
use crate::record::TaskLogRecord;
use crate::space::Space;
use crate::{MAX_SPACES, TaskAction, TaskReply};
use std::collections::BTreeMap;
use tarn_proto::local::{Code, RequestError, SpaceChange, SpaceInfo, UserId};
use tarn_types::units::Time;

impl Core {
    pub(crate) fn change_space(
        &mut self,
        user: UserId,
        change: SpaceChange,
        actions: &mut Vec<TaskAction>,
    ) -> TaskReply {
        match self.try_change_space(user, &change) {
            Ok(()) => {
                actions.push(TaskAction::Record(TaskLogRecord::Space(change)));
                TaskReply::Done
            }
            Err(why) => TaskReply::Refused(why),
        }
    }

    fn try_change_space(&mut self, user: UserId, change: &SpaceChange) -> Result<(), RequestError> {
        let denied = |what: &str| {
            let text = format!("user {user} may not {what}: ask the user that runs tarnd");
            Err(RequestError::new(Code::Denied, text))
        };
        let unknown = |name: &str| {
            let text = format!(
                "there is no dataspace `{}` on this node",
                name.escape_debug()
            );
            RequestError::new(Code::NotFound, text)
        };
        match change {
            SpaceChange::Make { name, spec } => {
                crate::check::space(name, spec)?;
                if !self.manages(user) {
                    return denied("make dataspaces");
                }
                if self.spaces.contains_key(name) {
                    let text = format!("there is a dataspace `{name}` already");
                    return Err(RequestError::new(Code::Exists, text));
                }
                if self.spaces.len() >= MAX_SPACES {
                    let text = format!("there are {MAX_SPACES} dataspaces already");
                    return Err(RequestError::new(Code::Busy, text));
                }
            }
            SpaceChange::Change { name, spec } => {
                crate::check::space(name, spec)?;
                let space = self.spaces.get(name).ok_or_else(|| unknown(name))?;
                if !space.access(&self.config, user).manage {
                    return denied("change this dataspace");
                }
                if space.spec.root != spec.root {
                    let text = "the root of a dataspace cannot be changed: make a new one";
                    return Err(RequestError::new(Code::Invalid, text));
                }
            }
            SpaceChange::Remove { name } => {
                let space = self.spaces.get(name).ok_or_else(|| unknown(name))?;
                if !space.access(&self.config, user).manage {
                    return denied("remove this dataspace");
                }
                if space.tasks > 0 {
                    let text = format!(
                        "{} tasks use dataspace `{name}`; cancel them or wait",
                        space.tasks
                    );
                    return Err(RequestError::new(Code::Busy, text));
                }
            }
        }
        self.apply_space(change, false);
        Ok(())
    }

    /// A survey has ended.
    pub(crate) fn surveyed(
        &mut self,
        now: Time,
        name: &str,
        found: Result<BTreeMap<UserId, u64>, RequestError>,
        actions: &mut Vec<TaskAction>,
    ) {
        let space = self.spaces.get_mut(name);
        if let Some(most) = space.and_then(|s| s.survey_ends(now, found)) {
            self.cap_jobs(name, most, actions);
        }
    }

    /// Changes spaces without a check of rights.
    pub(crate) fn apply_space(&mut self, change: &SpaceChange, fixed: bool) {
        match change {
            SpaceChange::Make { name, spec } => {
                let space = Space::new(spec.clone(), fixed);
                self.spaces.insert(name.clone(), space);
            }
            SpaceChange::Change { name, spec } => {
                if let Some(space) = self.spaces.get_mut(name) {
                    space.spec = spec.clone();
                }
            }
            SpaceChange::Remove { name } => {
                self.spaces.remove(name);
            }
        }
    }

    /// The spaces that a user may see.
    pub fn spaces_for(&self, user: UserId) -> Vec<SpaceInfo> {
        let all = self.spaces.iter();
        let infos = all.map(|(name, space)| space.info(name, &self.config, user));
        infos
            .filter(|i| i.access.read || i.access.write || i.access.manage)
            .collect()
    }
}
