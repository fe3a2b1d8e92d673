//! What a machine draws, as it is measured while steps run on it.

use tarn_types::energy::{Draw, Energy};

/// Measures this machine. docs/admin/energy.md tells by what.
pub trait Meter: Send + Sync {
    /// What it draws now and how warm it is. Takes some tenths of a second where a counter has to be read twice.
    fn draw(&self) -> Draw;

    /// Something begins here that takes so many cores; none where nothing can be measured. What the machine draws is divided by
    /// cores among all that runs at a time.
    fn begin(&self, cores: u32) -> Option<Box<dyn MeteredActivity>>;
}

/// Something whose share of what the machine draws is counted. Dropped, it has none any more.
pub trait MeteredActivity: Send {
    /// It ends; its share, if that is known from its beginning to now.
    fn end(self: Box<Self>) -> Option<Energy>;
}
