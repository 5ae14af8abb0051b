//! What this project decides by itself and Kubernetes decides too is decided alike: quantities, label selectors, and
//! references to variables. Thousands of made-up inputs are put to `e2e/cluster/differential`, which asks Kubernetes' own
//! code. Every run makes up others; it prints its seed, and `AYATORI_TEST_SEED` repeats it.
//!
//! Needs no cluster. `AYATORI_DIFFERENTIAL` names the program, which `cargo xtask test` builds.
//!
//! What is meant to differ stands in [`Meant`], and in `docs/reference/proof.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, ensure};
use ayatori_controller::references::Data;
use ayatori_core::admission;
use ayatori_core::job::{EnvFromSource, EnvVar, EnvVarSource, Job, JobSpec, KeySelector, ObjectSelector};
use ayatori_core::job_class::{JobClass, JobClassSpec};
use ayatori_core::quantity::{ParseQuantityError, Quantity};
use ayatori_opensandbox_adapter::environment::Environment;
use fastrand::Rng;
use secrecy::ExposeSecret;
use serde::Deserialize;
use serde_json::{Value, json};

/// Inputs of each kind, and many more when asked for all.
const COUNT: usize = 10_000;
const ALL: usize = 100_000;

/// What Linux gives a process in one string at most.
const LONGEST: usize = 128 * 1024;

/// Where Kubernetes says something else, and is meant to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Meant {
    /// Go takes a text without any digit for zero (`Gi`). Here it is an error.
    NoNumber,
    /// Go lets an exponent beyond 32 bits begin again from the other end. Here it is an error.
    ExponentTooLarge,
    /// Go leaves out the suffix of what is more than `E` can carry, and prints another number.
    BeyondTheLargestSuffix,
    /// As an integer, Go makes of some numbers below zero another one: of `-9Pi` -7493989778, of `-0.0001Ki` 1. Here they
    /// are rounded away from zero like all others.
    IntegerBelowZero,
    /// An empty selector selects everything in Go, and here nothing: it may be a typing error.
    EmptySelector,
    /// What no process could be given is refused here before it is built.
    TooLong,
}

/// What Kubernetes says.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
struct Answer {
    #[serde(default)]
    error: String,
    #[serde(default)]
    canonical: String,
    sign: i32,
    value: i64,
    millis: i64,
    order: i32,
    matches: bool,
    #[serde(default)]
    variables: BTreeMap<String, String>,
    #[serde(default)]
    words: Vec<String>,
}

#[test]
fn a_quantity_means_what_it_means_to_kubernetes() -> anyhow::Result<()> {
    let mut rng = seeded()?;
    let texts: Vec<_> = (0..count()).map(|_| quantity(&mut rng)).collect();
    let answers = ask(texts.iter().map(|text| json!({"quantity": text})))?;
    let mut meant = BTreeSet::new();
    for (text, theirs) in texts.iter().zip(&answers) {
        let differs = differs_in_value(text, theirs);
        meant.extend(differs.with_context(|| format!("{text:?}: Kubernetes says {theirs:?}"))?);
    }
    ensure!(meant.len() == 4, "made-up inputs show no more than {meant:?}");

    let numbers: Vec<_> = texts
        .iter()
        .filter_map(|text| Some((text, text.parse::<Quantity>().ok()?)))
        .collect();
    ensure!(numbers.len() * 2 > texts.len(), "most inputs mean nothing");
    let pairs: Vec<_> = (0..count())
        .filter_map(|_| Some((rng.choice(&numbers)?, rng.choice(&numbers)?)))
        .collect();
    let answers = ask(pairs
        .iter()
        .map(|(one, other)| json!({"compare": [one.0, other.0]})))?;
    for ((one, other), theirs) in pairs.into_iter().zip(&answers) {
        let ours = one.1.cmp(&other.1) as i32;
        ensure!(theirs.error.is_empty(), "{one:?} and {other:?}: {theirs:?}");
        ensure!(
            ours == theirs.order,
            "{one:?} and {other:?}: {ours}, and not {theirs:?}"
        );
    }
    Ok(())
}

