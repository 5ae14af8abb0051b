//! The scripts with the shells that are /bin/sh in one distribution or another, and what their files mean.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;

use ayatori_core::ending;
use ayatori_core::job::{Outcome, Stop, StopReason};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use secrecy::{ExposeSecret, SecretString};
use tempfile::TempDir;

use super::*;
use crate::environment::Environment;
use crate::wire::RunCommand;

const SHELLS: [&str; 3] = ["dash", "bash", "busybox"];
const ATTEMPT: &str = "5f0c";

/// A sandbox: a place of its own that stands for /tmp, and a shell.
struct Sandbox {
    shell: &'static str,
    dir: TempDir,
}

/// A process that ends with its test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Process {
    fn code(mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }
}

impl Sandbox {
    fn all() -> impl Iterator<Item = Self> {
        SHELLS.into_iter().map(|shell| {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("tmp")).unwrap();
            fs::create_dir(dir.path().join("bin")).unwrap();
            let found = ["/bin", "/usr/bin"].map(|bin| Path::new(bin).join(shell));
            let found = found.into_iter().find(|path| path.exists());
            let found = found.expect("install the packages dash, bash and busybox-static");
            std::os::unix::fs::symlink(found, dir.path().join("bin/sh")).unwrap();
            Self { shell, dir }
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What stands for a path of the sandbox.
    fn real(&self, path: &str) -> String {
        path.replace("/tmp", self.path("tmp").to_str().unwrap())
    }

    fn spawn(&self, words: &[&str], envs: &[(String, String)]) -> Process {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.path("output"))
            .unwrap();
        let mut command = Command::new(self.path("bin/sh"));
        command
            .args(words.iter().map(|word| self.real(word)))
            .env_clear()
            .env("PATH", "/usr/bin:/bin")
            .envs(envs.iter().cloned())
            .current_dir(self.dir.path())
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log);
        Process(command.spawn().unwrap())
    }

    /// Starts the container.
    fn hold(&self, seconds: u64) -> Process {
        let entrypoint = scripts::hold(ATTEMPT, Duration::from_secs(seconds));
        let words: Vec<_> = entrypoint
            .iter()
            .skip(1)
            .map(ExposeSecret::expose_secret)
            .collect();
        self.spawn(&words, &[])
    }

    /// The same, once it says who it is, and is not who it was before.
    fn up(&self, seconds: u64, before: Option<&HoldId>) -> (Process, HoldId) {
        let hold = self.hold(seconds);
        let id = until(|| self.name().filter(|name| Some(name) != before));
        (hold, id)
    }

    fn name(&self) -> Option<HoldId> {
        HoldId::parse(&self.file(&scripts::named(ATTEMPT))?)
    }

    fn file(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.real(path)).ok()
    }

    fn inside(&self, id: &HoldId) -> Inside {
        let [end, start, hold] = ["end", "start", "hold"].map(|name| self.file(&id.file(name)));
        Inside::read(id, end.as_deref(), start.as_deref(), hold.is_some())
    }

    /// Has the daemon run something.
    fn ask(&self, request: &RunCommand) -> Process {
        let envs: Vec<_> = request
            .envs
            .iter()
            .map(|(name, value)| (name.clone(), value.expose_secret().to_owned()))
            .collect();
        self.spawn(&["-c", &request.command], &envs)
    }

    fn run(&self, id: &HoldId, words: &[&str]) -> Process {
        self.ask(&scripts::run(id, None, environment(&[], words)))
    }

    fn output(&self) -> String {
        fs::read_to_string(self.path("output")).unwrap()
    }
}

fn environment(variables: &[(&str, &str)], words: &[&str]) -> Environment {
    Environment {
        variables: variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), SecretString::from(*value)))
            .collect(),
        command: words.iter().map(|word| SecretString::from(*word)).collect(),
        skipped: Vec::new(),
    }
}

/// Waits for what processes beside us do.
fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
    for _ in 0..12_000 {
        if let Some(found) = found() {
            return found;
        }
        sleep(Duration::from_millis(5));
    }
    panic!("it did not come")
}

