//! What the tests on a real cluster share.

pub mod accounts;
pub mod api;
pub mod counter;
pub mod opensandbox;
pub mod replica;
pub mod transcript;
pub mod world;