/// Fails unless what differs is meant to.
fn differs_in_value(text: &str, theirs: &Answer) -> anyhow::Result<Vec<Meant>> {
    let mut meant = Vec::new();
    let ours = match text.parse::<Quantity>() {
        Ok(ours) => ours,
        Err(error) => {
            match error {
                _ if !theirs.error.is_empty() => {}
                ParseQuantityError::NoNumber if theirs.canonical == "0" => meant.push(Meant::NoNumber),
                ParseQuantityError::ExponentTooLarge => meant.push(Meant::ExponentTooLarge),
                ParseQuantityError::NoNumber | ParseQuantityError::UnknownSuffix => return Err(error.into()),
            }
            return Ok(meant);
        }
    };
    ensure!(theirs.error.is_empty(), "here it is a quantity");

    let canonical = ours.canonical();
    if canonical != theirs.canonical {
        let thousands = canonical.strip_suffix('E').context(canonical.clone())?;
        let shown = thousands.trim_end_matches("000");
        let dropped = shown != thousands && shown == theirs.canonical;
        ensure!(dropped, "here it is {canonical}");
        meant.push(Meant::BeyondTheLargestSuffix);
    }

    let sign = i32::from(!ours.is_zero()) * if ours.is_negative() { -1 } else { 1 };
    ensure!(sign == theirs.sign, "here its sign is {sign}");
    for (ours_here, theirs_there) in [
        (ours.to_bytes_rounded_up(), theirs.value),
        (ours.to_millis_rounded_up(), theirs.millis),
    ] {
        // Beyond 64 bits Go's number is another one, and here there is none.
        let Some(number) = ours_here.filter(|number| *number != theirs_there) else {
            continue;
        };
        ensure!(ours.is_negative(), "here it is {number} as an integer");
        meant.push(Meant::IntegerBelowZero);
    }
    Ok(meant)
}

#[test]
fn a_selector_selects_what_it_selects_for_kubernetes() -> anyhow::Result<()> {
    let mut rng = seeded()?;
    let cases: Vec<_> = (0..count())
        .map(|_| (selector(&mut rng), labels(&mut rng)))
        .collect();
    let questions = cases
        .iter()
        .map(|(selector, labels)| json!({"selector": selector, "labels": labels}));
    let answers = ask(questions)?;
    let (mut selected, mut refused, mut meant) = (0, 0, BTreeSet::new());
    for ((selector, labels), theirs) in cases.iter().zip(&answers) {
        let spec = JobClassSpec {
            allowed_namespaces: Some(serde_json::from_value(selector.clone())?),
            ..JobClassSpec::default()
        };
        let ours = admission::allows(&JobClass::new("class", spec), labels);
        if is_empty(selector) {
            ensure!(
                ours == Ok(false) && theirs.matches,
                "{selector}: {ours:?}, {theirs:?}"
            );
            meant.insert(Meant::EmptySelector);
            continue;
        }
        let same = match &ours {
            Ok(ours) => theirs.error.is_empty() && *ours == theirs.matches,
            Err(_) => !theirs.error.is_empty(),
        };
        ensure!(same, "{selector} and {labels:?}: {ours:?}, and not {theirs:?}");
        selected += usize::from(ours == Ok(true));
        refused += usize::from(ours.is_err());
    }
    let enough = cases.len() / 50;
    ensure!(
        selected > enough && refused > enough && meant.len() == 1,
        "made-up inputs are too much alike"
    );
    Ok(())
}

fn is_empty(selector: &Value) -> bool {
    let said = |field| selector.get(field).map(Value::to_string).unwrap_or_default();
    matches!(said("matchLabels").as_str(), "" | "{}")
        && matches!(said("matchExpressions").as_str(), "" | "[]")
}

/// A container's environment, in the words of a question.
struct Asked {
    imported: Vec<(String, String)>,
    /// Each with its value, or with one that is taken from elsewhere.
    defined: Vec<(String, String, Option<String>)>,
    words: Vec<String>,
}

