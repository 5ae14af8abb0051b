//! Runs Ayatori Jobs in OpenSandbox sandboxes.

pub mod client;
pub mod environment;
pub mod image_auth;
pub mod wire;
pub mod wrapper;
