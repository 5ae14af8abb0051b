//! Which class a Job gets, and whose the Job is.

use ayatori_core::job_class::JobClass;
use ayatori_core::names::{
    IS_DEFAULT_CLASS, KUBERNETES_CONTROLLER, NAMESPACE_DEFAULT_CLASS, OPENSANDBOX_CONTROLLER,
};
use ayatori_core::ownership::{self, Orphanhood, Ownership, Selection};

use crate::shapes::*;

fn default(name: &str) -> JobClass {
    annotated(class(name), IS_DEFAULT_CLASS, "true")
}

fn of_controller(name: &str, controller: &str) -> JobClass {
    let mut class = class(name);
    class.spec.controller_name = controller.to_owned();
    class
}

fn terminating(mut class: JobClass) -> JobClass {
    class.metadata.deletion_timestamp = Some(time(1));
    class
}

fn chosen(named: Option<&str>, namespace: &[(&str, &str)], classes: &[JobClass]) -> String {
    let mut job = job();
    job.spec.job_class_name = named.map(str::to_owned);
    let annotations = namespace
        .iter()
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    match ownership::select(&job, &annotations, classes) {
        Selection::Chosen(class) => class.metadata.name.clone().unwrap(),
        Selection::Nothing(Orphanhood::NoClass(why) | Orphanhood::UnknownController(why)) => why.reason,
    }
}

#[test]
#[rustfmt::skip] // one row, one line
fn explicit_beats_the_namespace_beats_the_single_global_default_and_a_broken_choice_never_falls_through() {
    const NS: &str = NAMESPACE_DEFAULT_CLASS;
    let all = || vec![class("a"), class("b"), default("c")];
    for (name, named, namespace, classes, expected) in [
        ("explicit wins over both defaults", Some("a"), vec![(NS, "b")], all(), "a"),
        ("the namespace wins over the global default", None, vec![(NS, "b")], all(), "b"),
        ("the global default comes last", None, vec![], all(), "c"),
        ("an explicit class that is missing", Some("gone"), vec![(NS, "b")], all(), "JobClassNotFound"),
        ("a namespace default that is missing", None, vec![(NS, "gone")], all(), "JobClassNotFound"),
        ("an empty annotation is a broken choice too", None, vec![(NS, "")], all(), "JobClassNotFound"),
        ("an annotation of another domain says nothing", None, vec![("example.com/default-job-class", "b")], all(), "c"),
        ("no default anywhere", None, vec![], vec![class("a")], "NoDefaultJobClass"),
        ("no class at all", None, vec![], vec![], "NoDefaultJobClass"),
        ("two global defaults", None, vec![], vec![default("a"), default("b")], "AmbiguousDefaultJobClass"),
        ("two global defaults do not matter to an explicit choice", Some("a"), vec![], vec![default("a"), default("b")], "a"),
        ("a chosen class that is going is still the choice", Some("a"), vec![], vec![terminating(class("a")), default("c")], "a"),
        ("a going default still counts: nothing is guessed", None, vec![], vec![terminating(default("a")), default("b")], "AmbiguousDefaultJobClass"),
        ("a controller of our domain that nobody knows", Some("a"), vec![], vec![of_controller("a", "execution.ayatori.ddupan.top/nomad"), default("c")], "UnsupportedController"),
        ("a controller of another domain is theirs", Some("a"), vec![], vec![of_controller("a", "example.com/other")], "a"),
        ("a domain that only ends like ours is another", Some("a"), vec![], vec![of_controller("a", "x.execution.ayatori.ddupan.top/kubernetes")], "a"),
    ] {
        assert_eq!(chosen(named, &namespace, &classes), expected, "{name}");
    }
}

