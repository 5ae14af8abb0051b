//! One table of what a class's policy refuses, judged by the admission policies and by the controllers.

use std::collections::BTreeMap;

use anyhow::{Context, ensure};
use ayatori_core::conditions::ACCEPTED;
use ayatori_core::job::Job;
use ayatori_core::names::NAMESPACE_DEFAULT_CLASS;
use ayatori_e2e::api::{self, Run};
use futures::{StreamExt, stream};
use kube::Api;
use serde_json::Value;

use crate::scene::{
    Answer, Judges, create, create_class, create_parameters, is_untouched, when_accepted_says,
};

/// A Job, its class and its namespace, and what becomes of it.
struct Case {
    /// What the case is about.
    about: &'static str,
    namespace: Namespace,
    choice: Choice,
    /// The class's `allowedNamespaces` and `resources`, in YAML.
    class: &'static str,
    /// The Job's fields, in YAML.
    job: &'static str,
    verdict: Verdict,
}

/// Labels of the Job's namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Namespace {
    /// None.
    Plain,
    /// `team: a` and `tier: gold`.
    Labelled,
}

/// How the Job comes to its class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    /// By `spec.jobClassName`.
    Name,
    /// By the namespace's annotation.
    Annotation,
    /// By `spec.jobClassName`, while the namespace's annotation names a class that does not exist.
    NameOverAnnotation,
    /// By the namespace's annotation, which names a class that does not exist.
    BrokenAnnotation,
}

