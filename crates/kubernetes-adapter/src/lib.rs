//! Runs Ayatori Jobs as native batch/v1 Jobs.
//!
//! [`backend`] answers the controller's questions and carries out its effects: it reads caches that `watch`
//! fills with `view`s, lets `observe` say what they mean, makes batch Jobs with `manifest`, by the names of
//! [`name`], and talks to the API server through `requests`. `tidy` lets go of pods that nobody looks after.

// The operators of times panic where these end, and what is computed with comes from outside.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

pub mod backend;
mod cache;
#[cfg(test)]
mod fixture;
mod manifest;
pub mod meaning;
pub mod name;
mod observe;
mod requests;
mod tidy;
mod view;
mod watch;