#[test]
fn references_to_variables_become_what_the_kubelet_makes_of_them() -> anyhow::Result<()> {
    let mut rng = seeded()?;
    let cases: Vec<_> = (0..count()).map(|_| environment(&mut rng)).collect();
    let answers = ask(cases.iter().map(Asked::question))?;
    let (mut changed, mut meant) = (0, BTreeSet::new());
    for (asked, theirs) in cases.iter().zip(&answers) {
        let (job, data) = asked.job();
        let ours = match Environment::of(&job, &data) {
            Ok(ours) => ours,
            Err(why) => {
                let texts = || theirs.variables.values().chain(&theirs.words);
                let too_long = texts().any(|text| text.len() + 2 >= LONGEST)
                    || texts().map(String::len).sum::<usize>() > LONGEST;
                ensure!(too_long, "{}: {}", asked.question(), why.message);
                meant.insert(Meant::TooLong);
                continue;
            }
        };
        let variables: BTreeMap<_, _> = ours
            .variables
            .iter()
            .map(|(name, value)| (name.clone(), value.expose_secret().to_owned()))
            .collect();
        let words: Vec<_> = ours
            .command
            .iter()
            .map(|word| word.expose_secret().to_owned())
            .collect();
        ensure!(
            variables == theirs.variables && words == theirs.words,
            "{}: {variables:?}, {words:?}, and not {theirs:?}",
            asked.question()
        );
        changed += usize::from(words != asked.words);
    }
    ensure!(changed * 2 > cases.len(), "next to nothing is expanded");
    // Not every run makes up one that is too long.
    ensure!(meant.is_subset(&[Meant::TooLong].into()));
    Ok(())
}

impl Asked {
    fn question(&self) -> Value {
        let imported: Vec<_> = self
            .imported
            .iter()
            .map(|(name, value)| json!({"name": name, "value": value}))
            .collect();
        let defined: Vec<_> = self
            .defined
            .iter()
            .map(|(name, value, taken)| json!({"name": name, "value": value, "taken": taken}))
            .collect();
        json!({"env": {"imported": imported, "defined": defined, "words": self.words}})
    }

    fn job(&self) -> (Job, Data) {
        let mut data = Data::default();
        let mut spec = JobSpec::default();
        for (index, (name, value)) in self.imported.iter().enumerate() {
            let object = format!("imported-{index}");
            data.config_maps
                .insert(object.clone(), [(name.clone(), value.clone())].into());
            spec.env_from.push(EnvFromSource {
                config_map_ref: Some(ObjectSelector {
                    name: object,
                    optional: None,
                }),
                ..EnvFromSource::default()
            });
        }
        for (index, (name, value, taken)) in self.defined.iter().enumerate() {
            let value_from = taken.as_ref().map(|taken| {
                let key = format!("key-{index}");
                data.config_maps
                    .entry("taken".to_owned())
                    .or_default()
                    .insert(key.clone(), taken.clone());
                EnvVarSource {
                    config_map_key_ref: Some(KeySelector {
                        name: "taken".to_owned(),
                        key,
                        optional: None,
                    }),
                    ..EnvVarSource::default()
                }
            });
            spec.env.push(EnvVar {
                name: name.clone(),
                value: value_from.is_none().then(|| value.clone()),
                value_from,
            });
        }
        let mut words = self.words.iter().cloned();
        spec.command = words.next().into_iter().collect();
        spec.args = words.collect();
        (Job::new("job", spec), data)
    }
}

fn count() -> usize {
    match std::env::var_os("AYATORI_TEST_ALL") {
        Some(_) => ALL,
        None => COUNT,
    }
}

/// The seed of this run is told, so that it can be had again.
fn seeded() -> anyhow::Result<Rng> {
    let seed = match std::env::var("AYATORI_TEST_SEED") {
        Ok(seed) => seed.parse().context("AYATORI_TEST_SEED is no number")?,
        Err(_) => fastrand::u64(..),
    };
    println!("AYATORI_TEST_SEED={seed}");
    Ok(Rng::with_seed(seed))
}

fn one_of<'a>(rng: &mut Rng, choices: &[&'a str]) -> &'a str {
    rng.choice(choices).copied().unwrap_or_default()
}

/// At most `n` of these, one after the other.
fn some_of(rng: &mut Rng, parts: &[&str], n: usize) -> String {
    (0..rng.usize(..=n)).map(|_| one_of(rng, parts)).collect()
}

/// Whether something happens that happens once in `n` times.
fn once_in(rng: &mut Rng, n: u32) -> bool {
    rng.u32(..n) == 0
}

