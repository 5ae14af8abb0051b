//! A backend in memory, for the tests of the loop and as the first thing to read for whoever writes an adapter.
//!
//! - [`fake`]: a [`Backend`](crate::backend::Backend) that can play both start protocols. A real one differs in
//!   what its requests look like, not in its shape.
//! - [`server`]: the server behind it. It outlives adapters, counts how often each command really started, and
//!   misbehaves when told to.
//! - [`conformance`]: what every backend promises, tried on whichever there is.
//! - [`death`]: the crash of a process at a chosen step.
//! - [`replica`]: a whole adapter in the test's own process, to be started, stopped and killed.

pub mod conformance;
pub mod death;
pub mod fake;
pub mod replica;
pub mod server;
