//! A simulated world, searched exhaustively: an API server, two controller processes with stale caches that
//! crash, a network that delays and loses, a backend of each kind, users, and a clock. The processes run the
//! real `decide` on real objects. Every order of everything that can happen is tried, within the bounds that a
//! scenario states, and beyond them at random.
//!
//! - [`objects`]: real Jobs and classes, kept once each and known by a number.
//! - [`mind`]: what a process knows, as the real `Facts`; what `decide` makes of it.
//! - [`backend`]: executions, and requests on their way.
//! - [`eyes`]: what the real adapters make of what a backend shows of them: an API server ([`cluster`]), or an
//!   OpenSandbox server ([`sandboxes`]).
//! - [`state`]: everything there is, in one small value.
//! - [`events`]: what can happen next: to a [`process`] in its pass, by its [`effects`], and in its
//!   [`surroundings`].
//! - [`promises`]: what must never be the case.
//! - [`atlas`]: every state that was reached, each in 16 bytes.
//! - [`search`]: every state, the shortest way to a broken promise, and whether every Job comes to its end.
//! - [`walk`]: random histories, beyond what can be searched.
//! - [`story`]: events in words.
//! - [`scenarios`]: what is searched, and the deliberate [`faults`] that must be found.
//! - [`proof`]: the figures in `docs/reference/proof.md`, kept true.
#![cfg(test)]

mod atlas;
mod backend;
mod cluster;
mod effects;
mod events;
mod eyes;
mod faults;
mod mind;
mod objects;
mod process;
mod promises;
mod proof;
mod sandboxes;
mod scenarios;
mod search;
mod state;
mod story;
mod surroundings;
mod walk;
