//! Sandboxes in memory, as the Docker runtime shows them. What a sandbox does follows from its script and the
//! time alone; nothing runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

/// What a sandbox does, from its creation on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Script {
    /// Whether it ever comes up.
    pub comes_up: bool,
    /// Whether the Job's command is started when it does.
    pub starts: bool,
    /// How long it then runs; for ever, if absent.
    pub runs: Option<SignedDuration>,
    /// With which code it ends.
    pub exit: i32,
    /// Whether the runtime then says that it was killed for memory.
    pub out_of_memory: bool,
    /// What stands in its log from its start on.
    pub first_words: String,
    /// What stands in its log once it has ended by itself.
    pub last_words: String,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            comes_up: true,
            starts: true,
            runs: Some(SignedDuration::ZERO),
            exit: 0,
            out_of_memory: false,
            first_words: String::new(),
            last_words: String::new(),
        }
    }
}

impl Script {
    /// The script in words of a command: `runs=MILLISECONDS` or `runs=forever`, `exit=CODE`, `oom` (killed for
    /// memory), `stuck` (never comes up), `missing` (there is no such command). Without a word it ends at once with
    /// code 0.
    pub fn of_words(words: &[String]) -> Self {
        let mut script = Self::default();
        for word in words {
            match word.split_once('=') {
                Some(("runs", "forever")) => script.runs = None,
                Some(("runs", time)) => script.runs = time.parse().ok().map(SignedDuration::from_millis),
                Some(("exit", code)) => script.exit = code.parse().unwrap_or_default(),
                Some(_) => {}
                None => script.word(word),
            }
        }
        script
    }

    /// The script of a sandbox that is up for as long as something else says, in which no command is started.
    pub(super) fn up() -> Self {
        Self {
            starts: false,
            runs: None,
            ..Self::default()
        }
    }

    fn word(&mut self, word: &str) {
        match word {
            "stuck" => self.comes_up = false,
            "oom" => {
                self.out_of_memory = true;
                self.exit = 137;
            }
            "missing" => {
                self.starts = false;
                self.exit = 127;
            }
            _ => {}
        }
    }
}

/// Says what a sandbox with this entrypoint does that comes up at this time.
pub type Director = Arc<dyn Fn(&[String], Timestamp) -> Script + Send + Sync>;

/// What the stub knows of a sandbox.
#[derive(Clone, Debug)]
pub(super) struct Sandbox {
    pub(super) id: String,
    pub(super) metadata: BTreeMap<String, String>,
    image: String,
    script: Script,
    created: Timestamp,
    expires: Option<Timestamp>,
    paused: Option<Timestamp>,
    /// When somebody ended its container, and the code that shows.
    ended: Option<(Timestamp, i32)>,
    removed: Option<Timestamp>,
}

/// Where in its life a sandbox is.
enum Life {
    Pending,
    Running,
    Paused,
    Ended {
        at: Timestamp,
        code: i32,
        by_itself: bool,
    },
}

impl Sandbox {
    /// The sandbox of a create request that is carried out at this time.
    pub(super) fn create(id: String, request: &Value, director: &Director, now: Timestamp) -> Self {
        let words: Vec<String> = texts(request.get("entrypoint"));
        let seconds = request.get("timeout").and_then(Value::as_i64);
        let metadata = request.get("metadata").and_then(Value::as_object);
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Self {
            id,
            metadata: metadata
                .into_iter()
                .flatten()
                .map(|(key, value)| (key.clone(), text(value)))
                .collect(),
            image: request.pointer("/image/uri").map(text).unwrap_or_default(),
            script: director(&words, now),
            created: now,
            expires: seconds.map(|seconds| after(now, SignedDuration::from_secs(seconds))),
            paused: None,
            ended: None,
            removed: None,
        }
    }

    fn life(&self, now: Timestamp) -> Life {
        if !self.script.comes_up {
            return Life::Pending;
        }
        let own_end = self.script.runs.map(|runs| after(self.created, runs));
        let interrupted = [self.paused, self.ended.map(|(at, _)| at)]
            .into_iter()
            .flatten()
            .min();
        match own_end {
            Some(at) if at <= now && interrupted.is_none_or(|time| at <= time) => {
                return Life::Ended {
                    at,
                    code: self.script.exit,
                    by_itself: true,
                };
            }
            _ => {}
        }
        match (self.ended, self.paused) {
            (Some((at, code)), _) => Life::Ended {
                at,
                code,
                by_itself: false,
            },
            (None, Some(_)) => Life::Paused,
            (None, None) => Life::Running,
        }
    }

