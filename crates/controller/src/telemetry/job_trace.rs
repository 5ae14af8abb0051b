//! The trace of a Job, and which spans of it a write has ended. Everything follows from the Job itself, so that a trace
//! goes on across restarts and replicas, and nothing is stored for it.
//!
//! The trace id is the one of the caller's `traceparent`, else the Job's UID. The span `Job` lasts from its creation to
//! its end and has an id made of the UID; under it is one span for each stage. Whoever makes the write that ends a
//! stage sends its span, once the write is stored.

use ayatori_core::conditions::FINISHED;
use ayatori_core::job::{Job, JobStatus, Outcome};
use ayatori_core::names::TRACEPARENT;
use jiff::Timestamp;
use kube::ResourceExt;
use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanId, SpanKind, Status, TraceId};

use crate::telemetry::stages;

/// Ids of the spans of one Job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct JobTrace {
    pub(crate) id: TraceId,
    /// The caller's span, if there is one.
    pub(crate) caller: SpanId,
    /// The span `Job`.
    pub(crate) root: SpanId,
}

/// A span that has ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) id: SpanId,
    pub(crate) parent: SpanId,
    pub(crate) name: &'static str,
    pub(crate) kind: SpanKind,
    pub(crate) began: Timestamp,
    pub(crate) ended: Timestamp,
    pub(crate) attributes: Vec<KeyValue>,
    pub(crate) status: Status,
}

impl JobTrace {
    /// The trace of this Job. `None` if its caller says that he records none.
    pub(crate) fn of(job: &Job) -> Option<Self> {
        let uid = job.metadata.uid.as_deref()?;
        let number = u128::from_str_radix(&uid.replace('-', ""), 16).ok()?;
        // The variant bits of a UUID are in this half, so it is never zero.
        let root = SpanId::from(u64::try_from(number & u128::from(u64::MAX)).ok()?);
        let own = Self {
            id: TraceId::from(number),
            caller: SpanId::INVALID,
            root,
        };
        let Some(value) = job.annotations().get(TRACEPARENT) else {
            return Some(own);
        };
        match Caller::parse(value) {
            Some(caller) if caller.sampled => Some(Self {
                id: caller.trace,
                caller: caller.span,
                root,
            }),
            Some(_) => None,
            None => {
                tracing::debug!(
                    annotation = TRACEPARENT,
                    "this is no traceparent of the W3C and is ignored; the trace of the Job has its UID"
                );
                Some(own)
            }
        }
    }

    /// The spans that the write of `after` over the status `before` has ended.
    pub(crate) fn spans(&self, before: Option<&JobStatus>, after: &Job) -> Vec<Span> {
        let (Some(status), Some(created)) = (&after.status, &after.metadata.creation_timestamp) else {
            return vec![];
        };
        let mut spans: Vec<_> = stages::ended(created.0, before, status)
            .map(|stage| Span {
                id: self.stage(stage.name),
                parent: self.root,
                name: stage.name,
                kind: SpanKind::Internal,
                began: stage.began,
                ended: stage.ended,
                attributes: vec![],
                status: Status::Unset,
            })
            .collect();
        if let Some(last) = spans.last().filter(|span| span.name == FINISHED) {
            let ended = status.finish_time.as_ref().map_or(last.ended, |time| time.0);
            spans.push(self.whole(after, status, created.0, ended));
        }
        spans
    }