fn ended(inside: &Inside) -> Option<Evidence> {
    match inside {
        Inside::Ended(_, evidence) => Some(*evidence),
        _ => None,
    }
}

fn code(code: u8) -> Evidence {
    Evidence::Ended {
        code,
        signalled: false,
    }
}

// --------------------------------------------------------------------------------------------- real shells

#[test]
fn of_many_starts_at_once_one_starts_the_command_and_later_ones_do_not() {
    for sandbox in Sandbox::all() {
        let (_hold, id) = sandbox.up(60, None);
        assert_eq!(sandbox.inside(&id), Inside::Held, "{}", sandbox.shell);
        let words = ["/bin/sh", "-c", "echo x >>starts; exit 7"];
        let starts: Vec<_> = (0..16).map(|_| sandbox.run(&id, &words)).collect();
        for start in starts {
            start.code();
        }
        assert_eq!(ended(&sandbox.inside(&id)), Some(code(7)), "{}", sandbox.shell);
        sandbox.run(&id, &words).code();
        assert_eq!(
            fs::read_to_string(sandbox.path("starts")).unwrap(),
            "x\n",
            "{}",
            sandbox.shell
        );
        assert_eq!(ended(&sandbox.inside(&id)), Some(code(7)), "{}", sandbox.shell);
    }
}

#[test]
fn of_starts_and_stops_at_once_the_first_decides_and_nothing_changes_it() {
    for sandbox in Sandbox::all() {
        for round in 0..8 {
            let (_hold, id) = sandbox.up(60, sandbox.name().as_ref());
            let starts = format!("starts-{round}");
            let words = ["/bin/sh", "-c", "echo x >>\"$1\"", "-", &starts];
            let racers: Vec<_> = (0..6)
                .flat_map(|_| [sandbox.run(&id, &words), sandbox.ask(&scripts::stop(&id))])
                .collect();
            for racer in racers {
                racer.code();
            }
            let started = fs::read_to_string(sandbox.path(&starts)).unwrap_or_default();
            let found = sandbox.inside(&id);
            match &found {
                Inside::Never(Never::Stopped) => assert_eq!(started, "", "{}", sandbox.shell),
                Inside::Stopped(_) | Inside::Ended(..) => assert_eq!(started, "x\n", "{}", sandbox.shell),
                other => panic!("{} {other:?}", sandbox.shell),
            }
            sandbox.run(&id, &words).code();
            sandbox.ask(&scripts::stop(&id)).code();
            assert_eq!(sandbox.inside(&id), found, "{}", sandbox.shell);
            assert_eq!(
                fs::read_to_string(sandbox.path(&starts)).unwrap_or_default(),
                started
            );
        }
    }
}

#[test]
fn a_stop_that_comes_before_the_end_counts_and_one_that_comes_after_does_not() {
    for sandbox in Sandbox::all() {
        let (_hold, id) = sandbox.up(60, None);
        let command = sandbox.run(&id, &["/bin/sh", "-c", "until [ -e go ]; do sleep 0.02; done"]);
        until(|| matches!(sandbox.inside(&id), Inside::Started(_)).then_some(()));
        sandbox.ask(&scripts::stop(&id)).code();
        fs::write(sandbox.path("go"), "").unwrap();
        command.code();
        assert!(
            matches!(sandbox.inside(&id), Inside::Stopped(Some(_))),
            "{}",
            sandbox.shell
        );

        let (_hold, id) = sandbox.up(60, Some(&id));
        sandbox.run(&id, &["true"]).code();
        sandbox.ask(&scripts::stop(&id)).code();
        assert_eq!(ended(&sandbox.inside(&id)), Some(code(0)), "{}", sandbox.shell);
    }
}

