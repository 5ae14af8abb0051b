//! The API types of Ayatori execution and every decision about them.
//!
//! A [`job::Job`] asks for one execution; a [`job_class::JobClass`] offers a service level and names the
//! controller that provides it; a parameters object ([`parameters`]) holds what only that controller
//! understands. Everything an adapter *decides* about these objects is a pure function in this crate: of what
//! was read and of the time, with no IO, clock or randomness of its own.

pub mod admission;
pub mod class;
pub mod conditions;
pub mod crd;
pub mod ending;
pub mod execution;
mod format;
pub mod job;
pub mod job_class;
pub mod lifecycle;
pub mod names;
pub mod ownership;
pub mod parameters;
pub mod quantity;
pub mod report;
pub mod resources;
pub mod stage;
pub mod ttl;
