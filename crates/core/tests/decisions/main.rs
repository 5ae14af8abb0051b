//! Every decision of the crate: one table each, whole lives against a scripted backend, and random orders of
//! everything that can happen.
#![cfg(test)]

mod admission;
mod classes;
mod endings;
mod events;
mod lifecycle;
mod lives;
mod orders;
mod selection;
mod shapes;
mod ttl;
mod world;
