//! Whose object is it? Only what this module calls owned may be acted on, and only what it calls unowned may
//! be reported on by everybody's deputy; the types say so, so that touching a foreign object does not compile.

use std::collections::BTreeMap;

use kube::ResourceExt;

use crate::execution::Why;
use crate::job::Job;
use crate::job_class::JobClass;
use crate::names::{GROUP, IS_DEFAULT_CLASS, KNOWN_CONTROLLERS, NAMESPACE_DEFAULT_CLASS};

/// A Job that this controller owns. Only [`of_job`] makes one.
#[derive(Clone, Copy, Debug)]
pub struct Owned<'a> {
    job: &'a Job,
    class: Option<&'a JobClass>,
}

impl<'a> Owned<'a> {
    /// The Job.
    pub fn job(&self) -> &'a Job {
        self.job
    }

    /// The class it chose, or the very class that accepted it; absent when that one is not to be seen.
    pub fn class(&self) -> Option<&'a JobClass> {
        self.class
    }
}

/// A Job without an owner: no class is chosen, or its class names no controller that exists. Only [`of_job`]
/// makes one.
#[derive(Clone, Copy, Debug)]
pub struct Unowned<'a> {
    job: &'a Job,
    why: &'a Orphanhood,
}

impl<'a> Unowned<'a> {
    /// The Job.
    pub fn job(&self) -> &'a Job {
        self.job
    }

    /// Why nobody owns it.
    pub fn why(&self) -> &'a Orphanhood {
        self.why
    }
}

/// Why a Job has no owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Orphanhood {
    /// No class is chosen: reason and message for `Accepted`.
    NoClass(Why),
    /// The class names a controller of our own domain that does not exist, as far as this version knows.
    UnknownController(Why),
}

impl Orphanhood {
    /// Every reason that [`Orphanhood::NoClass`] gives.
    pub(crate) const NO_CLASS_REASONS: [&'static str; 3] = [
        "NoDefaultJobClass",
        "AmbiguousDefaultJobClass",
        "JobClassNotFound",
    ];
}

/// What a class selection came to.
#[derive(Clone, Debug)]
pub enum Selection<'a> {
    /// This class.
    Chosen(&'a JobClass),
    /// None, and nobody will run the Job before that changes.
    Nothing(Orphanhood),
}

/// Chooses the class of a Job that no class has accepted yet: explicit, else the namespace's annotation, else
/// the single global default. A broken choice of higher priority never falls through to a lower one.
pub fn select<'a>(
    job: &Job,
    namespace_annotations: &BTreeMap<String, String>,
    classes: impl IntoIterator<Item = &'a JobClass> + Clone,
) -> Selection<'a> {
    let name = |class: &JobClass| class.metadata.name.clone().unwrap_or_default();
    let by_name = |wanted: &str, named_by: &str| match classes.clone().into_iter().find(|c| name(c) == wanted)
    {
        Some(class) => Selection::Chosen(class),
        None => Selection::Nothing(Orphanhood::NoClass(Why::new(
            "JobClassNotFound",
            format!(
                "JobClass {wanted:?}, named by {named_by}, does not exist; create it or name another one"
            ),
        ))),
    };
    let selection = if let Some(wanted) = &job.spec.job_class_name {
        by_name(wanted, "spec.jobClassName")
    } else if let Some(wanted) = namespace_annotations.get(NAMESPACE_DEFAULT_CLASS) {
        by_name(
            wanted,
            &format!("the namespace's annotation {NAMESPACE_DEFAULT_CLASS}"),
        )
    } else {
        global_default(classes.into_iter(), name)
    };
    match selection {
        Selection::Chosen(class) => match unknown_controller(class) {
            Some(why) => Selection::Nothing(Orphanhood::UnknownController(why)),
            None => Selection::Chosen(class),
        },
        nothing @ Selection::Nothing(_) => nothing,
    }
}

/// Whether a class carries the annotation that makes it the global default. Only the exact value counts.
pub fn is_global_default(class: &JobClass) -> bool {
    class
        .metadata
        .annotations
        .as_ref()
        .and_then(|a| a.get(IS_DEFAULT_CLASS))
        .is_some_and(|v| v == "true")
}

fn global_default<'a>(
    classes: impl Iterator<Item = &'a JobClass>,
    name: impl Fn(&JobClass) -> String,
) -> Selection<'a> {
    let defaults: Vec<_> = classes.filter(|c| is_global_default(c)).collect();
    let why = match defaults.as_slice() {
        [class] => return Selection::Chosen(class),
        [] => Why::new(
            "NoDefaultJobClass",
            format!(
                "spec.jobClassName is not set, the namespace has no annotation {NAMESPACE_DEFAULT_CLASS}, and no \
                 JobClass is annotated {IS_DEFAULT_CLASS}=\"true\"; set one of the three"
            ),
        ),
        several => {
            let mut names: Vec<_> = several.iter().map(|c| name(c)).collect();
            names.sort();
            Why::new(
                "AmbiguousDefaultJobClass",
                format!(
                    "several JobClasses are annotated {IS_DEFAULT_CLASS}=\"true\": {}; leave it on one of them, \
                     or set spec.jobClassName",
                    names.join(", ")
                ),
            )
        }
    };
    Selection::Nothing(Orphanhood::NoClass(why))
}

/// Why nobody provides this class: its controller lies in our own domain and is no name this version knows.
pub fn unknown_controller(class: &JobClass) -> Option<Why> {
    let controller = class.spec.controller_name.as_str();
    let ours = controller
        .split_once('/')
        .is_some_and(|(domain, _)| domain == GROUP);
    (ours && !KNOWN_CONTROLLERS.contains(&controller)).then(|| {
        Why::new(
            "UnsupportedController",
            format!(
                "spec.controllerName {controller:?} of JobClass {} is no controller of {GROUP}; known are {}",
                class.name_any(),
                KNOWN_CONTROLLERS.join(" and ")
            ),
        )
    })
}

/// Whose Job it is, as seen by `controller`.
#[derive(Clone, Copy, Debug)]
pub enum Ownership<'a> {
    /// This controller's.
    Owned(Owned<'a>),
    /// Nobody's.
    Unowned(Unowned<'a>),
    /// Another controller's: none of our business.
    Foreign,
}

/// Whose Job it is. An accepted Job belongs to the controller that accepted it, whatever became of its class.
pub fn of_job<'a>(
    job: &'a Job,
    controller: &str,
    selection: &'a Selection<'a>,
    classes: impl IntoIterator<Item = &'a JobClass>,
) -> Ownership<'a> {
    if let Some(resolved) = job.status.as_ref().and_then(|s| s.resolved_job_class.as_ref()) {
        if resolved.controller_name != controller {
            return Ownership::Foreign;
        }
        let class = classes
            .into_iter()
            .find(|c| c.metadata.uid.as_deref() == Some(resolved.uid.as_str()));
        return Ownership::Owned(Owned { job, class });
    }
    match selection {
        Selection::Chosen(class) if class.spec.controller_name == controller => Ownership::Owned(Owned {
            job,
            class: Some(class),
        }),
        Selection::Chosen(_) => Ownership::Foreign,
        Selection::Nothing(why) => Ownership::Unowned(Unowned { job, why }),
    }
}