#[test]
#[rustfmt::skip] // one row, one line
fn only_the_exact_value_true_makes_a_global_default() {
    for (key, value, counts) in [
        (IS_DEFAULT_CLASS, "true", true),
        (IS_DEFAULT_CLASS, "True", false),
        (IS_DEFAULT_CLASS, "TRUE", false),
        (IS_DEFAULT_CLASS, "1", false),
        (IS_DEFAULT_CLASS, "yes", false),
        (IS_DEFAULT_CLASS, " true", false),
        (IS_DEFAULT_CLASS, "true\n", false),
        (IS_DEFAULT_CLASS, "", false),
        ("ayatori.ddupan.top/is-default-job-class", "true", false),
    ] {
        let class = annotated(class("a"), key, value);
        assert_eq!(ownership::is_global_default(&class), counts, "{key}={value:?}");
        let expected = if counts { "a" } else { "NoDefaultJobClass" };
        assert_eq!(chosen(None, &[], &[class]), expected, "{key}={value:?}");
    }
}

#[test]
fn the_messages_name_the_object_and_the_fix() {
    let message = |selection: Selection<'_>| match selection {
        Selection::Nothing(Orphanhood::NoClass(why) | Orphanhood::UnknownController(why)) => why.message,
        Selection::Chosen(_) => unreachable!("nothing is chosen"),
    };
    let mut unnamed = job();
    unnamed.spec.job_class_name = None;
    let two = [default("b"), default("a")];
    let ambiguous = message(ownership::select(&unnamed, &map([]), &two));
    assert!(ambiguous.contains("a, b"), "{ambiguous}");
    let missing = message(ownership::select(&job(), &map([]), &two));
    assert!(
        missing.contains("\"rootless\"") && missing.contains("spec.jobClassName"),
        "{missing}"
    );
}

#[test]
#[rustfmt::skip] // one row, one line
fn a_job_belongs_to_the_controller_that_accepted_it_else_to_that_of_its_class() {
    let rootless = class("rootless");
    let recreated = {
        let mut class = class("rootless");
        class.metadata.uid = Some("another-uid".to_owned());
        class
    };
    let microvm = of_controller("rootless", OPENSANDBOX_CONTROLLER);
    let foreign = of_controller("rootless", "example.com/other");
    let nomad = of_controller("rootless", "execution.ayatori.ddupan.top/nomad");
    let unaccepted = {
        let not = condition("Accepted", "False", "InvalidParametersReference");
        with_condition(class("rootless"), not)
    };
    for (name, job, classes, expected) in [
        ("ours by its class", job(), vec![&rootless], "owned, class seen"),
        ("ours, though the class is not accepted", job(), vec![&unaccepted], "owned, class seen"),
        ("another adapter's", job(), vec![&microvm], "foreign"),
        ("somebody else's", job(), vec![&foreign], "foreign"),
        ("nobody's: the class is missing", job(), vec![], "unowned"),
        ("nobody's: nobody knows the controller", job(), vec![&nomad], "unowned"),
        ("accepted by us", accepted(), vec![&rootless], "owned, class seen"),
        ("accepted by us, the class gone", accepted(), vec![], "owned, class not seen"),
        ("accepted by us, the class recreated: it is another one", accepted(), vec![&recreated], "owned, class not seen"),
    ] {
        let classes: Vec<JobClass> = classes.into_iter().cloned().collect();
        let selection = ownership::select(&job, &Default::default(), &classes);
        let actual = match ownership::of_job(&job, KUBERNETES_CONTROLLER, &selection, &classes) {
            Ownership::Owned(owned) if owned.class().is_some() => "owned, class seen",
            Ownership::Owned(_) => "owned, class not seen",
            Ownership::Unowned(_) => "unowned",
            Ownership::Foreign => "foreign",
        };
        assert_eq!(actual, expected, "{name}");
    }
}

#[test]
fn a_job_that_another_adapter_accepted_is_none_of_our_business_whatever_its_class_says_now() {
    let mut theirs = accepted();
    let resolved = theirs
        .status
        .as_mut()
        .unwrap()
        .resolved_job_class
        .as_mut()
        .unwrap();
    resolved.controller_name = OPENSANDBOX_CONTROLLER.to_owned();
    let ours_now = class("rootless");
    let selection = Selection::Chosen(&ours_now);
    let ownership = ownership::of_job(&theirs, KUBERNETES_CONTROLLER, &selection, [&ours_now]);
    assert!(matches!(ownership, Ownership::Foreign));
}
