//! A site: ordinary jobs with `#TARN` lines on a real Slurm, with the controller on the login node and a root tarnd on each node.

mod accounts;
mod attacks;
mod bad_days;
mod chain;
mod clients;
mod data;
mod drive;
mod drive_begin;
mod drive_days;
mod drive_users;
mod exported;
mod jobs;
mod levels;
mod objects;
mod order;
mod plan;
mod power;
mod reader;
mod restart;
mod scatter;
mod sealed;
mod setup;
mod submit;
mod twin;
