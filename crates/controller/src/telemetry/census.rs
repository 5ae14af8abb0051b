//! What is counted when somebody asks for it, on the local copies that decisions are made on. Nothing is kept for it
//! in between, but who is suspected to be an orphan.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use ayatori_core::conditions::{self, ACCEPTED, DELETION_BLOCKED, READY};
use ayatori_core::job::{Job, JobState};
use ayatori_core::job_class::JobClass;
use ayatori_core::ownership::{self, Ownership};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::runtime::reflector::ObjectRef;
use kube::{Resource, ResourceExt};
use opentelemetry::KeyValue;
use opentelemetry::metrics::AsyncInstrument;

use crate::backend::{Backend, Parameters};
use crate::caches::Caches;
use crate::kept::Kept;
use crate::lease::Leadership;
use crate::telemetry::Metrics;

/// For how long a Job must have been unknown before what is left of it is an orphan: longer than any cache lags.
const LAG: Duration = Duration::from_secs(60);
/// Stands for the class of Jobs that no class is chosen for: what their users wrote is no label.
const NO_CLASS: &str = "";

/// Counts objects. Only who leads does, so that sums over replicas are right.
pub(crate) struct Census<B: Backend> {
    /// Weak, as are the caches: the instruments must not keep alive what tells them something.
    pub(crate) backend: Weak<B>,
    pub(crate) caches: Weak<Caches<B::Parameters>>,
    /// Of this adapter.
    pub(crate) leadership: Leadership,
    /// Of what nobody owns.
    pub(crate) deputy: Leadership,
    pub(crate) strangers: Strangers,
}

impl<B: Backend> Census<B> {
    /// Has everything counted from now on, whenever the metrics are read.
    pub(crate) fn begin(self, metrics: &Metrics) {
        let census = Arc::new(self);
        let gauge = |name, what, count: fn(&Self, &Seen<B>, &dyn AsyncInstrument<u64>)| {
            let census = census.clone();
            let gauge = metrics.meter().u64_observable_gauge(name).with_description(what);
            gauge
                .with_callback(move |observer| {
                    if let Some(seen) = census.look() {
                        count(&census, &seen, observer);
                    }
                })
                .build();
        };
        gauge("ayatori.jobs", "Jobs, by class and state", Self::jobs);
        gauge(
            "ayatori.jobs.result_unknown",
            "Jobs whose ResultUnknown is True, by class",
            Self::result_unknown,
        );
        gauge(
            "ayatori.orphaned_executions",
            "Objects in the backend whose Job does not exist any more",
            Self::orphans,
        );
        gauge(
            "ayatori.deletions_blocked",
            "Objects whose DeletionBlocked is True, by kind",
            Self::deletions_blocked,
        );
        gauge(
            "ayatori.job_class.accepted",
            "1 for each JobClass that is Accepted, 0 for one that is not",
            |_, seen, observer| seen.classes_that(ACCEPTED, observer),
        );
        gauge(
            "ayatori.job_class.ready",
            "1 for each JobClass that is Ready, 0 for one that is not",
            |_, seen, observer| seen.classes_that(READY, observer),
        );
        gauge(
            "ayatori.default_job_classes",
            "JobClasses annotated as the global default; anything but 1 needs attention",
            |_, seen, observer| {
                let all = seen.classes.iter();
                let defaults = all.filter(|class| ownership::is_global_default(class));
                observer.observe(number(defaults.count()), &[]);
            },
        );
    }

    /// What there is to count, if this process has to.
    fn look(&self) -> Option<Seen<B>> {
        if !self.leadership.holds() {
            return None;
        }
        let caches = self.caches.upgrade()?;
        Some(Seen {
            backend: self.backend.upgrade()?,
            jobs: caches.jobs.state(),
            classes: caches.classes.state(),
            deputy: self.deputy.holds(),
            caches,
        })
    }

    fn jobs(&self, seen: &Seen<B>, observer: &dyn AsyncInstrument<u64>) {
        let mut counts = BTreeMap::<String, BTreeMap<JobState, u64>>::new();
        seen.ours(|job, class| {
            tally(counts_of(&mut counts, class), job.state);
        });
        for (class, states) in counts {
            for (state, count) in states {
                let labels = [
                    KeyValue::new("class", class.clone()),
                    KeyValue::new("state", format!("{state:?}")),
                ];
                observer.observe(count, &labels);
            }
        }
    }

    fn result_unknown(&self, seen: &Seen<B>, observer: &dyn AsyncInstrument<u64>) {
        let mut counts = BTreeMap::<String, u64>::new();
        seen.ours(|job, class| {
            *counts_of(&mut counts, class) += u64::from(job.is_unknown);
        });
        for (class, count) in counts {
            observer.observe(count, &[KeyValue::new("class", class)]);
        }
    }

