//! Whether a class takes a Job.

use std::collections::BTreeMap;

use ayatori_core::admission::{admit, readiness};
use ayatori_core::job::Job;
use ayatori_core::job_class::JobClass;
use ayatori_core::resources::{ResourcePolicy, ResourceQuantities, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use crate::shapes::*;

fn verdict(
    job: &Job,
    class: &JobClass,
    labels: &BTreeMap<String, String>,
    parameters: Option<&str>,
) -> String {
    match admit(job, class, labels, parameters) {
        Ok(_) => "accepted".to_owned(),
        Err(why) => why.reason,
    }
}

fn changed(change: impl FnOnce(&mut JobClass)) -> JobClass {
    let mut class = class("rootless");
    change(&mut class);
    class
}

fn memory(limit: &str) -> ResourceRequirements {
    ResourceRequirements {
        requests: None,
        limits: Some(ResourceQuantities {
            memory: Some(Quantity(limit.to_owned())),
            cpu: None,
        }),
    }
}

#[test]
#[rustfmt::skip] // one row, one line
fn a_class_takes_a_job_only_when_its_own_controller_calls_it_valid_as_it_is_now() {
    let uid = Some("parameters-uid");
    let not_accepted = condition("Accepted", "False", "ParametersNotFound");
    let undecided = condition("Accepted", "Unknown", "Pending");
    for (name, class, parameters, expected) in [
        ("accepted and present", class("rootless"), uid, "accepted"),
        ("not ready is no reason to refuse", with_condition(class("rootless"), condition("Ready", "False", "X")), uid, "accepted"),
        ("being deleted", changed(|c| c.metadata.deletion_timestamp = Some(time(1))), uid, "JobClassTerminating"),
        ("not accepted", with_condition(class("rootless"), not_accepted), uid, "JobClassNotAccepted"),
        ("not looked at yet", with_condition(class("rootless"), undecided), uid, "JobClassNotAccepted"),
        ("no status at all", changed(|c| c.status = None), uid, "JobClassNotAccepted"),
        ("accepted as it was before its last change", changed(|c| c.metadata.generation = Some(2)), uid, "JobClassNotAccepted"),
        ("its parameters are gone or going", class("rootless"), None, "JobClassNotAccepted"),
    ] {
        assert_eq!(
            verdict(&job(), &class, &BTreeMap::new(), parameters),
            expected,
            "{name}"
        );
    }
}

#[test]
#[rustfmt::skip] // one row, one line
fn every_operator_of_a_namespace_selector_means_what_kubernetes_means() {
    let labelled = map([("team", "ci"), ("execution", "enabled")]);
    let bare = map([]);
    let expression = |operator: &str, key: &str, values: Option<Vec<&str>>| LabelSelector {
        match_labels: None,
        match_expressions: Some(vec![LabelSelectorRequirement {
            key: key.to_owned(),
            operator: operator.to_owned(),
            values: values.map(|v| v.into_iter().map(str::to_owned).collect()),
        }]),
    };
    let labels = LabelSelector {
        match_labels: Some(map([("execution", "enabled")])),
        match_expressions: None,
    };
    let both = LabelSelector {
        match_labels: Some(map([("execution", "enabled")])),
        ..expression("NotIn", "team", Some(vec!["ci"]))
    };
    const YES: &str = "accepted";
    const NO: &str = "NamespaceNotAllowed";
    for (name, selector, with_labels, without) in [
        ("no selector: everyone", None, YES, YES),
        ("an empty selector: nobody, for it may be a typing error", Some(LabelSelector::default()), NO, NO),
        ("empty lists are an empty selector", Some(LabelSelector { match_labels: Some(map([])), match_expressions: Some(vec![]) }), NO, NO),
        ("labels", Some(labels), YES, NO),
        ("In", Some(expression("In", "team", Some(vec!["ci", "infra"]))), YES, NO),
        ("In, another value", Some(expression("In", "team", Some(vec!["infra"]))), NO, NO),
        ("NotIn also matches where the label is missing", Some(expression("NotIn", "team", Some(vec!["ci"]))), NO, YES),
        ("NotIn, another value", Some(expression("NotIn", "team", Some(vec!["infra"]))), YES, YES),
        ("Exists", Some(expression("Exists", "team", None)), YES, NO),
        ("DoesNotExist", Some(expression("DoesNotExist", "team", None)), NO, YES),
        ("all parts must match", Some(both), NO, NO),
        ("an operator nobody knows accepts nobody", Some(expression("Near", "team", None)), "JobClassNotAccepted", "JobClassNotAccepted"),
        ("In without values", Some(expression("In", "team", Some(vec![]))), "JobClassNotAccepted", "JobClassNotAccepted"),
        ("NotIn without values", Some(expression("NotIn", "team", Some(vec![]))), "JobClassNotAccepted", "JobClassNotAccepted"),
        ("Exists with values", Some(expression("Exists", "team", Some(vec!["ci"]))), "JobClassNotAccepted", "JobClassNotAccepted"),
    ] {
        let class = changed(|c| c.spec.allowed_namespaces = selector);
        let uid = Some("parameters-uid");
        assert_eq!(verdict(&job(), &class, &labelled, uid), with_labels, "{name}");
        assert_eq!(
            verdict(&job(), &class, &bare, uid),
            without,
            "{name}, without labels"
        );
    }
}

#[test]
#[rustfmt::skip] // one row, one line
fn resources_outside_the_class_are_refused_and_what_is_missing_is_filled_in() {
    let class = changed(|c| {
        c.spec.resources = Some(ResourcePolicy {
            defaults: Some(memory("1Gi")),
            maximum: Some(memory("2Gi")),
            minimum: None,
        });
    });
    for (asked, expected) in [
        (None, "accepted"),
        (Some("2048Mi"), "accepted"),
        (Some("3Gi"), "ResourcesOutOfRange"),
        (Some("0"), "ResourcesOutOfRange"),
        (Some("-1Gi"), "ResourcesOutOfRange"),
        (Some("1 Gi"), "InvalidResources"),
    ] {
        let mut job = job();
        job.spec.resources = asked.map(memory);
        let actual = verdict(&job, &class, &BTreeMap::new(), Some("parameters-uid"));
        assert_eq!(actual, expected, "{asked:?}");
    }
    let admissible = admit(&job(), &class, &BTreeMap::new(), Some("parameters-uid")).unwrap();
    assert_eq!(admissible.resources, memory("1Gi"));
    assert_eq!(
        (admissible.class.uid.as_str(), admissible.class.parameters_ref.uid.as_str()),
        ("rootless-uid", "parameters-uid")
    );
}

#[test]
#[rustfmt::skip] // one row, one line
fn a_class_is_ready_only_when_it_says_so() {
    for (name, class, expected) in [
        ("ready", class("rootless"), None),
        ("not ready", with_condition(class("rootless"), condition("Ready", "False", "BackendUnreachable")), Some("JobClassNotReady")),
        ("nobody knows", with_condition(class("rootless"), condition("Ready", "Unknown", "Pending")), Some("JobClassNotReady")),
        ("nothing said", changed(|c| c.status = None), Some("JobClassNotReady")),
    ] {
        assert_eq!(
            readiness(&class).err().map(|why| why.reason).as_deref(),
            expected,
            "{name}"
        );
    }
}