    /// Whether the server has it.
    pub(super) fn exists(&self, now: Timestamp, expiring: bool) -> bool {
        let expired = expiring && self.expires.is_some_and(|time| time <= now);
        self.created <= now && self.removed.is_none() && !expired
    }

    /// Whether it has been there for that long.
    pub(super) fn is_older_than(&self, age: SignedDuration, now: Timestamp) -> bool {
        after(self.created, age) <= now
    }

    /// Whether the Job's command has been started in it.
    pub(super) fn was_started(&self, now: Timestamp) -> bool {
        let in_time = |end: Option<Timestamp>| end.is_none_or(|end| self.created <= end);
        self.script.comes_up && self.script.starts && self.created <= now && in_time(self.removed)
    }

    /// Whether a process of the Job's command is there.
    pub(super) fn is_running(&self, now: Timestamp) -> bool {
        self.removed.is_none() && self.script.starts && matches!(self.life(now), Life::Running | Life::Paused)
    }

    /// Freezes it, if it runs.
    pub(super) fn pause(&mut self, now: Timestamp) -> bool {
        let runs = matches!(self.life(now), Life::Running);
        if runs {
            self.paused = Some(now);
        }
        runs
    }

    /// Somebody ends its container; with code 0 as by `docker stop`.
    pub(super) fn end(&mut self, code: i32, now: Timestamp) {
        if !matches!(self.life(now), Life::Ended { .. }) {
            self.ended = Some((now, code));
        }
    }

    pub(super) fn remove(&mut self, now: Timestamp) {
        self.removed = Some(now);
    }

    pub(super) fn renew(&mut self, expires: Timestamp) {
        self.expires = Some(expires);
    }

    /// As the server shows it.
    pub(super) fn show(&self, now: Timestamp) -> Value {
        let (state, reason, message, since) = match self.life(now) {
            Life::Pending => (
                "Pending",
                "CONTAINER_STARTING",
                "Sandbox container is starting.".to_owned(),
                self.created,
            ),
            Life::Running => (
                "Running",
                "CONTAINER_RUNNING",
                "Sandbox container is running.".to_owned(),
                self.created,
            ),
            Life::Paused => (
                "Paused",
                "CONTAINER_PAUSED",
                "Sandbox container is paused.".to_owned(),
                self.created,
            ),
            Life::Ended { at, code: 0, .. } => (
                "Terminated",
                "CONTAINER_EXITED",
                "Sandbox container exited successfully.".to_owned(),
                at,
            ),
            Life::Ended { at, code, .. } => (
                "Failed",
                "CONTAINER_EXITED_ERROR",
                format!("Sandbox container exited with code {code}."),
                at,
            ),
        };
        json!({
            "id": self.id,
            "image": {"uri": self.image},
            "status": {"state": state, "reason": reason, "message": message, "lastTransitionAt": since.to_string()},
            "metadata": self.metadata,
            "createdAt": self.created.to_string(),
            "expiresAt": self.expires.map(|time| time.to_string()),
        })
    }

    /// What its container has written, as the server shows it: each line with its time.
    pub(super) fn log(&self, now: Timestamp) -> String {
        let mut log = stamped(&self.script.first_words, self.created);
        if let Life::Ended {
            at, by_itself: true, ..
        } = self.life(now)
        {
            log.push_str(&stamped(&self.script.last_words, at));
        }
        if log.is_empty() {
            "(no logs)".to_owned()
        } else {
            log
        }
    }

    /// What the runtime tells of its container's life.
    pub(super) fn events(&self, now: Timestamp) -> String {
        let mut lines = vec![
            format!("Container:  0123456789ab (sandbox-{})", self.id),
            format!("Created:    {}", self.created),
        ];
        if let Life::Ended { at, code, by_itself } = self.life(now) {
            lines.push(format!("Finished:   {at}"));
            if by_itself && self.script.out_of_memory {
                lines.push("Event:      OOMKilled - container was killed due to out-of-memory".to_owned());
            }
            if code != 0 {
                lines.push(format!("Event:      Exited with code {code}"));
            }
        }
        lines.join("\n")
    }
}

/// The lines with a time before each.
fn stamped(text: &str, at: Timestamp) -> String {
    text.lines().map(|line| format!("{at} {line}\n")).collect()
}

pub(super) fn texts(value: Option<&Value>) -> Vec<String> {
    let items = value.and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}

/// A time after another; the end of time, if there is none.
pub(super) fn after(time: Timestamp, duration: SignedDuration) -> Timestamp {
    time.checked_add(duration).unwrap_or(Timestamp::MAX)
}