#[test]
fn a_sandbox_that_nobody_starts_ends_by_itself_and_one_that_was_started_stays() {
    for sandbox in Sandbox::all() {
        let (hold, id) = sandbox.up(1, None);
        assert_eq!(hold.code(), Some(0), "{}", sandbox.shell);
        assert_eq!(
            sandbox.inside(&id),
            Inside::Never(Never::TooLate),
            "{}",
            sandbox.shell
        );
        assert_eq!(
            wrapper::evidence(&sandbox.output(), &id.to_string()),
            Some(Evidence::TooLate)
        );
        sandbox.run(&id, &["/bin/sh", "-c", ": >started"]).code();
        assert!(!sandbox.path("started").exists(), "{}", sandbox.shell);

        let (mut hold, id) = sandbox.up(1, Some(&id));
        sandbox.run(&id, &["sleep", "2"]).code();
        assert_eq!(hold.0.try_wait().unwrap(), None, "{}", sandbox.shell);
    }
}

#[test]
fn a_container_that_is_started_again_starts_nothing_again_and_says_what_was_lost() {
    for sandbox in Sandbox::all() {
        let (hold, waiting) = sandbox.up(60, None);
        drop(hold);
        let (hold, running) = sandbox.up(60, Some(&waiting));
        assert_eq!(
            sandbox.inside(&waiting),
            Inside::Never(Never::Lost),
            "{}",
            sandbox.shell
        );
        sandbox.run(&waiting, &["/bin/sh", "-c", ": >started"]).code();
        assert!(!sandbox.path("started").exists(), "{}", sandbox.shell);

        let command = sandbox.run(
            &running,
            &["/bin/sh", "-c", "until [ -e go ]; do sleep 0.02; done"],
        );
        until(|| matches!(sandbox.inside(&running), Inside::Started(_)).then_some(()));
        drop(hold);
        let (_hold, ended_before) = sandbox.up(60, Some(&running));
        assert!(
            matches!(sandbox.inside(&running), Inside::Lost(_)),
            "{}",
            sandbox.shell
        );
        fs::write(sandbox.path("go"), "").unwrap();
        command.code();
        assert!(
            matches!(sandbox.inside(&running), Inside::Lost(_)),
            "{}",
            sandbox.shell
        );

        sandbox.run(&ended_before, &["/bin/sh", "-c", "exit 3"]).code();
        let _hold = sandbox.up(60, Some(&ended_before));
        assert_eq!(
            ended(&sandbox.inside(&ended_before)),
            Some(code(3)),
            "{}",
            sandbox.shell
        );
    }
}

#[test]
fn a_container_that_is_another_starts_nothing() {
    for sandbox in Sandbox::all() {
        let (_hold, id) = sandbox.up(60, None);
        fs::remove_dir_all(sandbox.real(&format!("/tmp/.ayatori-{id}"))).unwrap();
        sandbox.run(&id, &["/bin/sh", "-c", ": >started"]).code();
        sandbox.ask(&scripts::stop(&id)).code();
        assert!(!sandbox.path("started").exists(), "{}", sandbox.shell);
        assert_eq!(sandbox.inside(&id), Inside::Nothing, "{}", sandbox.shell);
    }
}

#[test]
fn every_kind_of_end_in_a_sandbox_is_told_apart() {
    for sandbox in Sandbox::all() {
        let mut before = None;
        for (words, expected) in [
            (&["/bin/sh", "-c", "exit 0"][..], code(0)),
            (&["/bin/sh", "-c", "exit 255"], code(255)),
            (&["/bin/sh", "-c", "exit 127"], code(127)),
            (&["/bin/sh", "-c", "kill -KILL $$"], code(137)),
            (&["exit", "0"], Evidence::Unstartable { code: 127 }),
            (&["no-such-program"], Evidence::Unstartable { code: 127 }),
            (&["/etc/passwd"], Evidence::Unstartable { code: 126 }),
        ] {
            let (_hold, id) = sandbox.up(60, before.as_ref());
            sandbox.run(&id, words).code();
            assert_eq!(
                ended(&sandbox.inside(&id)),
                Some(expected),
                "{} {words:?}",
                sandbox.shell
            );
            before = Some(id);
        }
        let (_hold, id) = sandbox.up(60, before.as_ref());
        let request = scripts::run(&id, Some("/etc/passwd/src"), environment(&[], &["true"]));
        sandbox.ask(&request).code();
        assert_eq!(
            ended(&sandbox.inside(&id)),
            Some(Evidence::NoWorkingDirectory),
            "{}",
            sandbox.shell
        );
    }
}

