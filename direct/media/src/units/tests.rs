//! Losses of power and deaths at any moment, on a medium that is emulated; and calls that the system refuses.

mod begin;
mod emulated;
mod power;
mod refused;
