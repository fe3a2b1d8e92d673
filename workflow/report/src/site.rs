//! A simulated site: the results under each policy, as figures, JSON, a table and a page with charts. docs/guide/sim.md
//! defines each figure.
//!
//! Reading order: [`summary`] (the figures), [`mod@table`] (for terminals), [`page()`] (for browsers), [`plan_page`] (the plan of a real site), [`curves`] (comparisons of
//! many simulations).

mod charts;
pub mod curves;
mod page;
mod planned;
pub mod summary;
mod table;

pub use charts::Chart;
pub use page::page;
pub use planned::{PlanBar, PlanChart, plan_page};
pub use summary::{SiteRun, SiteSummary};
pub use table::table;
