//! Runs Ayatori Jobs in OpenSandbox sandboxes.
//!
//! [`backend`] answers the controller's questions and carries out its effects, as [`entrypoint`] says for commands that
//! are the entrypoint of their sandbox, and [`execd`] for those that are started in a sandbox that is up already. What it
//! asks of a server goes through [`reached`] and [`server`] (one for each endpoint: a [`client`], what lists have shown
//! as [`sightings`], what was read in sandboxes as [`insides`], and how many creates are under way as [`slots`]); what
//! answers mean is said by pure code: [`prospect`] and [`mapping`], with [`wrapper`] for what a sandbox's log shows. A
//! create request is made by [`request`] of the Job's [`environment`].

// The operators of times panic where these end, and what is computed with comes from outside.
#![cfg_attr(not(test), warn(clippy::arithmetic_side_effects))]

mod amounts;
pub mod backend;
pub mod client;
mod entrypoint;
pub mod environment;
mod execd;
mod expiry;
pub mod failure;
pub mod image_auth;
mod insides;
mod keys;
pub mod mapping;
pub mod meaning;
mod metadata;
mod prospect;
mod reached;
mod reasons;
mod request;
mod server;
mod sightings;
mod slots;
#[cfg(feature = "testing")]
pub mod stub;
pub mod wire;
pub mod wrapper;