    fn whole(&self, job: &Job, status: &JobStatus, created: Timestamp, ended: Timestamp) -> Span {
        let text = |key: &'static str, value: Option<String>| Some(KeyValue::new(key, value?));
        let class = status.resolved_job_class.as_ref().map(|class| class.name.clone());
        let result = status.result.as_ref();
        let code = result.and_then(|result| result.exit_code);
        let attributes = [
            text("ayatori.job.class", class),
            text("ayatori.job.namespace", job.namespace()),
            text("ayatori.job.name", job.metadata.name.clone()),
            text("ayatori.job.uid", job.uid()),
            text("ayatori.job.outcome", result.map(|r| format!("{:?}", r.outcome))),
            text("ayatori.job.reason", result.map(|r| r.reason.clone())),
            code.map(|code| KeyValue::new("ayatori.job.exit_code", i64::from(code))),
        ];
        Span {
            id: self.root,
            parent: self.caller,
            name: "Job",
            kind: SpanKind::Internal,
            began: created,
            ended: ended.max(created),
            attributes: attributes.into_iter().flatten().collect(),
            status: match result {
                Some(result) if result.outcome == Outcome::Failed => Status::error(result.reason.clone()),
                Some(_) | None => Status::Unset,
            },
        }
    }

    /// The same for whoever sends it: should two ever do, it is still one span.
    fn stage(&self, name: &str) -> SpanId {
        let salt = name
            .bytes()
            .fold(0_u64, |salt, byte| (salt << 8) | u64::from(byte));
        let root = u64::from_be_bytes(self.root.to_bytes());
        SpanId::from(root.rotate_left(32) ^ salt)
    }
}

/// What a `traceparent` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The trace, which is never the invalid one.
    pub trace: TraceId,
    /// The caller's span in it, which is never the invalid one.
    pub span: SpanId,
    /// Whether the caller records it.
    pub sampled: bool,
}

impl Caller {
    /// Reads the value of a `traceparent` header, as <https://www.w3.org/TR/trace-context/> defines it. Text of any
    /// length is taken; `None` if it is none.
    pub fn parse(value: &str) -> Option<Self> {
        let mut parts = value.split('-');
        let mut hex = |length: usize| {
            let part = parts.next().filter(|part| part.len() == length)?;
            let is_hex = part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            is_hex.then_some(part)
        };
        let (version, trace, span, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        // Later versions may say more behind that.
        if version == "ff" || (version == "00" && parts.next().is_some()) {
            return None;
        }
        let caller = Self {
            trace: TraceId::from_hex(trace).ok()?,
            span: SpanId::from_hex(span).ok()?,
            sampled: u8::from_str_radix(flags, 16).ok()? & 1 == 1,
        };
        (caller.trace != TraceId::INVALID && caller.span != SpanId::INVALID).then_some(caller)
    }
}

#[cfg(test)]
mod tests {
    use ayatori_core::conditions::{self, ACCEPTED, SCHEDULED, STARTED, Statement};
    use ayatori_core::job::{JobResult, ResolvedJobClass};
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::*;

    const UID: &str = "0af76519-16cd-43dd-8448-eb211c80319c";
    const CALLER: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn job(traceparent: Option<&str>) -> Job {
        let mut job = Job::default();
        job.metadata.name = Some("build".to_owned());
        job.metadata.namespace = Some("team".to_owned());
        job.metadata.uid = Some(UID.to_owned());
        job.metadata.creation_timestamp = Some(Time(at(10)));
        job.metadata.annotations =
            traceparent.map(|value| [(TRACEPARENT.to_owned(), value.to_owned())].into());
        job
    }

