//! The adapter of OpenSandbox servers, run against a real API server and a hostile server.
//!
//! Each test owns a controller name and a server, so neither other tests nor installed adapters touch its classes. The
//! control plane alone is enough. `ADAPTER_LOG=debug` shows what the adapters say.

mod answers;
mod capacity;
mod classes;
mod deletions;
mod keys;
mod lists;
mod load;
mod requests;
mod states;
mod stops;
mod trial;
