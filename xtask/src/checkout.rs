//! Where things lie in this checkout.

use std::path::{Path, PathBuf};

/// The folder of the workspace. Fixed when xtask is compiled, so that the binary works from any folder.
pub(crate) fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("xtask lies inside the workspace")
}

/// Cargo's target folder.
pub(crate) fn target() -> PathBuf {
    root().join("target")
}

/// Everything the local cluster keeps.
pub(crate) fn cluster_state() -> PathBuf {
    target().join("cluster")
}

/// The OCI archives of the project's images.
pub(crate) fn images() -> PathBuf {
    target().join("images")
}