#[derive(Clone, Copy, Debug)]
enum Verdict {
    Accepted,
    /// At create where the policies judge, else with this reason for `Accepted=False`; both with these words.
    Refused(&'static str, &'static str),
    /// With this reason for `Accepted=False`, whether or not the policies judge.
    ByControllers(&'static str),
    /// Somebody else's: created, and then left alone.
    LeftAlone,
}
use Verdict::{Accepted, ByControllers, LeftAlone, Refused};

const FORBIDDEN: Verdict = Refused(
    "NamespaceNotAllowed",
    "do not match spec.allowedNamespaces of JobClass",
);

const fn out_of_range(words: &'static str) -> Verdict {
    Refused("ResourcesOutOfRange", words)
}

const fn invalid(words: &'static str) -> Verdict {
    Refused("InvalidResources", words)
}

/// A Job that names its class, in a namespace with labels.
const fn selected(about: &'static str, class: &'static str, verdict: Verdict) -> Case {
    Case {
        about,
        namespace: Namespace::Labelled,
        choice: Choice::Name,
        class,
        job: "{}",
        verdict,
    }
}

/// A Job that names its class, which any namespace may use.
const fn sized(about: &'static str, class: &'static str, job: &'static str, verdict: Verdict) -> Case {
    Case {
        about,
        namespace: Namespace::Plain,
        choice: Choice::Name,
        class,
        job,
        verdict,
    }
}

const fn chosen(about: &'static str, choice: Choice, class: &'static str, verdict: Verdict) -> Case {
    Case {
        about,
        namespace: Namespace::Plain,
        choice,
        class,
        job: "{}",
        verdict,
    }
}

const TEAM_B: &str = "allowedNamespaces: {matchLabels: {team: b}}";
const MAXIMUM: &str = "resources: {maximum: {limits: {cpu: 8, memory: 16Gi}}}";
const MINIMUM: &str = "resources: {minimum: {requests: {cpu: 500m}, limits: {memory: 1Gi}}}";
const DEFAULTS: &str =
    "resources: {defaults: {requests: {cpu: 250m, memory: 256Mi}, limits: {cpu: 2, memory: 2Gi}}}";

const CASES: &[Case] = &[
    // ---- which namespaces may use a class ----
    selected("no selector allows everyone", "{}", Accepted),
    selected(
        "a label matches",
        "allowedNamespaces: {matchLabels: {team: a}}",
        Accepted,
    ),
    selected("a label has another value", TEAM_B, FORBIDDEN),
    selected(
        "a label is missing",
        "allowedNamespaces: {matchLabels: {squad: a}}",
        FORBIDDEN,
    ),
    selected(
        "all labels match",
        "allowedNamespaces: {matchLabels: {team: a, tier: gold}}",
        Accepted,
    ),
    selected(
        "one of two labels does not match",
        "allowedNamespaces: {matchLabels: {team: a, tier: lead}}",
        FORBIDDEN,
    ),
    selected(
        "an empty value is not a missing label",
        "allowedNamespaces: {matchLabels: {squad: ''}}",
        FORBIDDEN,
    ),
    selected(
        "In holds the value",
        "allowedNamespaces: {matchExpressions: [{key: team, operator: In, values: [b, a]}]}",
        Accepted,
    ),
    selected(
        "In holds other values",
        "allowedNamespaces: {matchExpressions: [{key: team, operator: In, values: [b, c]}]}",
        FORBIDDEN,
    ),
    selected(
        "In without the label",
        "allowedNamespaces: {matchExpressions: [{key: squad, operator: In, values: [a]}]}",
        FORBIDDEN,
    ),
    selected(
        "NotIn holds other values",
        "allowedNamespaces: {matchExpressions: [{key: team, operator: NotIn, values: [b]}]}",
        Accepted,
    ),
    selected(
        "NotIn without the label",
        "allowedNamespaces: {matchExpressions: [{key: squad, operator: NotIn, values: [a]}]}",
        Accepted,
    ),
    selected(
        "NotIn holds the value",
        "allowedNamespaces: {matchExpressions: [{key: team, operator: NotIn, values: [b, a]}]}",
        FORBIDDEN,
    ),
    selected(
        "Exists with the label",
        "allowedNamespaces: {matchExpressions: [{key: team, operator: Exists}]}",
        Accepted,
    ),
    selected(
        "Exists without the label",
        "allowedNamespaces: {matchExpressions: [{key: squad, operator: Exists}]}",
        FORBIDDEN,
    ),
    selected(
        "DoesNotExist without the label",
        "allowedNamespaces: {matchExpressions: [{key: squad, operator: DoesNotExist}]}",
        Accepted,
    ),
    selected(
        "DoesNotExist with the label",
        "allowedNamespaces: {matchExpressions: [{key: team, operator: DoesNotExist}]}",
        FORBIDDEN,
    ),
    selected(
        "labels and expressions match",
        "allowedNamespaces: {matchLabels: {team: a}, matchExpressions: [{key: tier, operator: Exists}]}",
        Accepted,
    ),
    selected(
        "labels match and an expression does not",
        "allowedNamespaces: {matchLabels: {team: a}, matchExpressions: [{key: tier, operator: DoesNotExist}]}",
        FORBIDDEN,
    ),
    selected(
        "an expression matches and a label does not",
        "allowedNamespaces: {matchLabels: {team: b}, matchExpressions: [{key: tier, operator: Exists}]}",
        FORBIDDEN,
    ),
    // ---- which class is judged by ----
    chosen("the namespace's class", Choice::Annotation, TEAM_B, FORBIDDEN),
    chosen(
        "the resources of the namespace's class",
        Choice::Annotation,
        MAXIMUM,
        out_of_range("spec.resources.limits.cpu is not set"),
    ),
    chosen(
        "the namespace's class takes it",
        Choice::Annotation,
        "{}",
        Accepted,
    ),
    chosen(
        "a name is stronger than the namespace's class",
        Choice::NameOverAnnotation,
        "{}",
        Accepted,
    ),
    chosen(
        "a name is stronger than the namespace's class, and refused",
        Choice::NameOverAnnotation,
        TEAM_B,
        FORBIDDEN,
    ),
    chosen(
        "a class that does not exist is the controllers' to report",
        Choice::BrokenAnnotation,
        "{}",
        ByControllers("JobClassNotFound"),
    ),
    sized(
        "the Job of another controller",
        TEAM_B,
        "{managedBy: example.com/other, resources: {limits: {cpu: 0}}}",
        LeftAlone,
    ),
    sized(
        "our own controller by name",
        TEAM_B,
        "managedBy: execution.ayatori.ddupan.top/job-controller",
        FORBIDDEN,
    ),
    sized(
        "the namespace comes before the resources",
        TEAM_B,
        "resources: {limits: {cpu: 0}}",
        FORBIDDEN,
    ),
    // ---- bounds ----
    sized("no policy and nothing asked for", "{}", "{}", Accepted),
    sized(
        "a bound is in range, as a number",
        MAXIMUM,
        "resources: {limits: {cpu: 8000m, memory: 16384Mi}}",
        Accepted,
    ),
    sized(
        "the same in other notations",
        MAXIMUM,
        "resources: {requests: {cpu: '0.1', memory: '1e3'}, limits: {cpu: '8e0', memory: 1.5Gi}}",
        Accepted,
    ),
    sized(
        "above the maximum",
        MAXIMUM,
        "resources: {limits: {cpu: 9, memory: 1Gi}}",
        out_of_range(
            "limits.cpu 9 (set by the Job) is above spec.resources.maximum.limits.cpu 8 of the JobClass; set it to 8 or less",
        ),
    ),
    sized(
        "hardly above the maximum",
        MAXIMUM,
        "resources: {limits: {cpu: 8001m, memory: 1Gi}}",
        out_of_range("limits.cpu 8001m (set by the Job) is above spec.resources.maximum.limits.cpu 8 "),
    ),
    sized(
        "both above the maximum",
        MAXIMUM,
        "resources: {limits: {cpu: 9, memory: 17Gi}}",
        out_of_range("or less; spec.resources.limits.memory 17Gi (set by the Job) is above"),
    ),
    sized(
        "no limit is above any maximum",
        MAXIMUM,
        "resources: {limits: {cpu: 1}}",
        out_of_range(
            "spec.resources.limits.memory is not set, which is no limit and so above spec.resources.maximum.limits.memory 16Gi",
        ),
    ),
    sized(
        "no request is within any maximum",
        "resources: {maximum: {requests: {cpu: 1, memory: 1Gi}}}",
        "{}",
        Accepted,
    ),
    sized(
        "a request above its maximum",
        "resources: {maximum: {requests: {memory: 1Gi}}}",
        "resources: {requests: {memory: 1025Mi}}",
        out_of_range(
            "requests.memory 1025Mi (set by the Job) is above spec.resources.maximum.requests.memory 1Gi",
        ),
    ),
    sized(
        "at the minimum",
        MINIMUM,
        "resources: {requests: {cpu: '0.5'}, limits: {memory: 1Gi}}",
        Accepted,
    ),
    sized(
        "below the minimum request",
        MINIMUM,
        "resources: {requests: {cpu: 499m}}",
        out_of_range(
            "requests.cpu 499m (set by the Job) is below spec.resources.minimum.requests.cpu 500m of the JobClass; set it to 500m or more",
        ),
    ),
    sized(
        "below the minimum limit",
        MINIMUM,
        "resources: {requests: {cpu: 1}, limits: {memory: 1G}}",
        out_of_range("limits.memory 1G (set by the Job) is below spec.resources.minimum.limits.memory 1Gi"),
    ),
    sized(
        "no request is below any minimum",
        MINIMUM,
        "{}",
        out_of_range(
            "spec.resources.requests.cpu is not set, so it is below spec.resources.minimum.requests.cpu 500m",
        ),
    ),
    sized(
        "no limit is within any minimum",
        "resources: {minimum: {limits: {cpu: 1}}}",
        "{}",
        Accepted,
    ),
    sized(
        "a limit of zero",
        "{}",
        "resources: {limits: {cpu: 0}}",
        out_of_range("limits.cpu 0 (set by the Job) is zero, which backends take for no limit"),
    ),
    sized(
        "a limit of zero in another notation",
        MAXIMUM,
        "resources: {limits: {cpu: 1, memory: 0Gi}}",
        out_of_range("limits.memory 0Gi (set by the Job) is zero"),
    ),
    sized(
        "a limit of minus zero",
        "{}",
        "resources: {limits: {cpu: '-0'}}",
        out_of_range("limits.cpu -0 (set by the Job) is zero"),
    ),
    sized(
        "a memory limit in thousandths of a byte",
        "{}",
        "resources: {limits: {memory: 512m}}",
        out_of_range("limits.memory 512m (set by the Job) is less than one page of memory, 4Ki"),
    ),
    sized(
        "the largest memory limit below one page",
        MAXIMUM,
        "resources: {limits: {cpu: 1, memory: 4095}}",
        out_of_range("limits.memory 4095 (set by the Job) is less than one page"),
    ),
    sized(
        "a memory limit of one page, and thousandths of a byte that are many",
        "{}",
        "resources: {requests: {memory: 4000000m}, limits: {memory: '4095001m'}}",
        Accepted,
    ),
    sized(
        "a negative limit",
        MAXIMUM,
        "resources: {limits: {cpu: -1, memory: 1Gi}}",
        out_of_range("limits.cpu -1 (set by the Job) is negative; set it above zero"),
    ),
    sized(
        "a negative request",
        "{}",
        "resources: {requests: {memory: -1n}}",
        out_of_range("requests.memory -1n (set by the Job) is negative"),
    ),
    sized(
        "a request of zero",
        "{}",
        "resources: {requests: {cpu: 0, memory: '0'}}",
        Accepted,
    ),
    sized(
        "more memory than can be counted",
        "{}",
        "resources: {limits: {memory: '9223372036854775808'}}",
        out_of_range("limits.memory 9223372036854775808 (set by the Job) is more than Kubernetes can count"),
    ),
    sized(
        "more CPU than can be counted",
        "{}",
        "resources: {requests: {cpu: '1e18'}}",
        out_of_range("requests.cpu 1e18 (set by the Job) is more than Kubernetes can count"),
    ),
    sized(
        "as much as can be counted",
        "{}",
        "resources: {requests: {cpu: '9223372036854775.807'}, limits: {memory: 16Ei}}",
        Accepted,
    ),
    // ---- defaults and contradictions ----
    sized("defaults fill in what is missing", DEFAULTS, "{}", Accepted),
    sized(
        "defaults count against the maximum",
        "resources: {defaults: {limits: {cpu: 2, memory: 2Gi}}, maximum: {limits: {cpu: 8, memory: 16Gi}}}",
        "resources: {limits: {cpu: 8}}",
        Accepted,
    ),
    sized(
        "a request above the limit",
        "{}",
        "resources: {requests: {cpu: 1001m}, limits: {cpu: 1}}",
        invalid(
            "spec.resources.requests.cpu 1001m (set by the Job) is above spec.resources.limits.cpu 1 (set by the Job); set a request",
        ),
    ),
    sized(
        "the class's default request above the Job's limit",
        DEFAULTS,
        "resources: {limits: {cpu: 100m}}",
        invalid(
            "requests.cpu 250m (the default of the JobClass) is above spec.resources.limits.cpu 100m (set by the Job)",
        ),
    ),
    sized(
        "the Job's request above the class's default limit",
        DEFAULTS,
        "resources: {requests: {memory: 2049Mi}}",
        invalid(
            "requests.memory 2049Mi (set by the Job) is above spec.resources.limits.memory 2Gi (the default of the JobClass)",
        ),
    ),
    sized(
        "a request equal to its limit, as a number",
        "{}",
        "resources: {requests: {cpu: 1000m, memory: 1024Mi}, limits: {cpu: 1, memory: 1073741824}}",
        Accepted,
    ),
    sized(
        "the range comes before the contradiction",
        "resources: {defaults: {requests: {cpu: 250m}}, minimum: {limits: {cpu: 200m}}}",
        "resources: {limits: {cpu: 100m}}",
        out_of_range("limits.cpu 100m (set by the Job) is below spec.resources.minimum.limits.cpu 200m"),
    ),
];

#[tokio::test]
async fn policies_refuse_at_create_exactly_what_the_controllers_refuse_in_the_same_words()
-> anyhow::Result<()> {
    api::in_namespace(async |run| {
        create_parameters(&run).await?;
        let homes = create_namespaces(&run).await?;
        let (run, homes) = (&run, &homes);
        let problems: Vec<String> = stream::iter(CASES.iter().enumerate())
            .map(async |(number, case)| {
                Trial {
                    run,
                    homes,
                    number,
                    case,
                }
                .problem()
                .await
            })
            .buffer_unordered(8)
            .filter_map(async |problem| problem)
            .collect()
            .await;
        ensure!(
            problems.is_empty(),
            "{} of {} cases:\n{}",
            problems.len(),
            CASES.len(),
            problems.join("\n")
        );
        Ok(())
    })
    .await
}

/// The namespaces of all cases, by who judges there, their labels, and the class they are annotated with.
type Homes = BTreeMap<(&'static str, Namespace, Option<String>), String>;

async fn create_namespaces(run: &Run) -> anyhow::Result<Homes> {
    let mut homes = Homes::new();
    for (number, case) in CASES.iter().enumerate() {
        for judges in Judges::ALL {
            let key = home(run, number, case, judges);
            if homes.contains_key(&key) {
                continue;
            }
            let mut labels = judges.labels();
            if case.namespace == Namespace::Labelled {
                labels.extend([("team", "a"), ("tier", "gold")].map(|(k, v)| (k.to_owned(), v.to_owned())));
            }
            let annotation = key
                .2
                .clone()
                .map(|class| (NAMESPACE_DEFAULT_CLASS.to_owned(), class));
            let name = format!("home-{}", homes.len());
            let name = run
                .create_namespace(&name, labels, annotation.into_iter().collect())
                .await?;
            homes.insert(key, name);
        }
    }
    Ok(homes)
}

fn home(run: &Run, number: usize, case: &Case, judges: Judges) -> (&'static str, Namespace, Option<String>) {
    let annotation = match case.choice {
        Choice::Name => None,
        Choice::Annotation => Some(class_name(run, number)),
        Choice::NameOverAnnotation | Choice::BrokenAnnotation => Some(format!("{}-none", run.namespace)),
    };
    let judges = match judges {
        Judges::Policies => "policies",
        Judges::Controllers => "controllers",
    };
    (judges, case.namespace, annotation)
}

fn class_name(run: &Run, number: usize) -> String {
    format!("{}-{number}", run.namespace)
}

/// One case on its cluster.
struct Trial<'a> {
    run: &'a Run,
    homes: &'a Homes,
    number: usize,
    case: &'a Case,
}

impl Trial<'_> {
    async fn problem(&self) -> Option<String> {
        let error = self.judged().await.err()?;
        Some(format!("{}: {error:#}", self.case.about))
    }

