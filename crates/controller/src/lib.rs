//! The loop every adapter runs.
//!
//! An adapter brings a [`backend::Backend`]; this crate reads the cluster, asks [`ayatori_core`] what to do,
//! does exactly that, and reports. It knows no backend.
//!
//! One pass over a Job is a straight line: [`reconcile_job`] reads the caches, lets
//! [`ayatori_core::lifecycle::decide`] name one step, carries it out (a question, a write by
//! [`status_writer`], an effect on the backend) and repeats, until there is nothing to do. Nothing a pass
//! learned outlives it.

pub mod adapter;
pub mod backend;
pub mod backoff;
pub mod caches;
pub mod client;
pub mod desks;
mod dispatch;
pub mod events;
pub mod failure;
#[cfg(feature = "fault-injection")]
pub mod fault;
pub mod health;
pub mod kept;
pub mod latest;
pub mod lease;
pub mod reconcile_class;
pub mod reconcile_job;
pub mod references;
pub mod status_writer;
pub mod telemetry;
#[cfg(feature = "testing")]
pub mod testing;
pub mod unknown_fields;
pub mod unmanaged;
