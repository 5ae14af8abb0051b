//! What reads text from outside, each with what has to hold whatever that text is. `fuzz/README.md` tells how it is run.

mod conditions;
mod environments;
mod files;
mod patches;
mod quantities;
mod responses;
mod traceparents;

/// Something that is put to the test.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name, and that of the folder in `corpus` which holds inputs for it.
    pub name: &'static str,
    /// Panics if something does not hold of this input.
    pub check: fn(&[u8]),
}

/// All of them.
pub const TARGETS: [Target; 7] = [
    Target {
        name: "conditions",
        check: conditions::check,
    },
    Target {
        name: "environments",
        check: environments::check,
    },
    Target {
        name: "files",
        check: files::check,
    },
    Target {
        name: "patches",
        check: patches::check,
    },
    Target {
        name: "quantities",
        check: quantities::check,
    },
    Target {
        name: "responses",
        check: responses::check,
    },
    Target {
        name: "traceparents",
        check: traceparents::check,
    },
];

/// The input, if it is text.
fn text(data: &[u8]) -> Option<&str> {
    std::str::from_utf8(data).ok()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn everything_holds_of_the_inputs_that_are_kept() {
        for target in TARGETS {
            let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("corpus")
                .join(target.name);
            let entries = folder
                .read_dir()
                .unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
            let mut count = 0;
            for entry in entries {
                (target.check)(&std::fs::read(entry.unwrap().path()).unwrap());
                count += 1;
            }
            assert!(count > 0, "no inputs for {}", target.name);
        }
    }
}