    async fn judged(&self) -> anyhow::Result<()> {
        let class: Value = serde_yaml::from_str(self.case.class)?;
        create_class(self.run, &self.class(), BTreeMap::new(), &class).await?;
        let [policies, controllers] = Judges::ALL.map(|judges| self.home(judges));
        // The controllers have the last word, so theirs comes first.
        let condition = self
            .judged_by_controllers(&controllers)
            .await
            .context("without policies")?;
        let Refused(reason, words) = self.case.verdict else {
            return self
                .judged_by_controllers(&policies)
                .await
                .context("with policies")
                .map(drop);
        };
        let message = match self.create_in(&policies).await? {
            Answer::Refused(message) => message,
            Answer::Created => anyhow::bail!("with policies: it was created"),
        };
        // Only the name of the namespace differs.
        let said = condition.replace(&controllers, &policies);
        ensure!(
            message.contains(&format!("denied request: {reason}: ")),
            "another reason than {reason}: {message}"
        );
        ensure!(
            message.contains(&self.class()),
            "the class is not named: {message}"
        );
        ensure!(
            said.contains(words),
            "`{words}` is not in what the controller says: {said}"
        );
        ensure!(
            message.contains(&said),
            "the policy says: {message}\nand the controller: {said}"
        );
        Ok(())
    }

