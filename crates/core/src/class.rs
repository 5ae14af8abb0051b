//! The lives of JobClasses and of the parameters objects behind them: accepted, ready, protected.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};

use crate::admission;
use crate::conditions::{self, ACCEPTED, DELETION_BLOCKED, READY, Statement, Truth};
use crate::execution::Why;
use crate::job::Job;
use crate::job_class::{JobClass, JobClassStatus};
use crate::names::{CLASS_FINALIZER, PARAMETERS_FINALIZER};
use crate::ownership::unknown_controller;
use crate::parameters::ParametersStatus;

/// What was read for one class. Absent means not asked yet; [`decide`] asks.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Fields of the class's spec, as paths, that this version does not know.
    pub unknown_fields: Vec<String>,
    /// The parameters object the class refers to.
    pub parameters: Parameters,
    /// Whether new executions can be created now: the reason for Ready, or why not.
    pub readiness: Option<Result<Why, Why>>,
    /// Names of the Jobs that hold the class, by a live LIST.
    pub holders: Option<Vec<String>>,
}

/// The parameters object of a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Parameters {
    /// The reference names a kind that this controller does not support.
    Unsupported(String),
    /// It does not exist.
    Missing,
    /// It is being deleted.
    Terminating,
    /// It exists. `protected`: it carries our finalizer. `problem`: what is wrong with its content.
    Present {
        /// Whether it carries our finalizer.
        protected: bool,
        /// What is wrong with its content, if anything.
        problem: Option<Why>,
    },
}

/// What to do next for a class.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Probe the backend; the answer goes into `facts.readiness`.
    AskReadiness,
    /// LIST the Jobs that hold the class; the answer goes into `facts.holders`.
    AskHolders,
    /// Put our finalizer on the class.
    Protect,
    /// Put our finalizer on the parameters object.
    ProtectParameters,
    /// Take our finalizer off the class.
    Unprotect,
    /// Store this status.
    Report(Box<JobClassStatus>),
    /// Nothing to do until something changes, or the backend is to be probed again.
    Wait,
}

/// The next step for a class whose controller is `controller`; `None` if it is not ours.
pub fn decide(class: &JobClass, controller: &str, facts: &Facts, now: Timestamp) -> Option<Step> {
    if class.spec.controller_name != controller {
        return None;
    }
    Some(match farewell(class, facts) {
        Farewell::Step(step) => step,
        Farewell::Blocked(statement) => go_on(class, facts, Some(statement), now),
        Farewell::Stays => go_on(class, facts, None, now),
    })
}

/// What becomes of a class that may be on its way out.
enum Farewell {
    /// It is not being deleted.
    Stays,
    /// Jobs need it. It serves them on, or those that wait for it to be ready would keep it for ever.
    Blocked(Statement),
    /// It can go, or it is to be found out whether it can.
    Step(Step),
}

fn farewell(class: &JobClass, facts: &Facts) -> Farewell {
    if class.metadata.deletion_timestamp.is_none() {
        return Farewell::Stays;
    }
    if !carries(&class.metadata, CLASS_FINALIZER) {
        return Farewell::Step(Step::Wait);
    }
    match facts.holders.as_deref() {
        None => Farewell::Step(Step::AskHolders),
        Some([]) => Farewell::Step(Step::Unprotect),
        Some(holders) => Farewell::Blocked(blocked("Jobs", holders)),
    }
}

fn go_on(class: &JobClass, facts: &Facts, blocked: Option<Statement>, now: Timestamp) -> Step {
    if let Err(why) = acceptable(class, facts) {
        return report(class, not_accepted(why).into_iter().chain(blocked), now);
    }
    if !carries(&class.metadata, CLASS_FINALIZER) {
        return Step::Protect;
    }
    if matches!(facts.parameters, Parameters::Present { protected: false, .. }) {
        return Step::ProtectParameters;
    }
    let Some(readiness) = &facts.readiness else {
        return Step::AskReadiness;
    };
    let ready = match readiness {
        Ok(why) => Statement::holds(READY, why.reason.clone(), why.message.clone()),
        Err(why) => Statement::fails(READY, why.reason.clone(), why.message.clone()),
    };
    let accepted = Statement::holds(
        ACCEPTED,
        "Accepted",
        "the class is valid and its parameters exist",
    );
    report(class, [accepted, ready].into_iter().chain(blocked), now)
}

/// The next status of a class of our own domain whose controller nobody knows, if it has to be said. Only the
/// default is written over, so that an old adapter cannot argue with a new one.
pub fn decide_unowned(class: &JobClass, now: Timestamp) -> Step {
    let judged = class
        .status
        .as_ref()
        .is_some_and(|s| conditions::was_judged(&s.conditions, ACCEPTED));
    match unknown_controller(class) {
        Some(why) if !judged => report(class, not_accepted(why), now),
        _ => Step::Wait,
    }
}

/// Ready says why too: it is all that most tools look at.
fn not_accepted(why: Why) -> [Statement; 2] {
    let ready = format!("the class is not accepted: {}: {}", why.reason, why.message);
    [
        Statement::fails(ACCEPTED, why.reason, why.message),
        Statement::fails(READY, "NotAccepted", ready),
    ]
}

