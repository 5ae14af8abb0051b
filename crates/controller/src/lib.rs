//! The loop every adapter runs.
//!
//! An adapter brings a [`backend::Backend`]; this crate reads the cluster, asks [`ayatori_core`] what to do,
//! does exactly that, and reports. It knows no backend.

pub mod backend;
