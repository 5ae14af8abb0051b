//! Sends spans: those of a Job's own life, of the looks at it that did something, and of what these asked of a backend.

use std::borrow::Cow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ayatori_core::job::{Job, JobStatus};
use jiff::Timestamp;
use opentelemetry::context::FutureExt;
use opentelemetry::trace::{SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceState};
use opentelemetry::{Context, InstrumentationScope, KeyValue};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, IdGenerator, RandomIdGenerator, SpanData, SpanEvents,
    SpanExporter, SpanLinks, SpanProcessor,
};

use crate::telemetry::job_trace::{JobTrace, Span};

/// How long a span may wait to be sent: what is not sent yet is lost with a process that is killed.
const DELAY: Duration = Duration::from_millis(500);

/// Where spans go. There they wait in a queue that is bounded, and are sent by a thread of its own.
#[derive(Clone)]
pub(crate) struct Traces(Arc<Sender>);

struct Sender {
    processor: BatchSpanProcessor,
    scope: InstrumentationScope,
}

/// The look at a Job that is under way in a task.
struct Current {
    traces: Traces,
    trace: JobTrace,
    id: SpanId,
    /// Whether it has done anything.
    busy: AtomicBool,
}

impl Traces {
    pub(crate) fn new(exporter: impl SpanExporter + 'static, resource: &Resource) -> Self {
        let config = BatchConfigBuilder::default().with_scheduled_delay(DELAY);
        let mut processor = BatchSpanProcessor::new(exporter, config.build());
        processor.set_resource(resource);
        Self(Arc::new(Sender {
            processor,
            scope: InstrumentationScope::builder("ayatori").build(),
        }))
    }

    /// Sends the spans of what the write of `after` over the status `before` has ended.
    pub(crate) fn wrote(&self, before: Option<&JobStatus>, after: &Job) {
        let Some(trace) = JobTrace::of(after) else { return };
        for span in trace.spans(before, after) {
            self.send(&trace, span);
        }
    }

    /// One look at a Job. It becomes a span if it does something, and what it asks a backend becomes spans under it.
    pub(crate) async fn look<T>(&self, trace: JobTrace, look: impl Future<Output = T>) -> T {
        let current = Arc::new(Current {
            traces: self.clone(),
            trace,
            id: RandomIdGenerator::default().new_span_id(),
            busy: AtomicBool::new(false),
        });
        let began = Timestamp::now();
        let context = Context::new().with_value(current.clone());
        let result = look.with_context(context).await;
        if current.busy.load(Ordering::Relaxed) {
            let span = Span {
                id: current.id,
                parent: trace.root,
                name: "reconcile",
                kind: SpanKind::Internal,
                began,
                ended: Timestamp::now(),
                attributes: vec![],
                status: Status::Unset,
            };
            self.send(&trace, span);
        }
        result
    }

    /// Sends what was not sent yet, and nothing afterwards. May block.
    pub(crate) fn shutdown(&self, limit: Duration) {
        // Whether it arrived, the exporter says.
        let _ = self.0.processor.shutdown_with_timeout(limit);
    }

    /// Never waits: what the queue has no room for is dropped.
    fn send(&self, trace: &JobTrace, span: Span) {
        let context = SpanContext::new(trace.id, span.id, TraceFlags::SAMPLED, false, TraceState::NONE);
        self.0.processor.on_end(SpanData {
            span_context: context,
            parent_span_id: span.parent,
            parent_span_is_remote: span.id == trace.root && trace.caller != SpanId::INVALID,
            span_kind: span.kind,
            name: Cow::Borrowed(span.name),
            start_time: span.began.into(),
            end_time: span.ended.into(),
            attributes: span.attributes,
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links: SpanLinks::default(),
            status: span.status,
            instrumentation_scope: self.0.scope.clone(),
        });
    }
}

/// The look that is under way in this task has changed something.
pub(crate) fn did_something() {
    if let Some(current) = current() {
        current.busy.store(true, Ordering::Relaxed);
    }
}