/// Mostly a quantity, and sometimes nearly one.
fn quantity(rng: &mut Rng) -> String {
    const DIGITS: [&str; 16] = [
        "0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "0", "00", "000", "999", "1024", "512",
    ];
    const SUFFIXES: [&str; 19] = [
        "", "", "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e0",
    ];
    // Near the ends of what 64 bits hold, in each unit.
    const EDGES: [&str; 12] = [
        "9223372036854775807",
        "9223372036854775808",
        "9223372036854775809",
        "18446744073709551615",
        "18446744073709551616",
        "9223372036854775.807",
        "9007199254740992",
        "8388607.999999999",
        "0.0000000001",
        "0.9999999999",
        "999999999.9999999999",
        "340282366920938463463374607431768211456",
    ];
    const NEARLY: [&str; 34] = [
        "K",
        "KI",
        "ki",
        "mi",
        "Zi",
        "Y",
        "Kib",
        "iK",
        "i",
        "N",
        "U",
        "µ",
        "μ",
        "nn",
        "mm",
        "kM",
        "Gi3",
        "m3",
        "e",
        "E+",
        "e-",
        "e1.5",
        "ee1",
        "e1e1",
        "e1Ki",
        "e٣",
        "e4294967296",
        "e-4294967299",
        "e99999999999999999999",
        " ",
        "\u{a0}",
        "\n",
        "_",
        "٣",
    ];
    const SIGNS: [&str; 9] = ["", "", "", "", "-", "-", "-", "+", "+"];
    const WRONG_SIGNS: [&str; 6] = ["--", "+-", " ", "−", "- ", "0x"];
    let signs: &[&str] = if once_in(rng, 40) { &WRONG_SIGNS } else { &SIGNS };
    let sign = one_of(rng, signs);
    let number = if once_in(rng, 12) {
        one_of(rng, &EDGES).to_owned()
    } else {
        let long = if once_in(rng, 10) { 24 } else { 4 };
        let whole = some_of(rng, &DIGITS, long);
        match rng.u8(..6) {
            0 | 1 => format!("{whole}.{}", some_of(rng, &DIGITS, long)),
            2 if once_in(rng, 8) => format!("{whole}..{whole}"),
            _ => whole,
        }
    };
    let suffix = match rng.u8(..20) {
        0 => one_of(rng, &NEARLY).to_owned(),
        // As far as Go itself comes within a moment.
        1..=4 => {
            let far = if once_in(rng, 8) { 3_000 } else { 24 };
            let (e, sign) = (one_of(rng, &["e", "E"]), one_of(rng, &["", "+", "-", "0", "-00"]));
            format!("{e}{sign}{}", rng.u32(..far))
        }
        _ => one_of(rng, &SUFFIXES).to_owned(),
    };
    format!("{sign}{number}{suffix}")
}

const KEYS: [&str; 5] = ["ci", "team", "a.example/b", "x", "CI"];
const VALUES: [&str; 5] = ["", "true", "a", "b-1", "True"];

fn labels(rng: &mut Rng) -> BTreeMap<String, String> {
    KEYS.into_iter()
        .filter(|_| rng.bool())
        .collect::<Vec<_>>()
        .into_iter()
        .map(|key| (key.to_owned(), one_of(rng, &VALUES).to_owned()))
        .collect()
}

/// Of keys and values that labels can have, as the definition of classes sees to; of any operators and numbers of values.
fn selector(rng: &mut Rng) -> Value {
    const OPERATORS: [&str; 4] = ["In", "NotIn", "Exists", "DoesNotExist"];
    const WRONG_OPERATORS: [&str; 6] = ["", "in", "NOTIN", "Gt", "Equals", "="];
    let expressions: Vec<_> = (0..rng.usize(..3))
        .map(|_| {
            let wrong = once_in(rng, 10);
            let operators: &[&str] = if wrong && rng.bool() {
                &WRONG_OPERATORS
            } else {
                &OPERATORS
            };
            let operator = one_of(rng, operators);
            let count = match operator.ends_with("In") != wrong {
                true => rng.usize(1..4),
                false => 0,
            };
            let values: Vec<_> = (0..count).map(|_| one_of(rng, &VALUES)).collect();
            let mut expression = json!({"key": one_of(rng, &KEYS), "operator": operator});
            if let Some(fields) = expression.as_object_mut().filter(|_| count > 0 || rng.bool()) {
                fields.insert("values".to_owned(), json!(values));
            }
            expression
        })
        .collect();
    let wanted = if rng.bool() { labels(rng) } else { BTreeMap::new() };
    let mut selector = json!({});
    if let Some(fields) = selector.as_object_mut() {
        if !wanted.is_empty() || rng.bool() {
            fields.insert("matchLabels".to_owned(), json!(wanted));
        }
        if !expressions.is_empty() || rng.bool() {
            fields.insert("matchExpressions".to_owned(), json!(expressions));
        }
    }
    selector
}

