use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::SignedDuration;
use proptest::prelude::*;
use secrecy::ExposeSecret;
use tempfile::TempDir;

use super::*;

const ATTEMPT: &str = "0a1b2c3d4e";

// ------------------------------------------------------------------------------------------- with real shells

/// The shells that are /bin/sh in one distribution or another.
const SHELLS: [&str; 3] = ["dash", "bash", "busybox"];

/// A place with a `sh` that is one of them, as it is in an image.
struct Place {
    shell: &'static str,
    dir: TempDir,
}

/// What a run left.
struct Run {
    code: Option<i32>,
    out: Vec<u8>,
    err: Vec<u8>,
}

impl Run {
    fn evidence(&self) -> Option<Evidence> {
        evidence(&self.log(), ATTEMPT)
    }

    fn log(&self) -> String {
        [&self.out[..], &self.err].map(String::from_utf8_lossy).concat()
    }

    /// What the command itself wrote to its standard output.
    fn written(&self) -> String {
        let out = String::from_utf8_lossy(&self.out);
        let (written, _) = out.rsplit_once(&format!("\nayatori {ATTEMPT}: ")).unwrap();
        written.to_owned()
    }
}

impl Place {
    fn all() -> impl Iterator<Item = Self> {
        SHELLS.into_iter().map(|shell| {
            let dir = tempfile::tempdir().unwrap();
            let place = Self { shell, dir };
            symlink(found(shell), place.path("sh")).unwrap();
            fs::create_dir(place.path("bin")).unwrap();
            place
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A file in the place's `PATH`.
    fn program(&self, name: &str, text: &str) -> String {
        let path = self.path("bin").join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn command(&self, fence: Fence, working_dir: Option<&str>, words: &[&str]) -> Command {
        let words = words.iter().map(|word| SecretString::from(*word));
        let entrypoint = entrypoint(ATTEMPT, fence, working_dir, words);
        let mut command = Command::new(self.path("sh"));
        // Each is a sandbox of its own.
        static MARKS: AtomicUsize = AtomicUsize::new(0);
        let mark = self.path(&format!("mark-{}", MARKS.fetch_add(1, Ordering::Relaxed)));
        let words = entrypoint.iter().skip(1).map(ExposeSecret::expose_secret);
        let words = words.map(|word| {
            if word == marks(ATTEMPT) {
                mark.to_str().unwrap()
            } else {
                word
            }
        });
        command
            .args(words)
            .env_clear()
            .env("PATH", format!("{}:/usr/bin:/bin", self.path("bin").display()))
            .current_dir(self.dir.path());
        command
    }

    /// Runs it to its end, with output to files: what the command leaves behind may hold on to them.
    fn run(&self, command: &mut Command, input: &str) -> Run {
        let [out, err] = ["out", "err"].map(|name| self.path(name));
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(File::create(&out).unwrap())
            .stderr(File::create(&err).unwrap())
            .spawn()
            .unwrap();
        let mut pipe = child.stdin.take().unwrap();
        pipe.write_all(input.as_bytes()).unwrap();
        // While the shell waits for the command, one that reads on would wait for us.
        if !input.is_empty() {
            drop(pipe);
        }
        let code = child.wait().unwrap().code();
        Run {
            code,
            out: fs::read(&out).unwrap(),
            err: fs::read(&err).unwrap(),
        }
    }

    fn runs(&self, words: &[&str]) -> Run {
        self.run(&mut self.command(now(), None, words), "")
    }
}

fn found(program: &str) -> PathBuf {
    ["/bin", "/usr/bin"]
        .map(|dir| Path::new(dir).join(program))
        .into_iter()
        .find(|path| path.exists())
        .unwrap_or_else(|| panic!("no {program} here: install the packages dash, bash and busybox-static"))
}

fn window(earliest: i64, latest: i64) -> Fence {
    let at = |seconds| Timestamp::now() + SignedDuration::from_secs(seconds);
    Fence {
        earliest: at(earliest),
        latest: at(latest),
    }
}

fn now() -> Fence {
    window(-30, 600)
}

fn by_itself(code: u8) -> Option<Evidence> {
    Some(Evidence::Ended {
        code,
        signalled: false,
    })
}

#[test]
fn every_exit_code_and_deadly_signal_is_written_down_and_passed_on() {
    for place in Place::all() {
        for code in [0, 1, 2, 42, 125, 126, 127, 128, 130, 137, 139, 143, 254, 255] {
            let run = place.runs(&["/bin/sh", "-c", &format!("exit {code}")]);
            assert_eq!(
                (run.evidence(), run.code),
                (by_itself(code), Some(code.into())),
                "{}",
                place.shell
            );
        }
        for (signal, code) in [("SEGV", 139), ("KILL", 137), ("TERM", 143)] {
            let run = place.runs(&["/bin/sh", "-c", &format!("kill -{signal} $$")]);
            assert_eq!(run.evidence(), by_itself(code), "{} {signal}", place.shell);
        }
    }
}

#[test]
fn words_reach_the_command_as_they_are() {
    let words = [
        "",
        " a  b ",
        "two\nlines\n",
        "--",
        "-c",
        "-e",
        "$HOME",
        "`id`",
        "*",
        "'\"\\",
        "%s",
        "漢",
    ];
    for place in Place::all() {
        let show = place.program("show", "#!/bin/sh\nfor word; do printf '<%s>' \"$word\"; done\n");
        let run = place.runs(&[&[show.as_str()], &words[..]].concat());
        let expected: String = words.iter().map(|word| format!("<{word}>")).collect();
        assert_eq!(run.written(), expected, "{}", place.shell);
    }
}

#[test]
fn a_command_is_looked_up_like_any_program_whatever_its_name_means_to_a_shell() {
    for place in Place::all() {
        for name in [
            "test",
            "exit",
            "cd",
            "if",
            "exec",
            ":",
            "-c",
            "--",
            "wait",
            "ayatori_say",
        ] {
            // A busybox may prefer its own.
            if (place.shell, name) == ("busybox", "test") {
                continue;
            }
            place.program(name, "#!/bin/sh\nexit 9\n");
            assert_eq!(
                place.runs(&[name, "x"]).evidence(),
                by_itself(9),
                "{} {name}",
                place.shell
            );
        }
    }
}

#[test]
fn a_command_has_our_input_and_no_open_file_more() {
    for place in Place::all() {
        let run = place.run(&mut place.command(now(), None, &["cat"]), "what is given\n");
        assert_eq!(run.written(), "what is given\n", "{}", place.shell);
        let list = ["/bin/sh", "-c", "cd /proc/$$/fd && echo *"];
        let direct = place.run(Command::new(list[0]).args(&list[1..]), "");
        let open = String::from_utf8_lossy(&direct.out).into_owned();
        assert_eq!(place.runs(&list).written(), open, "{}", place.shell);
    }
}

#[test]
fn a_command_has_our_environment_and_nothing_of_the_script_in_it() {
    let ours = [
        "name", "boot", "up", "now", "clock", "rest", "attempt", "signal", "code",
    ];
    for place in Place::all() {
        let mut command = place.command(now(), Some("/tmp"), &["env"]);
        let run = place.run(command.envs(ours.map(|name| (name, "a value"))), "");
        let seen: Vec<_> = run.written().lines().map(str::to_owned).collect();
        for name in ours {
            assert!(
                seen.contains(&format!("{name}=a value")),
                "{} {name}: {seen:?}",
                place.shell
            );
        }
        let of_shells = ["PATH=", "PWD=/tmp", "SHLVL=", "_="];
        let more = seen.iter().find(|seen| {
            !ours.iter().any(|name| seen.starts_with(&format!("{name}=")))
                && !of_shells.iter().any(|prefix| seen.starts_with(prefix))
        });
        assert_eq!(more, None, "{}", place.shell);
    }
}

#[test]
fn a_command_that_cannot_be_started_is_told_from_one_that_exits_with_that_code() {
    for place in Place::all() {
        let no_interpreter = place.program("script", "#!/no/such/interpreter\n");
        let plain = place.path("plain");
        fs::write(&plain, "exit 0\n").unwrap();
        let plain = plain.to_str().unwrap();
        for (command, code) in [
            ("/does/not/exist", 127),
            ("no-such-command", 127),
            ("-no-such", 127),
            (&no_interpreter, 127),
            ("/tmp", 126),
            (plain, 126),
        ] {
            let run = place.runs(&[command, "canary"]);
            let expected = Some(Evidence::Unstartable { code });
            assert_eq!(
                (run.evidence(), run.code),
                (expected, Some(code.into())),
                "{} {command}",
                place.shell
            );
        }
        let nameless = place.runs(&[""]).evidence();
        assert!(
            matches!(nameless, Some(Evidence::Unstartable { .. })),
            "{} {nameless:?}",
            place.shell
        );
    }
}

#[test]
fn a_working_directory_is_made_if_missing_and_else_the_command_does_not_start() {
    for place in Place::all() {
        let made = place.path("a/-b c\n/d");
        let run = place.run(&mut place.command(now(), made.to_str(), &["pwd"]), "");
        assert_eq!(run.written(), format!("{}\n", made.display()), "{}", place.shell);
        let blocked = place.path("file");
        fs::write(&blocked, "").unwrap();
        for bad in [blocked.to_str().unwrap(), "/proc/nothing/here", "relative", "-"] {
            let run = place.run(&mut place.command(now(), Some(bad), &["touch", "started"]), "");
            let expected = Some(Evidence::NoWorkingDirectory);
            assert_eq!(
                (run.evidence(), run.code),
                (expected, Some(125)),
                "{} {bad}",
                place.shell
            );
        }
        assert!(!place.path("started").exists());
    }
}

#[test]
fn a_command_does_not_start_outside_its_fence() {
    for place in Place::all() {
        for (fence, expected) in [
            (window(-600, -5), Evidence::TooLate),
            (window(-600, 0), Evidence::TooLate),
            (window(60, 600), Evidence::NoClock),
        ] {
            let run = place.run(&mut place.command(fence, None, &["touch", "started"]), "");
            assert_eq!(
                (run.evidence(), run.code),
                (Some(expected), Some(125)),
                "{}",
                place.shell
            );
        }
        assert!(!place.path("started").exists());
    }
}

#[test]
fn a_command_does_not_start_again_in_a_container_that_is_started_again() {
    for place in Place::all() {
        let mut command = place.command(now(), None, &["sh", "-c", "echo ran; exit 3"]);
        assert_eq!(place.run(&mut command, "").evidence(), by_itself(3));
        let again = place.run(&mut command, "");
        assert_eq!(
            (again.code, again.evidence()),
            (Some(125), None),
            "{}",
            place.shell
        );
        assert!(again.log().contains("started before") && !again.log().contains("ran"));
    }
}

#[test]
fn any_place_that_can_be_written_remembers_that_the_command_has_started_and_without_one_it_does_not_start() {
    for place in Place::all() {
        let [earliest, latest] = [now().earliest, now().latest].map(|t| t.as_second().to_string());
        let script = script(&[FENCE, LAUNCH]);
        let run = |marks: &str| {
            let words = [
                "-c", &script, NAME, ATTEMPT, &earliest, &latest, "", marks, "/bin/sh", "-c", "exit 3",
            ];
            let mut command = Command::new(place.path("sh"));
            let run = place.run(command.args(words).env_clear(), "");
            (run.code, run.evidence())
        };
        let ran = (Some(3), by_itself(3));
        let [emptied, kept, missing] = ["emptied", "kept", "missing/mark"].map(|name| place.path(name));
        let marks = [&missing, &emptied, &kept]
            .map(|mark| mark.display().to_string())
            .join(" ");
        assert_eq!(run(&marks), ran, "{}", place.shell);
        fs::remove_file(&emptied).unwrap();
        assert_eq!(run(&marks), (Some(125), None), "{}", place.shell);
        fs::remove_file(&kept).unwrap();
        assert_eq!(run(&marks), ran, "{}: only by a mark is it known", place.shell);
        let refused = (Some(125), Some(Evidence::NoPlace));
        assert_eq!(run(missing.to_str().unwrap()), refused, "{}", place.shell);
    }
}

#[test]
fn a_shown_uptime_of_the_container_is_no_clock_and_another_one_is_asked() {
    for place in Place::all() {
        // A container that was started half a minute ago on a machine that was not.
        fs::write(place.path("uptime"), "30.05 59.2\n").unwrap();
        let script = script(&[FENCE, LAUNCH]).replace("/proc/uptime", place.path("uptime").to_str().unwrap());
        let [earliest, latest] = [now().earliest, now().latest].map(|t| t.as_second().to_string());
        let mark = place.path("mark");
        let mark = mark.to_str().unwrap();
        let words = [
            "-c", &script, NAME, ATTEMPT, &earliest, &latest, "", mark, "/bin/sh", "-c", "exit 4",
        ];
        let run = |path: &str| {
            let mut command = Command::new(place.path("sh"));
            place.run(command.args(words).env_clear().env("PATH", path), "")
        };
        assert_eq!(run("/usr/bin:/bin").evidence(), by_itself(4), "{}", place.shell);
        // This busybox is its own `date`, wherever PATH leads.
        if place.shell != "busybox" {
            let nowhere = place.path("bin");
            let evidence = run(nowhere.to_str().unwrap()).evidence();
            assert_eq!(evidence, Some(Evidence::NoClock), "{}", place.shell);
        }
    }
}

#[test]
fn a_signal_is_passed_on_and_the_code_that_follows_is_known_to_follow_it() {
    for place in Place::all() {
        for (answer, code) in [
            ("exit 0", 0),
            ("exit 5", 5),
            ("exit 143", 143),
            ("trap - TERM; kill -TERM $$", 143),
            ("told=1", 7),
        ] {
            let script =
                format!("trap '{answer}' TERM; kill -TERM $PPID; until [ $told ]; do :; done; exit 7");
            let run = place.runs(&["/bin/sh", "-c", &script]);
            let expected = Some(Evidence::Ended {
                code,
                signalled: true,
            });
            assert_eq!(
                (run.evidence(), run.code),
                (expected, Some(code.into())),
                "{} {script}",
                place.shell
            );
        }
    }
}

#[test]
fn a_command_that_kills_the_script_leaves_no_end_even_if_it_shows_the_script_s_words() {
    for place in Place::all() {
        for separator in [" ", "\\n", ""] {
            let script = format!("tr '\\0' '{separator}' </proc/$PPID/cmdline; kill -KILL $PPID");
            let script = if separator.is_empty() {
                "cat /proc/$PPID/cmdline; kill -KILL $PPID".to_owned()
            } else {
                script
            };
            let run = place.runs(&["/bin/sh", "-c", &script]);
            assert_eq!(
                (run.evidence(), run.code),
                (Some(Evidence::Starting), None),
                "{}",
                place.shell
            );
        }
    }
}

#[test]
fn neither_closed_output_nor_a_left_over_process_nor_unfinished_lines_hide_the_end() {
    for place in Place::all() {
        for (script, written) in [
            ("exec >&- 2>&-; exit 6", ""),
            ("printf part; printf part >&2; exit 6", "part"),
            // It goes on until we close its input.
            ("exec 4<&0; cat <&4 & exit 6", ""),
        ] {
            let run = place.runs(&["/bin/sh", "-c", script]);
            assert_eq!(
                (run.evidence(), run.written()),
                (by_itself(6), written.to_owned()),
                "{}",
                place.shell
            );
        }
    }
}

#[test]
fn either_stream_alone_shows_the_end() {
    for place in Place::all() {
        let run = place.runs(&["/bin/sh", "-c", "echo x; echo y >&2; exit 6"]);
        for stream in [&run.out, &run.err] {
            let stream = String::from_utf8_lossy(stream);
            assert_eq!(evidence(&stream, ATTEMPT), by_itself(6), "{}", place.shell);
            assert!(
                stream.ends_with(&format!("\nayatori {ATTEMPT}: ended 6.\n")),
                "{}",
                place.shell
            );
        }
    }
}

#[test]
fn nothing_of_the_environment_or_the_arguments_is_written() {
    for place in Place::all() {
        for words in [["true", "canary-word"], ["/does/not/exist", "canary-word"]] {
            let mut command = place.command(now(), None, &words);
            let run = place.run(command.env("SECRET", "canary-value"), "");
            assert!(!run.log().contains("canary"), "{}: {}", place.shell, run.log());
        }
    }
}

#[test]
fn the_script_is_sent_without_its_comments() {
    assert!(
        script(&[FENCE, LAUNCH])
            .lines()
            .all(|line| !line.trim_start().starts_with('#'))
    );
    assert!(
        script(&[FENCE, LAUNCH]).len() < 3200,
        "{}",
        script(&[FENCE, LAUNCH]).len()
    );
}

// --------------------------------------------------------------------------------------------- reading it back

fn line(statement: &str) -> String {
    format!("ayatori {ATTEMPT}: {statement}.\n")
}

#[test]
fn evidence_is_read_from_a_log_as_docker_shows_it() {
    let log = format!(
        "2026-11-29T17:58:37.921656658Z {}2026-11-29T17:58:37.926915962Z hi\n2026-11-29T17:58:37.927759038Z part\
         2026-11-29T17:58:37.927766520Z \n2026-11-29T17:58:37.927786499Z {}",
        line("starting"),
        line("ended 0"),
    );
    assert_eq!(evidence(&log, ATTEMPT), by_itself(0));
    assert_eq!(evidence(&log.replace('\n', "\r\n"), ATTEMPT), by_itself(0));
    assert_eq!(
        evidence(&log.replace("ayatori", "\u{1b}[31mayatori"), ATTEMPT),
        by_itself(0)
    );
    assert_eq!(evidence(&log, "another"), None);
    assert_eq!(evidence("(no logs)", ATTEMPT), None);
}

#[test]
fn lines_that_are_cut_or_not_as_the_script_writes_them_are_none() {
    for statement in [
        "ended",
        "ended ",
        "ended 256",
        "ended -1",
        "ended +1",
        "ended 01",
        "ended 1 2",
        "Ended 1",
        "ended 1 after",
        "ended one",
        "unstartable",
        "",
        " ended 1",
        "too  late",
    ] {
        assert_eq!(evidence(&line(statement), ATTEMPT), None, "{statement:?}");
    }
    assert_eq!(evidence(&line("ended 14").replace('.', ""), ATTEMPT), None);
    assert_eq!(
        evidence(&line("ended 14").replace("ayatori", "yatori"), ATTEMPT),
        None
    );
}

#[test]
fn what_contradicts_itself_is_no_evidence() {
    let all =
        |statements: &[&str]| evidence(&statements.iter().map(|s| line(s)).collect::<String>(), ATTEMPT);
    assert_eq!(all(&["ended 0", "ended 3"]), None);
    assert_eq!(all(&["ended 0", "ended 0 after a signal"]), None);
    assert_eq!(all(&["starting", "too late"]), None);
    assert_eq!(all(&["ended 0", "unstartable 127"]), None);
    assert_eq!(all(&["ended 127", "unstartable 127", "ended 3"]), None);
    assert_eq!(all(&["ended 3", "starting", "ended 3"]), by_itself(3));
    for order in [
        ["ended 127", "unstartable 127", "starting"],
        ["starting", "unstartable 127", "ended 127"],
    ] {
        assert_eq!(all(&order), Some(Evidence::Unstartable { code: 127 }));
    }
}

#[test]
fn an_image_that_cannot_run_the_launcher_is_recognized() {
    for log in [
        "2026-11-29T17:59:46.327202969Z exec /opt/opensandbox/bootstrap.sh: no such file or directory\n",
        "error: neither bash nor sh found in PATH",
    ] {
        assert_eq!(evidence(log, ATTEMPT), Some(Evidence::NoLauncher));
        assert_eq!(
            evidence(&format!("{log}{}", line("ended 1")), ATTEMPT),
            by_itself(1)
        );
    }
}

#[test]
fn an_environment_that_linux_does_not_take_is_told_from_an_image_that_cannot_run_the_launcher() {
    let log = "2026-11-29T21:45:20Z exec /opt/opensandbox/bootstrap.sh: argument list too long\n";
    assert_eq!(evidence(log, ATTEMPT), Some(Evidence::TooLong));
}

#[test]
fn a_command_has_begun_where_the_script_said_so_and_not_that_it_could_not_be() {
    for (said, begun) in [
        (vec![], false),
        (vec!["starting"], true),
        (vec!["starting", "ended 3"], true),
        (vec!["starting", "unstartable 127"], false),
        (vec!["too late"], false),
        (vec!["no working directory"], false),
    ] {
        let log: String = said.iter().map(|said| line(said)).collect();
        assert_eq!(has_begun(&format!("noise\n{log}"), ATTEMPT), begun, "{said:?}");
    }
}

/// Text of a command, which does not know the attempt.
fn noise() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        "(ayatori |ended [0-9]{1,3}\\.|starting\\.|: |\n|\r|\u{1b}\\[0m){0,8}",
    ]
}

proptest! {
    #[test]
    fn anything_can_be_read(log in any::<String>(), attempt in any::<String>()) {
        evidence(&log, &attempt);
    }

    #[test]
    fn what_a_command_writes_does_not_change_the_evidence(before in noise(), after in noise(), code: u8) {
        let log = format!("{}{before}\n{}{after}", line("starting"), line(&format!("ended {code}")));
        prop_assert_eq!(evidence(&log, ATTEMPT), by_itself(code));
        let alone = evidence(&format!("{before}{after}"), ATTEMPT);
        prop_assert!(matches!(alone, None | Some(Evidence::NoLauncher | Evidence::TooLong)), "{alone:?}");
    }

    #[test]
    fn a_part_of_a_log_shows_no_other_end(text in noise(), code: u8, cut: prop::sample::Index, front: bool) {
        let log = format!("{}{text}\n{}", line("starting"), line(&format!("ended {code}")));
        let (head, tail) = log.as_bytes().split_at(cut.index(log.len() + 1));
        let shown = evidence(&String::from_utf8_lossy(if front { tail } else { head }), ATTEMPT);
        prop_assert!(shown.is_none() || shown == Some(Evidence::Starting) || shown == by_itself(code), "{shown:?}");
    }
}
