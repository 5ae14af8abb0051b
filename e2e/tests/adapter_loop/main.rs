//! The loop of every adapter, run against a real API server with a backend in memory.
//!
//! Each test owns a controller name, so neither other tests nor installed adapters touch its classes. The
//! control plane alone is enough. `ADAPTER_LOG=debug` shows what the replicas say.

mod crashes;
mod life;
mod ownership;
mod protection;
mod stopping;
mod trial;
mod uncertainty;