/// With variables that refer to earlier ones, to later ones, to themselves and to none, and are defined twice.
fn environment(rng: &mut Rng) -> Asked {
    const NAMES: [&str; 9] = ["A", "B", "C", "A_B", "a.b", "x-1", " ", "$", "(A"];
    let imported = (0..rng.usize(..3))
        .map(|_| (one_of(rng, &NAMES[..6]).to_owned(), template(rng)))
        .collect();
    let defined = (0..rng.usize(..7))
        .map(|_| {
            let taken = once_in(rng, 5).then(|| template(rng));
            (one_of(rng, &NAMES).to_owned(), template(rng), taken)
        })
        .map(|(name, value, taken)| match taken {
            Some(_) => (name, String::new(), taken),
            None => (name, value, None),
        })
        .collect();
    Asked {
        imported,
        defined,
        words: (0..rng.usize(1..4)).map(|_| template(rng)).collect(),
    }
}

/// Text with references to variables, and with what looks like some.
fn template(rng: &mut Rng) -> String {
    const PARTS: [&str; 40] = [
        "$(A)",
        "$(B)",
        "$(C)",
        "$(A_B)",
        "$(a.b)",
        "$(x-1)",
        "$( )",
        "$($)",
        "$((A)",
        "$(NONE)",
        "$$",
        "$",
        "(",
        ")",
        "$(",
        "A)",
        "$$(A)",
        "$$$(A)",
        "$$$$(A)",
        "$$$",
        "$()",
        "$( A)",
        "$(A )",
        "$(A",
        "$($(A))",
        "$(A$(B)C)",
        "$(A$$B)",
        "$A",
        "${A}",
        "$\\(A)",
        "\\$(A)",
        "$\n(A)",
        "$(\n)",
        "$é(A)",
        "$漢",
        "$(é)",
        "é$",
        " ",
        "text",
        "\u{200b}",
    ];
    some_of(rng, &PARTS, 5)
}

/// What the tests with made-up inputs hold quantities against, without Kubernetes at hand.
#[test]
fn the_table_of_quantities_is_what_kubernetes_says() -> anyhow::Result<()> {
    let read = |name| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../fuzz/quantities")
            .join(name);
        std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    };
    let answers = answers_to(read("questions.jsonl")?)?;
    ensure!(
        answers == read("answers.jsonl")?,
        "fuzz/README.md tells how to make it anew"
    );
    Ok(())
}

/// Puts questions to Kubernetes' own code.
fn ask(questions: impl Iterator<Item = Value>) -> anyhow::Result<Vec<Answer>> {
    let questions: String = questions.map(|question| format!("{question}\n")).collect();
    let count = questions.lines().count();
    let answers = answers_to(questions)?
        .lines()
        .map(serde_json::from_str)
        .collect::<Result<Vec<Answer>, _>>()?;
    ensure!(
        answers.len() == count,
        "{} answers to {count} questions",
        answers.len()
    );
    Ok(answers)
}

/// A question on each line, and an answer to it.
fn answers_to(questions: String) -> anyhow::Result<String> {
    let program = std::env::var_os("AYATORI_DIFFERENTIAL").context(
        "AYATORI_DIFFERENTIAL does not name the program that asks Kubernetes' code: run `cargo xtask test`, or build \
         ./differential in e2e/cluster with Go",
    )?;
    let mut asked = Command::new(&program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot run {}", program.display()))?;
    let mut input = asked.stdin.take().context("no way to ask")?;
    // It answers while it is asked.
    let asking = std::thread::spawn(move || input.write_all(questions.as_bytes()));
    let output = asked.wait_with_output()?;
    asking.join().map_err(|_| anyhow::anyhow!("asking failed"))??;
    ensure!(output.status.success(), "e2e/cluster/differential failed");
    Ok(String::from_utf8(output.stdout)?)
}
