//! The lives of classes and parameters.

use ayatori_core::class::{
    self, Facts, Parameters, ParametersStep, Step, decide_parameters, decide_unowned, is_held_by,
};
use ayatori_core::conditions;
use ayatori_core::execution::Why;
use ayatori_core::job::Job;
use ayatori_core::job_class::{JobClass, JobClassStatus};
use ayatori_core::names::{
    CLASS_FINALIZER, KUBERNETES_CONTROLLER, OPENSANDBOX_CONTROLLER, PARAMETERS_FINALIZER,
};
use ayatori_core::parameters::ParametersStatus;
use ayatori_core::resources::{ResourcePolicy, ResourceQuantities, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::shapes::*;

fn fresh() -> JobClass {
    let mut class = class("rootless");
    class.status = None;
    class
}

fn protected(mut class: JobClass) -> JobClass {
    class.metadata.finalizers = Some(vec![CLASS_FINALIZER.to_owned()]);
    class
}

fn terminating(mut class: JobClass) -> JobClass {
    class.metadata.deletion_timestamp = Some(time(5));
    class
}

fn contradictory(mut class: JobClass) -> JobClass {
    let memory = |value: &str| ResourceRequirements {
        requests: None,
        limits: Some(ResourceQuantities {
            cpu: None,
            memory: Some(Quantity(value.to_owned())),
        }),
    };
    class.spec.resources = Some(ResourcePolicy {
        defaults: None,
        minimum: Some(memory("2Gi")),
        maximum: Some(memory("1Gi")),
    });
    class
}

fn present(protected: bool) -> Parameters {
    Parameters::Present {
        protected,
        problem: None,
    }
}

fn facts(parameters: Parameters) -> Facts {
    Facts {
        unknown_fields: vec![],
        parameters,
        readiness: None,
        holders: None,
    }
}

fn probed(readiness: Result<Why, Why>) -> Facts {
    Facts {
        readiness: Some(readiness),
        ..facts(present(true))
    }
}

fn held_by(names: &[&str]) -> Facts {
    Facts {
        holders: Some(names.iter().map(|n| (*n).to_owned()).collect()),
        ..probed(Ok(why("BackendReachable")))
    }
}

fn told(step: Option<&Step>) -> String {
    match step {
        None => "not ours".to_owned(),
        Some(Step::Report(status)) => says(status),
        Some(other) => format!("{other:?}"),
    }
}

fn says(status: &JobClassStatus) -> String {
    let words: Vec<_> = status
        .conditions
        .iter()
        .map(|c| format!("{}={}/{}", c.type_, c.status, c.reason))
        .collect();
    words.join(" ")
}

fn decide(class: &JobClass, facts: &Facts) -> Option<Step> {
    class::decide(class, KUBERNETES_CONTROLLER, facts, at(10))
}

#[test]
#[rustfmt::skip] // one row, one line
fn a_class_is_accepted_only_after_it_and_its_parameters_are_protected_and_ready_when_the_backend_is() {
    const GOOD: &str = "Accepted=True/Accepted Ready=True/BackendReachable";
    let problem = Parameters::Present {
        protected: true,
        problem: Some(why("InvalidEndpoint")),
    };
    let other = {
        let mut class = fresh();
        class.spec.controller_name = OPENSANDBOX_CONTROLLER.to_owned();
        class
    };
    let ok = || probed(Ok(why("BackendReachable")));
    for (name, class, facts, expected) in [
        ("another controller's", other, facts(present(true)), "not ours"),
        ("a kind nobody here supports", fresh(), facts(Parameters::Unsupported("X".to_owned())), "Accepted=False/InvalidParametersReference Ready=False/NotAccepted"),
        ("no parameters", fresh(), facts(Parameters::Missing), "Accepted=False/ParametersNotFound Ready=False/NotAccepted"),
        ("parameters that are going", fresh(), facts(Parameters::Terminating), "Accepted=False/ParametersTerminating Ready=False/NotAccepted"),
        ("parameters that are wrong", fresh(), facts(problem), "Accepted=False/InvalidEndpoint Ready=False/NotAccepted"),
        ("a field that this version does not know", fresh(), Facts { unknown_fields: vec!["spec.allowedImages".to_owned()], ..ok() }, "Accepted=False/UnsupportedFeature Ready=False/NotAccepted"),
        ("a policy that contradicts itself", contradictory(fresh()), facts(present(true)), "Accepted=False/InvalidResourcePolicy Ready=False/NotAccepted"),
        ("first the class is protected", fresh(), facts(present(false)), "Protect"),
        ("then its parameters", protected(fresh()), facts(present(false)), "ProtectParameters"),
        ("then the backend is asked", protected(fresh()), facts(present(true)), "AskReadiness"),
        ("good", protected(fresh()), ok(), GOOD),
        ("valid, though the backend is away", protected(fresh()), probed(Err(why("BackendUnreachable"))), "Accepted=True/Accepted Ready=False/BackendUnreachable"),
        ("what was accepted may become invalid again", protected(class("rootless")), facts(Parameters::Missing), "Accepted=False/ParametersNotFound Ready=False/NotAccepted"),
        ("going, not protected: nothing to do", terminating(class("rootless")), held_by(&[]), "Wait"),
        ("going: who needs it?", terminating(protected(class("rootless"))), ok(), "AskHolders"),
        ("going, and nobody needs it", terminating(protected(class("rootless"))), held_by(&[]), "Unprotect"),
        ("going, needed, and it serves on", terminating(protected(with_condition(class("rootless"), condition("Ready", "False", "BackendUnreachable")))), held_by(&["team/a"]), "Accepted=True/Accepted Ready=True/BackendReachable DeletionBlocked=True/JobsRemain"),
        ("going, needed, and the backend is to be asked", terminating(protected(class("rootless"))), Facts { readiness: None, ..held_by(&["team/a"]) }, "AskReadiness"),
    ] {
        let step = decide(&class, &facts);
        assert_eq!(told(step.as_ref()), expected, "{name}");
        if let Some(Step::Report(status)) = step {
            let stored = JobClass {
                status: Some(*status),
                ..class
            };
            assert_eq!(decide(&stored, &facts), Some(Step::Wait), "{name}: said once");
        }
    }
}

#[test]
fn a_blocked_class_names_the_first_jobs_in_the_way() {
    let names = ["a", "b", "c", "d", "e", "f", "g"];
    let class = terminating(protected(class("rootless")));
    let Some(Step::Report(status)) = decide(&class, &held_by(&names)) else {
        unreachable!("it is blocked");
    };
    let blocked = conditions::find(&status.conditions, "DeletionBlocked").unwrap();
    assert!(
        blocked.message.contains("a, b, c, d, e and 2 more"),
        "{}",
        blocked.message
    );
}

#[test]
#[rustfmt::skip] // one row, one line
fn an_unknown_controller_of_our_domain_is_told_so_over_the_default_only() {
    let of = |controller: &str, status: Option<JobClassStatus>| {
        let mut class = fresh();
        class.spec.controller_name = controller.to_owned();
        class.status = status;
        class
    };
    let judged = class("x").status;
    let default = Some(JobClassStatus {
        observed_generation: None,
        conditions: vec![
            condition("Accepted", "Unknown", "Pending"),
            condition("Ready", "Unknown", "Pending"),
        ],
    });
    const NOMAD: &str = "execution.ayatori.ddupan.top/nomad";
    const REFUSED: &str = "Accepted=False/UnsupportedController Ready=False/NotAccepted";
    for (name, class, expected) in [
        ("nothing said yet", of(NOMAD, None), REFUSED),
        ("the default", of(NOMAD, default.clone()), REFUSED),
        ("a newer adapter spoke", of(NOMAD, judged), "Wait"),
        ("a known controller", of(OPENSANDBOX_CONTROLLER, default.clone()), "Wait"),
        ("another domain", of("example.com/other", default), "Wait"),
    ] {
        assert_eq!(told(Some(&decide_unowned(&class, at(10)))), expected, "{name}");
    }
}

#[test]
#[rustfmt::skip] // one row, one line
fn a_class_is_held_by_the_jobs_it_accepted_until_they_are_over_and_released() {
    for (name, job, held) in [
        ("not accepted", job(), false),
        ("accepted", accepted(), true),
        ("running", running(), true),
        ("finished, not released", succeeded(), true),
        ("finished and released", released(), false),
        ("finished without ever being accepted", cancelled_before_accepted(), false),
    ] {
        assert_eq!(is_held_by("rootless-uid", &job), held, "{name}");
        assert!(!is_held_by("another-uid", &job), "{name}, another class");
    }
    assert!(!is_held_by(
        "rootless-uid",
        &Job {
            status: None,
            ..job()
        }
    ));
}

#[test]
fn parameters_go_only_when_no_class_refers_to_them() {
    let metadata = |deleted: bool, protected: bool| ObjectMeta {
        deletion_timestamp: deleted.then(|| time(5)),
        finalizers: protected.then(|| vec![PARAMETERS_FINALIZER.to_owned()]),
        generation: Some(1),
        ..ObjectMeta::default()
    };
    let rootless = ["rootless".to_owned()];
    let decide = |metadata: &ObjectMeta, status: Option<&ParametersStatus>, referrers| {
        decide_parameters(metadata, status, referrers, at(10))
    };
    let going = metadata(true, true);
    assert_eq!(decide(&metadata(false, true), None, None), ParametersStep::Wait);
    assert_eq!(decide(&metadata(true, false), None, None), ParametersStep::Wait);
    assert_eq!(decide(&going, None, None), ParametersStep::AskReferrers);
    assert_eq!(decide(&going, None, Some(&[])), ParametersStep::Unprotect);
    let ParametersStep::Report(status) = decide(&going, None, Some(&rootless)) else {
        unreachable!("it is blocked");
    };
    assert!(conditions::is_true(&status.conditions, "DeletionBlocked"));
    assert_eq!(
        decide(&going, Some(&status), Some(&rootless)),
        ParametersStep::Wait
    );
}