/// The look that is under way in this task has asked a backend something.
pub(crate) fn asked_backend(operation: Cow<'static, str>, code: Cow<'static, str>, began: Timestamp) {
    let Some(current) = current() else { return };
    current.busy.store(true, Ordering::Relaxed);
    let status = if code.starts_with('2') {
        Status::Unset
    } else {
        Status::error(code.clone())
    };
    let span = Span {
        id: RandomIdGenerator::default().new_span_id(),
        parent: current.id,
        name: "backend request",
        kind: SpanKind::Client,
        began,
        ended: Timestamp::now(),
        attributes: vec![
            KeyValue::new("ayatori.backend.operation", operation),
            KeyValue::new("ayatori.backend.code", code),
        ],
        status,
    };
    current.traces.send(&current.trace, span);
}

fn current() -> Option<Arc<Current>> {
    Context::map_current(|context| context.get::<Arc<Current>>().cloned())
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use opentelemetry::trace::TraceId;
    use opentelemetry_sdk::error::OTelSdkResult;

    use super::*;

    const TRACE: JobTrace = JobTrace {
        id: TraceId::from_bytes([7; 16]),
        caller: SpanId::INVALID,
        root: SpanId::from_bytes([8; 8]),
    };
    const PATIENCE: Duration = Duration::from_secs(10);

    #[derive(Clone, Debug, Default)]
    struct Collected(Arc<Mutex<Vec<SpanData>>>);

    impl SpanExporter for Collected {
        async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
            self.0.lock().unwrap().extend(batch);
            Ok(())
        }
    }

    #[derive(Debug)]
    struct Silent;

    impl SpanExporter for Silent {
        async fn export(&self, _: Vec<SpanData>) -> OTelSdkResult {
            std::future::pending().await
        }
    }

    fn resource() -> Resource {
        Resource::builder_empty().build()
    }

    #[tokio::test]
    async fn a_look_is_a_span_if_it_did_something_and_what_it_asked_is_under_it() {
        let collected = Collected::default();
        let traces = Traces::new(collected.clone(), &resource());
        traces.look(TRACE, async {}).await;
        traces.look(TRACE, async { did_something() }).await;
        let asks = async {
            asked_backend("create".into(), "201".into(), Timestamp::now());
            asked_backend("get".into(), "timeout".into(), Timestamp::now());
        };
        traces.look(TRACE, asks).await;
        // Of no look.
        did_something();
        asked_backend("list".into(), "200".into(), Timestamp::now());
        traces.shutdown(PATIENCE);
        let spans = collected.0.lock().unwrap();
        let looks: Vec<_> = spans
            .iter()
            .filter(|span| span.parent_span_id == TRACE.root)
            .collect();
        let [first, second] = looks.as_slice() else {
            unreachable!("{spans:#?}")
        };
        assert_eq!((&*first.name, &*second.name), ("reconcile", "reconcile"));
        let asked: Vec<_> = spans
            .iter()
            .filter(|span| span.parent_span_id == second.span_context.span_id())
            .map(|span| (span.status.clone(), span.attributes.clone()))
            .collect();
        let words = |operation, code| {
            let operation = KeyValue::new("ayatori.backend.operation", operation);
            vec![operation, KeyValue::new("ayatori.backend.code", code)]
        };
        assert_eq!(
            asked,
            [
                (Status::Unset, words("create", "201")),
                (Status::error("timeout"), words("get", "timeout")),
            ]
        );
        assert_eq!(spans.len(), 4);
        assert!(spans.iter().all(|span| span.span_context.trace_id() == TRACE.id));
    }

    #[tokio::test]
    async fn a_collector_that_never_answers_holds_up_nobody() {
        let traces = Traces::new(Silent, &resource());
        for _ in 0..10_000 {
            traces.look(TRACE, async { did_something() }).await;
        }
        traces.shutdown(Duration::from_millis(1));
    }
}