    fn deletions_blocked(&self, seen: &Seen<B>, observer: &dyn AsyncInstrument<u64>) {
        let blocked = |conditions: &[Condition]| conditions::is_true(conditions, DELETION_BLOCKED);
        let mut jobs = 0;
        seen.ours(|job, _| jobs += usize::from(job.is_blocked));
        let classes = seen.our_classes().filter(|class| blocked(judged(class)));
        let parameters = seen.caches.parameters.state();
        let parameters = parameters
            .iter()
            .filter_map(|p| p.status())
            .filter(|status| blocked(&status.conditions));
        let kind = |kind: &str| [KeyValue::new("kind", kind.to_owned())];
        observer.observe(number(jobs), &kind(&Job::kind(&())));
        observer.observe(number(classes.count()), &kind(&JobClass::kind(&())));
        observer.observe(number(parameters.count()), &kind(&B::Parameters::kind(&())));
    }

    fn orphans(&self, seen: &Seen<B>, observer: &dyn AsyncInstrument<u64>) {
        let known: HashSet<_> = seen
            .jobs
            .iter()
            .filter_map(|job| job.meta().uid.as_deref())
            .collect();
        let mut found = Vec::new();
        seen.backend.executions(&mut |uid| {
            if !known.contains(uid) {
                found.push(uid.to_owned());
            }
        });
        observer.observe(number(self.strangers.since(found, Instant::now())), &[]);
    }
}

/// What one count is made on.
struct Seen<B: Backend> {
    backend: Arc<B>,
    caches: Arc<Caches<B::Parameters>>,
    jobs: Vec<Arc<Kept>>,
    classes: Vec<Arc<JobClass>>,
    /// Whether this process counts what nobody owns.
    deputy: bool,
}

impl<B: Backend> Seen<B> {
    /// Shows the Jobs that this process counts, each with its class.
    fn ours(&self, mut show: impl FnMut(&Kept, &str)) {
        let controller = self.backend.controller_name();
        for job in &self.jobs {
            if let Some(accepted) = &job.accepted {
                if accepted.controller == controller {
                    show(job, &job.class);
                }
                continue;
            }
            let namespace = ObjectRef::new(job.meta().namespace.as_deref().unwrap_or_default());
            let Some(namespace) = self.caches.namespaces.get(&namespace) else {
                continue;
            };
            let classes = || self.classes.iter().map(|class| &**class);
            let whole = job.whole();
            let selection = ownership::select(&whole, namespace.annotations(), classes());
            match ownership::of_job(&whole, controller, &selection, classes()) {
                Ownership::Owned(owned) => {
                    let class = owned.class().and_then(|class| class.metadata.name.as_deref());
                    show(job, class.unwrap_or(NO_CLASS));
                }
                Ownership::Unowned(_) if self.deputy => show(job, NO_CLASS),
                Ownership::Unowned(_) | Ownership::Foreign => {}
            }
        }
    }

    fn our_classes(&self) -> impl Iterator<Item = &JobClass> {
        let controller = self.backend.controller_name();
        let classes = self.classes.iter().map(|class| &**class);
        classes.filter(move |class| class.spec.controller_name == controller)
    }

    fn classes_that(&self, condition: &str, observer: &dyn AsyncInstrument<u64>) {
        for class in self.our_classes() {
            let holds = conditions::is_true(judged(class), condition);
            observer.observe(holds.into(), &[KeyValue::new("class", class.name_any())]);
        }
    }
}

/// The UIDs that objects in the backend carry and no Job has, and since when that has been so.
#[derive(Default)]
pub(crate) struct Strangers(Mutex<HashMap<String, Instant>>);

impl Strangers {
    /// How many of those that were found now were there a while ago already. One is counted as often as it is found.
    fn since(&self, found: Vec<String>, now: Instant) -> usize {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::mem::take(&mut *known);
        let mut orphans = 0;
        for uid in found {
            let since = before.get(&uid).copied().unwrap_or(now);
            orphans += usize::from(now.saturating_duration_since(since) >= LAG);
            known.insert(uid, since);
        }
        orphans
    }
}

fn judged(class: &JobClass) -> &[Condition] {
    class.status.as_ref().map_or(&[], |status| &status.conditions)
}

/// What is counted for this class. Thousands of Jobs share a few names.
fn counts_of<'a, V: Default>(counts: &'a mut BTreeMap<String, V>, class: &str) -> &'a mut V {
    if !counts.contains_key(class) {
        counts.insert(class.to_owned(), V::default());
    }
    counts.get_mut(class).expect("it was put there")
}

fn tally(counts: &mut BTreeMap<JobState, u64>, state: JobState) {
    *counts.entry(state).or_default() += 1;
}

fn number(count: usize) -> u64 {
    u64::try_from(count).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_job_is_an_orphan_once_the_job_has_been_unknown_for_a_while() {
        let strangers = Strangers::default();
        let began = Instant::now();
        for (second, found, orphans) in [
            (0, vec!["a", "a"], 0),
            (30, vec!["a", "b"], 0),
            (60, vec!["a", "a", "b"], 2),
            (90, vec!["b"], 1),
            (100, vec!["a", "b"], 1),
            (110, vec![], 0),
            (200, vec!["b"], 0),
        ] {
            let found = found.into_iter().map(str::to_owned).collect();
            let counted = strangers.since(found, began + Duration::from_secs(second));
            assert_eq!(counted, orphans, "second {second}");
        }
    }
}
