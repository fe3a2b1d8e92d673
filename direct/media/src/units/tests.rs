//! Losses of power and deaths at any moment, on a medium that is played; and what the system refuses.

mod begin;
mod played;
mod power;
mod refused;
