//! The machine, and what is measured on it.

use anyhow::Context;
use procfs::Current;

use crate::figures::Setting;
use crate::stage::Stage;

/// This machine.
pub(crate) fn here(stage: &Stage, at_most: Option<u32>) -> anyhow::Result<Setting> {
    let processors = procfs::CpuInfo::current()?;
    let memory = procfs::Meminfo::current()?;
    Ok(Setting {
        processor: processors.model_name(0).unwrap_or("unknown").trim().to_owned(),
        cores: processors.num_cores(),
        memory_gib: memory.mem_total.div_ceil(1 << 30),
        kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")
            .context("reading the kernel's version")?
            .trim()
            .to_owned(),
        kubernetes: version_of(&stage.apiserver.program),
        profile: stage.profile.clone(),
        revision: stage.revision.clone().unwrap_or_else(|| "unknown".to_owned()),
        at_most,
    })
}

/// The programs are kept in folders named by version and build.
fn version_of(program: &std::path::Path) -> String {
    let folder = program.ancestors().find_map(|path| {
        let name = path.file_name()?.to_str()?;
        let (version, _) = name.split_once('-')?;
        version
            .starts_with(|c: char| c.is_ascii_digit())
            .then(|| version.to_owned())
    });
    folder.unwrap_or_else(|| "unknown".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_programs_version_is_that_of_its_folder() {
        let path = std::path::Path::new("/c/kube-apiserver/1.35.4-0a1b2c/kube-apiserver");
        assert_eq!(version_of(path), "1.35.4");
    }
}
