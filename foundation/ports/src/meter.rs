//! The power draw of a machine, measured while steps run on it.

use tarn_types::energy::{Draw, Energy};

/// Measures this machine. docs/admin/energy.md lists the sources.
pub trait Meter: Send + Sync {
    /// Its power draw and temperature now. Takes some tenths of a second where a counter has to be read twice.
    fn draw(&self) -> Draw;

    /// An activity begins that uses so many cores; none where nothing can be measured. The machine's draw is divided by cores
    /// among all activities that run at a time.
    fn begin(&self, cores: u32) -> Option<Box<dyn MeteredActivity>>;
}

/// An activity whose share of the machine's draw is counted. Dropped, it has none any more.
pub trait MeteredActivity: Send {
    /// It ends; its share, if that is known from its beginning to now.
    fn end(self: Box<Self>) -> Option<Energy>;
}