fn acceptable(class: &JobClass, facts: &Facts) -> Result<(), Why> {
    if let Some(why) = admission::unsupported(&facts.unknown_fields) {
        return Err(why);
    }
    let r = &class.spec.parameters_ref;
    match &facts.parameters {
        Parameters::Unsupported(supported) => {
            return Err(Why::new(
                "InvalidParametersReference",
                format!(
                    "spec.parametersRef names {} of group {:?}, but controller {} supports {supported}; create a \
                     new class with a supported kind",
                    r.kind, r.group, class.spec.controller_name
                ),
            ));
        }
        Parameters::Missing => {
            return Err(Why::new(
                "ParametersNotFound",
                format!(
                    "spec.parametersRef names {} {}, which does not exist; create it",
                    r.kind, r.name
                ),
            ));
        }
        Parameters::Terminating => {
            return Err(Why::new(
                "ParametersTerminating",
                format!(
                    "{} {} is being deleted; recreate it once it is gone",
                    r.kind, r.name
                ),
            ));
        }
        Parameters::Present {
            problem: Some(why), ..
        } => return Err(why.clone()),
        Parameters::Present { problem: None, .. } => {}
    }
    let Some(policy) = &class.spec.resources else {
        return Ok(());
    };
    policy.validate().map_err(|problems| {
        let messages: Vec<_> = problems.iter().map(ToString::to_string).collect();
        Why::new("InvalidResourcePolicy", messages.join("; "))
    })
}

fn report(class: &JobClass, statements: impl IntoIterator<Item = Statement>, now: Timestamp) -> Step {
    let mut status = class.status.clone().unwrap_or_default();
    status.observed_generation = class.metadata.generation;
    for statement in statements {
        conditions::state(&mut status.conditions, statement, class.metadata.generation, now);
    }
    if class.status.as_ref() == Some(&status) {
        Step::Wait
    } else {
        Step::Report(Box::new(status))
    }
}

/// What to do next for a parameters object.
#[derive(Clone, Debug, PartialEq)]
pub enum ParametersStep {
    /// LIST the classes that refer to it, and decide again with their names.
    AskReferrers,
    /// Take our finalizer off.
    Unprotect,
    /// Store this status.
    Report(Box<ParametersStatus>),
    /// Nothing to do until something changes.
    Wait,
}

/// The next step for a parameters object. `referrers`: the classes that refer to it, by a live LIST.
pub fn decide_parameters(
    metadata: &ObjectMeta,
    status: Option<&ParametersStatus>,
    referrers: Option<&[String]>,
    now: Timestamp,
) -> ParametersStep {
    if metadata.deletion_timestamp.is_none() || !carries(metadata, PARAMETERS_FINALIZER) {
        return ParametersStep::Wait;
    }
    match referrers {
        None => ParametersStep::AskReferrers,
        Some([]) => ParametersStep::Unprotect,
        Some(names) => {
            let mut next = status.cloned().unwrap_or_default();
            next.observed_generation = metadata.generation;
            conditions::state(
                &mut next.conditions,
                blocked("JobClasses", names),
                metadata.generation,
                now,
            );
            if status == Some(&next) {
                ParametersStep::Wait
            } else {
                ParametersStep::Report(Box::new(next))
            }
        }
    }
}

/// Whether a Job holds the class with this UID: accepted by it, and not yet both finished and released.
pub fn is_held_by(class_uid: &str, job: &Job) -> bool {
    let Some(status) = &job.status else { return false };
    let accepted = status
        .resolved_job_class
        .as_ref()
        .is_some_and(|c| c.uid == class_uid);
    let finished = conditions::is_true(&status.conditions, conditions::FINISHED);
    let released = status
        .execution
        .as_ref()
        .is_some_and(|e| e.release_time.is_some());
    accepted && !(finished && released)
}

fn blocked(kind: &str, names: &[String]) -> Statement {
    const NAMED: usize = 5;
    let first: Vec<_> = names.iter().take(NAMED).map(String::as_str).collect();
    let more = names.len().saturating_sub(NAMED);
    let more = if more > 0 {
        format!(" and {more} more")
    } else {
        String::new()
    };
    Statement {
        type_: DELETION_BLOCKED,
        truth: Truth::True,
        reason: format!("{kind}Remain"),
        message: format!(
            "needed by {}{more}; it goes when they do not need it any more",
            first.join(", ")
        ),
    }
}

/// Whether an object carries a finalizer.
pub fn carries(metadata: &ObjectMeta, finalizer: &str) -> bool {
    metadata.finalizers.iter().flatten().any(|f| f == finalizer)
}

/// The conditions that are worth an Event: those that changed their status or reason, and say something.
pub fn changed<'a>(old: &[Condition], new: &'a [Condition]) -> Vec<&'a Condition> {
    new.iter()
        .filter(|c| c.status != "Unknown")
        .filter(|c| {
            !conditions::find(old, &c.type_).is_some_and(|b| b.status == c.status && b.reason == c.reason)
        })
        .collect()
}
