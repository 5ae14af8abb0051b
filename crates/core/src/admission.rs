//! Whether a class takes a Job: everything that can be judged from the objects themselves.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelectorRequirement;
use kube::core::{Selector, SelectorExt};

use crate::conditions::{self, ACCEPTED, READY};
use crate::execution::Why;
use crate::job::{Job, ResolvedJobClass, ResolvedParametersReference};
use crate::job_class::JobClass;
use crate::resources::{self, ResourceRequirements};

/// A Job as a class would execute it.
#[derive(Clone, Debug, PartialEq)]
pub struct Admissible {
    /// The class, by name and UID.
    pub class: ResolvedJobClass,
    /// Effective CPU and memory.
    pub resources: ResourceRequirements,
}

/// Judges a Job against its class. `parameters_uid` is that of the class's parameters object, if it exists and
/// is not being deleted.
pub fn admit(
    job: &Job,
    class: &JobClass,
    namespace_labels: &BTreeMap<String, String>,
    parameters_uid: Option<&str>,
) -> Result<Admissible, Why> {
    let name = class.metadata.name.as_deref().unwrap_or_default();
    let uid = class.metadata.uid.as_deref().unwrap_or_default();
    if class.metadata.deletion_timestamp.is_some() {
        return Err(Why::new(
            "JobClassTerminating",
            format!("JobClass {name} is being deleted and accepts no new Jobs; name another class"),
        ));
    }
    let not_accepted = |message: String| Err(Why::new("JobClassNotAccepted", message));
    if let Err(why) = is_accepted(class) {
        return not_accepted(why);
    }
    let Some(parameters_uid) = parameters_uid else {
        let r = &class.spec.parameters_ref;
        return not_accepted(format!(
            "JobClass {name} refers to {} {}, which does not exist or is being deleted",
            r.kind, r.name
        ));
    };
    if !allows(class, namespace_labels)? {
        return Err(Why::new(
            "NamespaceNotAllowed",
            format!(
                "the labels of namespace {} do not match spec.allowedNamespaces of JobClass {name}; ask for the \
                 namespace to be labelled, or name another class",
                job.metadata.namespace.as_deref().unwrap_or_default()
            ),
        ));
    }
    let requested = job.spec.resources.clone().unwrap_or_default();
    let resources = resources::resolve(&requested, class.spec.resources.as_ref())
        .map_err(|refusal| Why::new(refusal.reason(), format!("under JobClass {name}: {refusal}")))?;
    let reference = &class.spec.parameters_ref;
    Ok(Admissible {
        class: ResolvedJobClass {
            name: name.to_owned(),
            uid: uid.to_owned(),
            controller_name: class.spec.controller_name.clone(),
            parameters_ref: ResolvedParametersReference {
                group: reference.group.clone(),
                kind: reference.kind.clone(),
                name: reference.name.clone(),
                uid: parameters_uid.to_owned(),
            },
        },
        resources: resources.into(),
    })
}

/// Whether the class's own controller calls it valid, as of its latest generation.
fn is_accepted(class: &JobClass) -> Result<(), String> {
    let name = class.metadata.name.as_deref().unwrap_or_default();
    let accepted = class
        .status
        .as_ref()
        .and_then(|s| conditions::find(&s.conditions, ACCEPTED));
    match accepted {
        Some(c) if c.status == "True" && c.observed_generation >= class.metadata.generation => Ok(()),
        Some(c) if c.status == "False" => Err(format!(
            "JobClass {name} is not accepted: {}: {}",
            c.reason, c.message
        )),
        _ => Err(format!(
            "JobClass {name} waits for its controller {}",
            class.spec.controller_name
        )),
    }
}

/// Whether new executions can be created with this class now; the reason if not.
pub fn readiness(class: &JobClass) -> Result<(), Why> {
    let name = class.metadata.name.as_deref().unwrap_or_default();
    let ready = class
        .status
        .as_ref()
        .and_then(|s| conditions::find(&s.conditions, READY));
    match ready {
        Some(c) if c.status == "True" => Ok(()),
        Some(c) => Err(Why::new(
            "JobClassNotReady",
            format!("JobClass {name} is not ready: {}: {}", c.reason, c.message),
        )),
        None => Err(Why::new(
            "JobClassNotReady",
            format!("JobClass {name} has not been looked at by its controller"),
        )),
    }
}

/// Why an object whose spec has fields that this version does not know is not acted on, if it has any.
pub fn unsupported(unknown_fields: &[String]) -> Option<Why> {
    (!unknown_fields.is_empty()).then(|| {
        Why::new(
            "UnsupportedFeature",
            format!(
                "this version of the adapter does not know {} and would do less than was asked for; upgrade the \
                 adapter, or leave that out",
                unknown_fields.join(", ")
            ),
        )
    })
}

/// Whether a namespace with these labels may use the class.
///
/// # Errors
/// `JobClassNotAccepted` if the selector is one that Kubernetes does not take: it allows nobody.
pub fn allows(class: &JobClass, labels: &BTreeMap<String, String>) -> Result<bool, Why> {
    let Some(selector) = &class.spec.allowed_namespaces else {
        return Ok(true);
    };
    let expressions = selector.match_expressions.as_deref().unwrap_or_default();
    if expressions.is_empty() && selector.match_labels.as_ref().is_none_or(|m| m.is_empty()) {
        return Ok(false);
    }
    let unreadable = |cause: String| {
        Why::new(
            "JobClassNotAccepted",
            format!("spec.allowedNamespaces of the class cannot be read: {cause}"),
        )
    };
    // A `NotIn` without values would allow everybody.
    if let Some(wrong) = expressions.iter().find(|e| !has_the_values_it_needs(e)) {
        return Err(unreadable(format!(
            "In and NotIn need values, Exists and DoesNotExist have none; {} of {:?} is otherwise",
            wrong.operator, wrong.key
        )));
    }
    let selector = Selector::try_from(selector.clone()).map_err(|e| unreadable(e.to_string()))?;
    Ok(selector.matches(labels))
}

fn has_the_values_it_needs(expression: &LabelSelectorRequirement) -> bool {
    let has_values = expression.values.as_ref().is_some_and(|v| !v.is_empty());
    has_values == matches!(expression.operator.as_str(), "In" | "NotIn")
}