    /// Creates the Job where nothing or nobody refuses it; returns what the controllers then say.
    async fn judged_by_controllers(&self, namespace: &str) -> anyhow::Result<String> {
        if let Answer::Refused(message) = self.create_in(namespace).await? {
            anyhow::bail!("refused at create: {message}");
        }
        let (status, reason) = match self.case.verdict {
            Accepted => ("True", "Accepted"),
            Refused(reason, _) | ByControllers(reason) => ("False", reason),
            LeftAlone => {
                let jobs: Api<Job> = Api::namespaced(self.run.client.clone(), namespace);
                ensure!(is_untouched(&jobs.get(&self.job()).await?), "it was judged");
                return Ok(String::new());
            }
        };
        let condition = when_accepted_says(self.run, namespace, &self.job(), reason).await?;
        ensure!(condition.status == status, "{ACCEPTED} is {}", condition.status);
        Ok(condition.message)
    }

    async fn create_in(&self, namespace: &str) -> anyhow::Result<Answer> {
        let mut spec: Value = serde_yaml::from_str(self.case.job)?;
        if matches!(self.case.choice, Choice::Name | Choice::NameOverAnnotation) {
            let fields = spec.as_object_mut().context("the Job's fields are no map")?;
            fields.insert("jobClassName".to_owned(), self.class().into());
        }
        create(self.run, namespace, &self.job(), &spec).await
    }

    fn home(&self, judges: Judges) -> String {
        let key = home(self.run, self.number, self.case, judges);
        self.homes.get(&key).cloned().unwrap_or_default()
    }

    fn class(&self) -> String {
        class_name(self.run, self.number)
    }

    fn job(&self) -> String {
        format!("case-{}", self.number)
    }
}
