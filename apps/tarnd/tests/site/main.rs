//! A real `tarnd --site`, ordered about as the controller does it, with two users. Needs root and munge.

#[path = "../../../../services/munge/tests/munged/mod.rs"]
mod munged;

mod attacks;
mod hostile;
mod levels;
mod node;
mod outside;
mod projects;
mod published;
mod quiet;
mod sealed;
mod slices;
mod sources;
mod unmounted;
mod works;