#[test]
fn a_command_has_its_words_and_environment_and_nothing_of_ours_and_writes_to_the_container_s_log() {
    let odd = " a  \"b\" 'c' $HOME `d` \\ *\n\u{e9}";
    for sandbox in Sandbox::all() {
        let (_hold, id) = sandbox.up(60, None);
        let script = "printf '%s|' \"$@\" >words; env >env; pwd >directory; echo told; echo warned >&2";
        let mut words = vec!["/bin/sh", "-c", script, "zero", odd, "", "-n"];
        words.extend(["x"; 12]);
        let work = sandbox.path("made/here");
        let request = scripts::run(&id, work.to_str(), environment(&[("GREETING", odd)], &words));
        sandbox.ask(&request).code();
        assert_eq!(ended(&sandbox.inside(&id)), Some(code(0)), "{}", sandbox.shell);
        let read = |name: &str| fs::read_to_string(work.join(name)).unwrap();
        assert_eq!(
            read("words"),
            format!("{odd}||-n|{}", "x|".repeat(12)),
            "{}",
            sandbox.shell
        );
        assert_eq!(
            read("directory").trim(),
            work.to_str().unwrap(),
            "{}",
            sandbox.shell
        );
        let env = read("env");
        assert!(
            env.contains(&format!("GREETING={odd}\n")),
            "{} {env}",
            sandbox.shell
        );
        assert!(!env.contains("ayatori"), "{} {env}", sandbox.shell);
        let output = sandbox.output();
        assert!(
            output.contains("told\n") && output.contains("warned\n"),
            "{} {output}",
            sandbox.shell
        );
    }
}

#[test]
fn no_environment_keeps_a_command_from_being_started_or_its_end_from_being_told() {
    for sandbox in Sandbox::all() {
        let (_hold, id) = sandbox.up(60, None);
        let variables = [
            ("PATH", "/nowhere"),
            ("LD_LIBRARY_PATH", "/nowhere"),
            ("LD_PRELOAD", "/nowhere/lib.so"),
            ("IFS", "/"),
            ("POSIXLY_CORRECT", "1"),
            ("ENV", "/nowhere"),
            ("BASH_ENV", "/nowhere"),
        ];
        let script = "[ \"$PATH$LD_LIBRARY_PATH$LD_PRELOAD\" = /nowhere/nowhere/nowhere/lib.so ]";
        let words = ["/bin/sh", "-c", script];
        sandbox
            .ask(&scripts::run(&id, None, environment(&variables, &words)))
            .code();
        assert_eq!(ended(&sandbox.inside(&id)), Some(code(0)), "{}", sandbox.shell);
    }
}

#[test]
fn nothing_secret_is_in_what_a_daemon_may_log_nor_in_a_file_that_stays() {
    for sandbox in Sandbox::all() {
        let (_hold, id) = sandbox.up(60, None);
        let variables = [("TOKEN", "canary-of-the-environment")];
        let request = scripts::run(
            &id,
            None,
            environment(&variables, &["true", "canary-of-the-words"]),
        );
        assert!(!request.command.contains("canary"));
        assert!(!format!("{request:?}").contains("canary"));
        sandbox.ask(&request).code();
        assert_eq!(ended(&sandbox.inside(&id)), Some(code(0)), "{}", sandbox.shell);
        let found = Command::new("grep")
            .arg("-r")
            .arg("canary")
            .arg(sandbox.dir.path())
            .output()
            .unwrap();
        assert_eq!(String::from_utf8_lossy(&found.stdout), "", "{}", sandbox.shell);
    }
}

#[test]
fn an_image_that_cannot_hold_says_so_and_ends() {
    for sandbox in Sandbox::all() {
        fs::remove_dir(sandbox.path("tmp")).unwrap();
        fs::write(sandbox.path("tmp"), "").unwrap();
        assert_eq!(sandbox.hold(60).code(), Some(1), "{}", sandbox.shell);
        assert!(
            sandbox.output().contains("cannot wait for its command"),
            "{}",
            sandbox.shell
        );
    }
}

