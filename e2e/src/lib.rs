//! What the tests on a real cluster share.

pub mod accounts;
pub mod api;
pub mod audit;
pub mod charts;
pub mod collector;
pub mod counter;
pub mod documented;
pub mod gate;
pub mod ground;
pub mod manual;
pub mod opensandbox;
pub mod prometheus;
pub mod replica;
pub mod sandboxes;
pub mod shell;
pub mod transcript;
pub mod witness;
pub mod world;