    #[test]
    fn a_trace_is_the_callers_or_has_the_uid_of_the_job() {
        let own = "0af7651916cd43dd8448eb211c80319c";
        let theirs = "4bf92f3577b34da6a3ce929d0e0e4736";
        let later = CALLER.replace("00-4b", "cc-4b") + "-more";
        let long = CALLER.to_owned() + &"-00".repeat(80_000);
        let none = CALLER.replace("-01", "-00");
        for (traceparent, trace, caller) in [
            (None, Some(own), false),
            (Some(CALLER), Some(theirs), true),
            (Some(&*later), Some(theirs), true),
            (Some(&*none), None, false),
            (Some(""), Some(own), false),
            (Some(&*CALLER.to_uppercase()), Some(own), false),
            (Some(&*CALLER.replace("00-4b", "ff-4b")), Some(own), false),
            (Some(&*CALLER.replace("4bf9", "+bf9")), Some(own), false),
            (Some(&*CALLER.replace("4bf9", "4bfé")), Some(own), false),
            (
                Some(&*CALLER.replace("00f067aa0ba902b7", "0000000000000000")),
                Some(own),
                false,
            ),
            (Some(&*CALLER.replace("0e0e4736", "0e0e47")), Some(own), false),
            (Some(&*long), Some(own), false),
            (Some("four-parts-that-are-none"), Some(own), false),
        ] {
            let found = JobTrace::of(&job(traceparent));
            let shown = traceparent.map(|value| value.chars().take(80).collect::<String>());
            assert_eq!(
                found.map(|t| t.id),
                trace.map(|hex| TraceId::from_hex(hex).unwrap()),
                "{shown:?}"
            );
            assert_eq!(
                found.is_some_and(|t| t.caller != SpanId::INVALID),
                caller,
                "{shown:?}"
            );
            if let Some(found) = found {
                assert_eq!(found.root, SpanId::from_hex("8448eb211c80319c").unwrap());
            }
        }
        let mut strange = job(None);
        strange.metadata.uid = Some("no UUID".to_owned());
        assert_eq!(JobTrace::of(&strange), None);
    }

    #[test]
    fn each_step_of_a_job_is_one_span_sent_with_the_write_that_ends_it() {
        let trace = JobTrace::of(&job(Some(CALLER))).unwrap();
        let mut now = job(Some(CALLER));
        let mut before = None;
        let mut seen = vec![];
        for (conditions, spans) in [
            (vec![], vec![]),
            (vec![(ACCEPTED, 11)], vec![("Accepted", 10, 11)]),
            (vec![(SCHEDULED, 13)], vec![("Scheduled", 11, 13)]),
            (
                vec![(STARTED, 14), (FINISHED, 40)],
                vec![("Started", 13, 14), ("Finished", 14, 40), ("Job", 10, 40)],
            ),
            (vec![], vec![]),
        ] {
            let mut status: JobStatus = now.status.clone().unwrap_or_default();
            for (name, second) in conditions {
                let statement = Statement::holds(name, "Because", "it is so");
                conditions::state(&mut status.conditions, statement, Some(1), at(second));
                if name == FINISHED {
                    status.finish_time = Some(Time(at(second)));
                    status.resolved_job_class = Some(ResolvedJobClass {
                        name: "rootless".to_owned(),
                        ..ResolvedJobClass::default()
                    });
                    status.result = Some(JobResult {
                        outcome: Outcome::Failed,
                        reason: "NonZeroExit".to_owned(),
                        exit_code: Some(3),
                        signal: None,
                        message: Some("what the command said".to_owned()),
                    });
                }
            }
            now.status = Some(status);
            let sent = trace.spans(before.as_ref(), &now);
            let shown: Vec<_> = sent
                .iter()
                .map(|s| (s.name, s.began.as_second(), s.ended.as_second()))
                .collect();
            assert_eq!(shown, spans);
            seen.extend(sent);
            before.clone_from(&now.status);
        }
        let whole = seen.last().unwrap();
        assert_eq!((whole.id, whole.parent), (trace.root, trace.caller));
        assert_eq!(whole.status, Status::error("NonZeroExit"));
        let attributes: Vec<_> = whole
            .attributes
            .iter()
            .map(|a| format!("{}={}", a.key, a.value))
            .collect();
        assert_eq!(
            attributes,
            [
                "ayatori.job.class=rootless",
                "ayatori.job.namespace=team",
                "ayatori.job.name=build",
                "ayatori.job.uid=0af76519-16cd-43dd-8448-eb211c80319c",
                "ayatori.job.outcome=Failed",
                "ayatori.job.reason=NonZeroExit",
                "ayatori.job.exit_code=3",
            ]
        );
        let mut ids: Vec<_> = seen.iter().map(|span| span.id.to_bytes()).collect();
        assert!(seen.iter().all(|s| s.name == "Job" || s.parent == trace.root));
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 5);
    }
}