#[test]
fn what_cannot_be_handed_over_is_refused() {
    let longest = 128 * 1024 - "ayatori_word_2".len() - 2;
    let [fits, long] = [longest, longest + 1].map(|length| "x".repeat(length));
    for (variables, words, expected) in [
        (
            &[("PATH", "/bin"), ("AYATORI_X", "")][..],
            &["true", "x"][..],
            None,
        ),
        (&[("ayatori_word_1", "x")], &["true"], Some("ReservedEnvName")),
        (&[], &["true", &long], Some("UnsupportedFeature")),
        (&[], &["true", &fits], None),
    ] {
        let refused = scripts::check(&environment(variables, words)).err();
        assert_eq!(
            refused.map(|why| why.reason).as_deref(),
            expected,
            "{variables:?}"
        );
    }
}

// ------------------------------------------------------------------------------------------------- meaning

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn stored(reason: StopReason, delivered: Option<i64>) -> Stop {
    Stop {
        reason,
        requested_time: Time(at(10)),
        delivered_time: delivered.map(|seconds| Time(at(seconds))),
    }
}

#[test]
fn results_come_from_what_the_files_say_and_stops_only_where_they_came_first() {
    let cancel = || Some(stored(StopReason::CancelRequested, None));
    let ended = |code| {
        Inside::Ended(
            Some(at(0)),
            Evidence::Ended {
                code,
                signalled: false,
            },
        )
    };
    for (inside, stop, outcome, reason, exit_code) in [
        (ended(0), None, Outcome::Succeeded, "Completed", Some(0)),
        (ended(3), None, Outcome::Failed, "NonZeroExit", Some(3)),
        (ended(0), cancel(), Outcome::Succeeded, "Completed", Some(0)),
        (
            Inside::Ended(None, Evidence::Unstartable { code: 127 }),
            None,
            Outcome::Failed,
            "StartError",
            None,
        ),
        (
            Inside::Never(Never::Stopped),
            cancel(),
            Outcome::Cancelled,
            "CancelRequested",
            None,
        ),
        (
            Inside::Never(Never::TooLate),
            None,
            Outcome::Failed,
            "StartTooLate",
            None,
        ),
        (
            Inside::Never(Never::Lost),
            None,
            Outcome::Failed,
            "SandboxStopped",
            None,
        ),
        (
            Inside::Lost(Some(at(0))),
            None,
            Outcome::Failed,
            "ExecutionLost",
            None,
        ),
    ] {
        let State::Ended(end) = state(&inside, true, None, at(20)) else {
            panic!("{inside:?} is an end")
        };
        let result = ending::attribute(&end, stop.as_ref(), None);
        assert_eq!(
            (result.outcome, result.reason.as_str(), result.exit_code),
            (outcome, reason, exit_code),
            "{inside:?} {stop:?}"
        );
    }
}

#[test]
fn what_is_no_end_is_none_and_what_may_have_started_is_never_held_again() {
    let state = |inside: &Inside, started| match state(inside, started, None, at(20)) {
        State::Held => "held",
        State::Running(running) if running.stopping_since == Some(at(20)) => "stopping",
        State::Running(_) => "running",
        State::Gone(gone) if !gone.proven => "unknown",
        other => panic!("{other:?}"),
    };
    for (inside, started, expected) in [
        (Inside::Held, false, "held"),
        (Inside::Held, true, "unknown"),
        (Inside::Started(None), false, "running"),
        (Inside::Stopped(None), true, "stopping"),
        (Inside::Nothing, false, "unknown"),
        (Inside::Nothing, true, "unknown"),
        (Inside::Garbled, false, "unknown"),
        (Inside::Garbled, true, "unknown"),
    ] {
        assert_eq!(
            state(&inside, started),
            expected,
            "{inside:?}, started: {started}"
        );
    }
}
