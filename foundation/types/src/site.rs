//! A site as the planner sees it: a machine of thousands of nodes, jobs (batch jobs and steps of workflows) and the
//! data between them, as summaries. The vocabulary of `tarn sim`, and of a controller that serves many users.
//!
//! Reading order: [`machine`] (the resources), [`job`] and [`mask`] (the requests), [`event`] and [`action`] (events and
//! decisions), [`workload`] (jobs with their true properties, for a simulation),
//! [`result`] (the outcome), [`promise`] (the latest begin of an ordinary job).

pub mod accounted;
pub mod action;
pub mod event;
pub mod job;
pub mod machine;
pub mod mask;
pub mod promise;
pub mod result;
pub mod workload;

pub use accounted::{AccountedJob, AccountedState};
pub use action::{AllocationReason, JobNodes, Move, MoveId, SiteAction, Urgency, Where};
pub use event::{SiteEvent, SiteEventError};
pub use job::{FlowId, Input, Item, ItemId, Job, JobId, NodeShare, Spread};
pub use machine::{
    Island, Machine, Mode, ModeChange, NodeKind, NodePowerModel, Rates, Store, TierKind,
};
pub use mask::{NodeMask, NodeMaskError};
pub use result::{
    BytesByWay, Fate, FlowTotals, JobResult, MoveDirection, SiteResult, Span, SpanOf, UnrunnableJob,
};
pub use workload::{Flow, RecordedWorkload, Skipped, Submit, WorkItem, WorkJob, Workload};
