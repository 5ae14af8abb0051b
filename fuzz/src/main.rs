//! Puts made-up inputs to the target that `AYATORI_FUZZ_TARGET` names: see `cargo xtask fuzz`.

#![no_main]

use std::sync::OnceLock;

use ayatori_fuzz::Target;

static TARGET: OnceLock<Target> = OnceLock::new();

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let target = TARGET.get_or_init(|| {
        let name = std::env::var("AYATORI_FUZZ_TARGET").unwrap_or_default();
        *ayatori_fuzz::TARGETS
            .iter()
            .find(|target| target.name == name)
            .expect("AYATORI_FUZZ_TARGET is the name of a target")
    });
    (target.check)(data);
});
