//! Running other programs, with errors that name the command and show what it said.

use anyhow::{Context, Result, bail};
use std::ffi::OsStr;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Runs to the end and returns what was printed on standard output.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let said = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("cannot run `{}`", line(command)))?;
    checked(command, said)
}

/// The same, with `input` on standard input.
pub(crate) fn output_with_input(command: &mut Command, input: &[u8]) -> Result<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run `{}`", line(command)))?;
    let written = child
        .stdin
        .take()
        .map_or(Ok(()), |mut stdin| stdin.write_all(input));
    let said = child.wait_with_output()?;
    let text = checked(command, said)?;
    written.with_context(|| format!("`{}` did not read its input", line(command)))?;
    Ok(text)
}

/// Runs to the end, showing what the program prints as it comes.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command
        .status()
        .with_context(|| format!("cannot run `{}`", line(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", line(command));
    }
    Ok(())
}

/// Whether a program of this name can be found on the PATH, or in one of `more`.
pub(crate) fn exists(name: &str, more: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(more.iter().map(|folder| Path::new(folder).to_path_buf()))
        .any(|folder| folder.join(name).is_file())
}

fn checked(command: &Command, said: Output) -> Result<String> {
    if !said.status.success() {
        let stderr = String::from_utf8_lossy(&said.stderr);
        bail!("`{}` failed ({}): {}", line(command), said.status, stderr.trim());
    }
    Ok(String::from_utf8_lossy(&said.stdout).into_owned())
}

/// The command as a person would type it: the program by its name alone.
fn line(command: &Command) -> String {
    let program = Path::new(command.get_program()).file_name().unwrap_or_default();
    std::iter::once(program)
        .chain(command.get_args())
        .map(OsStr::to_string_lossy)
        .collect::<Vec<_>>()
        .join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failing_command_is_named_with_what_it_said() {
        let error =
            output(Command::new("/bin/sh").args(["-c", "echo no such thing >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("`sh -c"), "{text}");
        assert!(text.ends_with("(exit status: 3): no such thing"), "{text}");
    }

    #[test]
    fn input_reaches_the_command() {
        assert_eq!(
            output_with_input(&mut Command::new("cat"), b"hello").unwrap(),
            "hello"
        );
    }
}
