//! CPU and memory: what a Job asks for, what a class fills in and allows, and what is executed.
//!
//! The rules, in this order:
//!
//! 1. What a Job leaves out is filled in from the class's defaults, key by key.
//! 2. Everything is then held against the class's minimum and maximum. No limit at all is above any maximum, no
//!    request at all is below any minimum, and a limit of zero is out of range, because backends take it for no
//!    limit.
//! 3. No request may be above its limit. A default is not bent to fit: where a Job's limit is below the class's
//!    default request, the Job is refused and told so.
//!
//! Quantities are compared as numbers and kept as they were written. A class whose own numbers contradict each
//! other is refused by the API server and by [`ResourcePolicy::validate`], both by the same list of laws.

use std::fmt;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use kube::core::Rule;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

use crate::quantity::{ParseQuantityError, Quantity};

/// An amount of CPU and of memory, each optional.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResourceQuantities {
    /// CPU in cores, as a Kubernetes quantity: `2` is two cores, `500m` half a core. Write a fraction as `500m`
    /// or in quotes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity_schema")]
    pub cpu: Option<ApiQuantity>,

    /// Memory in bytes, as a Kubernetes quantity: `512Mi` and `1.5Gi` count in powers of 1024, `512M` in powers
    /// of 1000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "quantity_schema")]
    pub memory: Option<ApiQuantity>,
}

/// CPU and memory that an execution is given.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResourceRequirements {
    /// What is set aside for the execution. No request may be above its limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ResourceQuantities")]
    pub requests: Option<ResourceQuantities>,

    /// The most the execution may use. Has to be above zero; without a limit there is none, which no class with
    /// a maximum allows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ResourceQuantities")]
    pub limits: Option<ResourceQuantities>,
}

/// What a class fills in and allows. Its numbers must agree with each other, else the class is refused or reports
/// `Accepted=False/InvalidResourcePolicy`. A change affects only Jobs that are not accepted yet.
#[derive(JsonSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[schemars(extend("x-kubernetes-validations" = rules()))]
pub struct ResourcePolicy {
    /// Taken for each quantity that a Job leaves out, one by one. A default is never changed to fit what the Job
    /// did set: a Job whose limit is below the default request is refused with InvalidResources.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ResourceRequirements")]
    pub defaults: Option<ResourceRequirements>,

    /// The least a Job may ask for, defaults filled in. A Job without a request is below any minimum request.
    /// Jobs below it are refused with ResourcesOutOfRange.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ResourceRequirements")]
    pub minimum: Option<ResourceRequirements>,

    /// The most a Job may ask for, defaults filled in. A Job without a limit is above any maximum limit. Jobs
    /// above it are refused with ResourcesOutOfRange.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "ResourceRequirements")]
    pub maximum: Option<ResourceRequirements>,
}

/// Resources that [`resolve`] found complete, in range and free of contradiction, as they were written.
#[derive(Clone, Debug, PartialEq)]
pub struct Effective(ResourceRequirements);

impl Effective {
    /// The resources, as they go into the Job's status.
    pub fn requirements(&self) -> &ResourceRequirements {
        &self.0
    }
}

impl From<Effective> for ResourceRequirements {
    fn from(effective: Effective) -> Self {
        effective.0
    }
}

/// The least memory that the kernel hands out, in bytes. What is limited to less is a slip of the unit.
const PAGE: i64 = 4096;

/// Why a class does not take a Job's resources; it displays every violation with its fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Something is not a quantity, or a request is above its limit.
    #[error("{0}")]
    InvalidResources(String),
    /// Something is outside what the class allows.
    #[error("{0}")]
    ResourcesOutOfRange(String),
}

impl Refusal {
    /// The reason for `Accepted=False`.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::InvalidResources(_) => "InvalidResources",
            Self::ResourcesOutOfRange(_) => "ResourcesOutOfRange",
        }
    }
}

/// Why a class's resource policy is not accepted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyProblem {
    /// Something is not a quantity.
    #[error("{0}")]
    NotAQuantity(NotAQuantity),
    /// A quantity is below zero.
    #[error("spec.resources.{field} is {value}; it must not be negative")]
    Negative {
        /// Path below `spec.resources`.
        field: String,
        /// As written.
        value: Quantity,
    },
    /// A limit is not above zero, so no Job could run with it.
    #[error("spec.resources.{field} is {value}; a limit must be above zero, leave it out for no limit")]
    NotPositive {
        /// Path below `spec.resources`.
        field: String,
        /// As written.
        value: Quantity,
    },
    /// A quantity is above another that it must not exceed.
    #[error(
        "spec.resources.{lower} {lower_value} is above spec.resources.{upper} {upper_value}; \
         lower the one or raise the other"
    )]
    Above {
        /// Path below `spec.resources` of what should be the smaller.
        lower: String,
        /// As written.
        lower_value: Quantity,
        /// Path below `spec.resources` of what should be the greater.
        upper: String,
        /// As written.
        upper_value: Quantity,
    },
}

impl PolicyProblem {
    /// The reason for `Accepted=False` of the class.
    pub const REASON: &'static str = "InvalidResourcePolicy";
}

/// A text where a quantity should be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{owner}spec.resources.{field} {written:?} is not a quantity: {error}")]
pub struct NotAQuantity {
    /// Whose field it is, in words; empty where that is plain.
    owner: &'static str,
    field: String,
    written: String,
    error: ParseQuantityError,
}

impl ResourcePolicy {
    /// Whether the policy's numbers agree with each other; else every problem there is.
    pub fn validate(&self) -> Result<(), Vec<PolicyProblem>> {
        let unreadable = Place::all().filter_map(|place| self.get(place, "").err());
        let problems: Vec<_> = unreadable
            .map(PolicyProblem::NotAQuantity)
            .chain(Law::all().into_iter().filter_map(|law| law.broken_by(self)))
            .collect();
        if problems.is_empty() {
            Ok(())
        } else {
            Err(problems)
        }
    }

    fn get(&self, place: Place, owner: &'static str) -> Result<Option<Quantity>, NotAQuantity> {
        let requirements = match place.part {
            Part::Defaults => &self.defaults,
            Part::Minimum => &self.minimum,
            Part::Maximum => &self.maximum,
        };
        let quantity = requirements.as_ref().and_then(|r| r.get(place.key));
        quantity.map(|q| parse(q, owner, place)).transpose()
    }
}

impl ResourceRequirements {
    fn get(&self, key: Key) -> Option<&ApiQuantity> {
        let quantities = match key.side {
            Side::Requests => self.requests.as_ref(),
            Side::Limits => self.limits.as_ref(),
        }?;
        match key.resource {
            Resource::Cpu => quantities.cpu.as_ref(),
            Resource::Memory => quantities.memory.as_ref(),
        }
    }
}

fn parse(
    quantity: &ApiQuantity,
    owner: &'static str,
    field: impl ToString,
) -> Result<Quantity, NotAQuantity> {
    Quantity::try_from(quantity).map_err(|error| NotAQuantity {
        owner,
        field: field.to_string(),
        written: quantity.0.clone(),
        error,
    })
}

// ---- Resolving a Job's resources ----

/// What a Job is executed with under a class, or why the class does not take it.
pub fn resolve(
    requested: &ResourceRequirements,
    policy: Option<&ResourcePolicy>,
) -> Result<Effective, Refusal> {
    let unrestricted = ResourcePolicy::default();
    let policy = policy.unwrap_or(&unrestricted);
    let amounts =
        [Resource::Cpu, Resource::Memory].map(|resource| Amounts::read(resource, requested, policy));
    let [Ok(cpu), Ok(memory)] = amounts else {
        let unreadable = amounts.into_iter().filter_map(Result::err);
        return Err(Refusal::InvalidResources(sentence(unreadable)));
    };
    let amounts = [&cpu, &memory];
    let out_of_range = sentence(amounts.iter().flat_map(|a| a.out_of_range()));
    if !out_of_range.is_empty() {
        return Err(Refusal::ResourcesOutOfRange(out_of_range));
    }
    let contradictions = sentence(amounts.iter().filter_map(|a| a.contradiction()));
    if !contradictions.is_empty() {
        return Err(Refusal::InvalidResources(contradictions));
    }
    let side = |cpu: &Amount, memory: &Amount| {
        let quantities = ResourceQuantities {
            cpu: cpu.written(),
            memory: memory.written(),
        };
        (quantities != ResourceQuantities::default()).then_some(quantities)
    };
    Ok(Effective(ResourceRequirements {
        requests: side(&cpu.request, &memory.request),
        limits: side(&cpu.limit, &memory.limit),
    }))
}

fn sentence(parts: impl Iterator<Item = impl ToString>) -> String {
    parts.map(|part| part.to_string()).collect::<Vec<_>>().join("; ")
}

/// Request and limit of one resource.
struct Amounts {
    request: Amount,
    limit: Amount,
}

impl Amounts {
    fn read(
        resource: Resource,
        requested: &ResourceRequirements,
        policy: &ResourcePolicy,
    ) -> Result<Self, NotAQuantity> {
        let read = |side| Amount::read(Key { side, resource }, requested, policy);
        Ok(Self {
            request: read(Side::Requests)?,
            limit: read(Side::Limits)?,
        })
    }

    fn out_of_range(&self) -> impl Iterator<Item = String> {
        [self.request.out_of_range(), self.limit.out_of_range()]
            .into_iter()
            .flatten()
    }

    fn contradiction(&self) -> Option<String> {
        let (request, limit) = (self.request.stated.as_ref()?, self.limit.stated.as_ref()?);
        (request.quantity > limit.quantity)
            .then(|| format!("{request} is above {limit}; set a request that is at most the limit"))
    }
}

/// One quantity of a Job, and what its class says about it.
struct Amount {
    key: Key,
    stated: Option<Stated>,
    minimum: Option<Quantity>,
    maximum: Option<Quantity>,
}

/// A quantity that somebody stated.
struct Stated {
    key: Key,
    quantity: Quantity,
    source: Source,
}

#[derive(Clone, Copy)]
enum Source {
    Job,
    ClassDefault,
}

impl fmt::Display for Stated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let source = match self.source {
            Source::Job => "set by the Job",
            Source::ClassDefault => "the default of the JobClass",
        };
        write!(f, "spec.resources.{} {} ({source})", self.key, self.quantity)
    }
}

impl Amount {
    fn read(
        key: Key,
        requested: &ResourceRequirements,
        policy: &ResourcePolicy,
    ) -> Result<Self, NotAQuantity> {
        let of_class = |part| policy.get(Place { part, key }, "the JobClass's ");
        let own = requested.get(key).map(|q| parse(q, "", key)).transpose()?;
        let (quantity, source) = match own {
            Some(own) => (Some(own), Source::Job),
            None => (of_class(Part::Defaults)?, Source::ClassDefault),
        };
        Ok(Self {
            key,
            stated: quantity.map(|quantity| Stated {
                key,
                quantity,
                source,
            }),
            minimum: of_class(Part::Minimum)?,
            maximum: of_class(Part::Maximum)?,
        })
    }

    fn written(&self) -> Option<ApiQuantity> {
        self.stated
            .as_ref()
            .map(|stated| ApiQuantity::from(&stated.quantity))
    }

    fn out_of_range(&self) -> Option<String> {
        let key = self.key;
        let Some(stated) = &self.stated else {
            return match key.side {
                Side::Requests => self.minimum.as_ref().map(|minimum| {
                    format!(
                        "spec.resources.{key} is not set, so it is below spec.resources.minimum.{key} {minimum} of \
                         the JobClass; set it to {minimum} or more"
                    )
                }),
                Side::Limits => self.maximum.as_ref().map(|maximum| {
                    format!(
                        "spec.resources.{key} is not set, which is no limit and so above \
                         spec.resources.maximum.{key} {maximum} of the JobClass; set it to {maximum} or less"
                    )
                }),
            };
        };
        let quantity = &stated.quantity;
        if quantity.is_negative() {
            return Some(format!("{stated} is negative; set it above zero"));
        }
        if key.side == Side::Limits && quantity.is_zero() {
            return Some(format!(
                "{stated} is zero, which backends take for no limit; set it above zero"
            ));
        }
        if key.side == Side::Limits
            && key.resource == Resource::Memory
            && quantity.to_bytes_rounded_up().is_some_and(|bytes| bytes < PAGE)
        {
            return Some(format!(
                "{stated} is less than one page of memory, 4Ki, in which nothing starts; a number alone is bytes, and m \
                 is thousandths of them: write it with Mi or Gi"
            ));
        }
        if let Some(minimum) = self.minimum.as_ref().filter(|minimum| quantity < minimum) {
            return Some(format!(
                "{stated} is below spec.resources.minimum.{key} {minimum} of the JobClass; set it to {minimum} or more"
            ));
        }
        if let Some(maximum) = self.maximum.as_ref().filter(|maximum| quantity > maximum) {
            return Some(format!(
                "{stated} is above spec.resources.maximum.{key} {maximum} of the JobClass; set it to {maximum} or less"
            ));
        }
        // Kubernetes stores larger numbers, but overflows as soon as it counts with them.
        let countable = match key.resource {
            Resource::Cpu => quantity.to_millis_rounded_up(),
            Resource::Memory => quantity.to_bytes_rounded_up(),
        };
        countable
            .is_none()
            .then(|| format!("{stated} is more than Kubernetes can count; set a smaller one"))
    }
}

// ---- Where a quantity stands ----

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Resource {
    Cpu,
    Memory,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Requests,
    Limits,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    Defaults,
    Minimum,
    Maximum,
}

/// A quantity in a [`ResourceRequirements`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Key {
    side: Side,
    resource: Resource,
}

/// A quantity in a [`ResourcePolicy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    part: Part,
    key: Key,
}

impl Key {
    fn names(self) -> [&'static str; 2] {
        let side = match self.side {
            Side::Requests => "requests",
            Side::Limits => "limits",
        };
        let resource = match self.resource {
            Resource::Cpu => "cpu",
            Resource::Memory => "memory",
        };
        [side, resource]
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join("."))
    }
}

impl Place {
    fn all() -> impl Iterator<Item = Self> {
        let parts = [Part::Defaults, Part::Minimum, Part::Maximum];
        parts.into_iter().flat_map(|part| {
            [Resource::Cpu, Resource::Memory]
                .into_iter()
                .flat_map(move |resource| {
                    [Side::Requests, Side::Limits].map(|side| Self {
                        part,
                        key: Key { side, resource },
                    })
                })
        })
    }

    fn names(self) -> [&'static str; 3] {
        let part = match self.part {
            Part::Defaults => "defaults",
            Part::Minimum => "minimum",
            Part::Maximum => "maximum",
        };
        let [side, resource] = self.key.names();
        [part, side, resource]
    }

    /// CEL for the quantity, where it is known to be there.
    fn cel(self) -> String {
        format!("quantity(string(self.{self}))")
    }

    /// CEL for whether the quantity is there. What is no quantity has a message of its own. (The shorter
    /// `self.?maximum.?limits` is refused: the API server estimates its cost as a hundred times the budget.)
    fn cel_is_given(self) -> String {
        let [part, side, resource] = self.names();
        format!(
            "has(self.{part}) && has(self.{part}.{side}) && has(self.{part}.{side}.{resource}) && \
             isQuantity(string(self.{self}))"
        )
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.names().join("."))
    }
}

// ---- What makes a policy consistent ----

/// A rule about the numbers of a policy, which the API server checks in CEL and we in Rust.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Law {
    NotNegative(Place),
    Positive(Place),
    /// The first is at most the second, where both are there.
    AtMost(Place, Place),
}

impl Law {
    /// Besides the obvious, a default or a minimum that no Job could have together with the rest of the policy is
    /// taken for a mistake.
    fn all() -> Vec<Self> {
        use Part::{Defaults, Maximum, Minimum};
        use Side::{Limits, Requests};
        [Resource::Cpu, Resource::Memory]
            .into_iter()
            .flat_map(|resource| {
                let at = |part, side| Place {
                    part,
                    key: Key { side, resource },
                };
                [
                    Law::NotNegative(at(Defaults, Requests)),
                    Law::Positive(at(Defaults, Limits)),
                    Law::NotNegative(at(Minimum, Requests)),
                    Law::NotNegative(at(Minimum, Limits)),
                    Law::NotNegative(at(Maximum, Requests)),
                    Law::Positive(at(Maximum, Limits)),
                    Law::AtMost(at(Minimum, Requests), at(Maximum, Requests)),
                    Law::AtMost(at(Minimum, Requests), at(Maximum, Limits)),
                    Law::AtMost(at(Minimum, Limits), at(Maximum, Limits)),
                    Law::AtMost(at(Minimum, Requests), at(Defaults, Requests)),
                    Law::AtMost(at(Minimum, Requests), at(Defaults, Limits)),
                    Law::AtMost(at(Minimum, Limits), at(Defaults, Limits)),
                    Law::AtMost(at(Defaults, Requests), at(Defaults, Limits)),
                    Law::AtMost(at(Defaults, Requests), at(Maximum, Requests)),
                    Law::AtMost(at(Defaults, Requests), at(Maximum, Limits)),
                    Law::AtMost(at(Defaults, Limits), at(Maximum, Limits)),
                ]
            })
            .collect()
    }

    fn broken_by(self, policy: &ResourcePolicy) -> Option<PolicyProblem> {
        let get = |place| policy.get(place, "").ok().flatten();
        match self {
            Self::NotNegative(place) => {
                get(place)
                    .filter(Quantity::is_negative)
                    .map(|value| PolicyProblem::Negative {
                        field: place.to_string(),
                        value,
                    })
            }
            Self::Positive(place) => get(place)
                .filter(|value| value.is_negative() || value.is_zero())
                .map(|value| PolicyProblem::NotPositive {
                    field: place.to_string(),
                    value,
                }),
            Self::AtMost(lower, upper) => {
                let (lower_value, upper_value) = (get(lower)?, get(upper)?);
                (lower_value > upper_value).then(|| PolicyProblem::Above {
                    lower: lower.to_string(),
                    lower_value,
                    upper: upper.to_string(),
                    upper_value,
                })
            }
        }
    }

    fn rule(self) -> Rule {
        let (place, rule, message) = match self {
            Self::NotNegative(place) => (
                place,
                format!(
                    "!({}) || !{}.isLessThan(quantity('0'))",
                    place.cel_is_given(),
                    place.cel()
                ),
                format!("{place} must not be negative"),
            ),
            Self::Positive(place) => (
                place,
                format!(
                    "!({}) || {}.isGreaterThan(quantity('0'))",
                    place.cel_is_given(),
                    place.cel()
                ),
                format!("{place} must be above zero: leave it out for no limit"),
            ),
            Self::AtMost(lower, upper) => (
                lower,
                format!(
                    "!({} && {}) || !{}.isGreaterThan({})",
                    lower.cel_is_given(),
                    upper.cel_is_given(),
                    lower.cel(),
                    upper.cel()
                ),
                format!("{lower} must not be above {upper}: lower the one or raise the other"),
            ),
        };
        Rule::new(rule)
            .message(message.as_str())
            .field_path(format!(".{place}"))
    }
}

fn rules() -> Vec<Rule> {
    Law::all().into_iter().map(Law::rule).collect()
}

/// The longest quantity the API server takes, in characters.
const QUANTITY_LENGTH: usize = 64;

/// The API server knows quantities only as an integer or any string.
///
/// The pattern comes first because of what Go's parser does behind `isQuantity`: it takes `Gi` for zero, and
/// `1e-999999999` for minutes of work.
fn quantity_schema(_: &mut SchemaGenerator) -> Schema {
    let pattern = "^[+-]?[.]?[0-9][0-9.]*([A-Za-z]{0,2}|[eE][+-]?[0-9]{1,2})$";
    let rule = Rule::new(format!(
        "string(self).matches('{pattern}') && isQuantity(string(self))"
    ))
    .message("must be a Kubernetes quantity, such as 2, 250m, 0.5, 512Mi, 1.5Gi or 1e3");
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "maxLength": QUANTITY_LENGTH,
        "x-kubernetes-validations": [rule],
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yaml<T: serde::de::DeserializeOwned>(text: &str) -> T {
        serde_yaml::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    fn resolved(job: &str, class: &str) -> Result<ResourceRequirements, Refusal> {
        let policy = yaml(class);
        resolve(&yaml(job), Some(&policy)).map(Into::into)
    }

    /// The Job is refused for this reason, and each of the words is in the message.
    fn assert_refused(job: &str, class: &str, reason: &str, words: &[&str]) {
        let refusal = resolved(job, class).expect_err(job);
        let message = refusal.to_string();
        assert_eq!(refusal.reason(), reason, "{job} under {class}: {message}");
        for word in words {
            assert!(message.contains(word), "{word:?} is not in: {message}");
        }
    }

    const NO_RULES: &str = "{}";
    const DEFAULTS: &str =
        "defaults: {requests: {cpu: 250m, memory: 256Mi}, limits: {cpu: '2', memory: 2Gi}}";
    const MAXIMUM: &str = "maximum: {limits: {cpu: '8', memory: 16Gi}}";

    #[test]
    fn what_a_job_leaves_out_is_filled_in_key_by_key() {
        for (job, class, effective) in [
            ("{}", NO_RULES, "{}"),
            ("limits: {cpu: '1'}", NO_RULES, "limits: {cpu: '1'}"),
            ("requests: {}", NO_RULES, "{}"),
            (
                "{}",
                DEFAULTS,
                "{requests: {cpu: 250m, memory: 256Mi}, limits: {cpu: '2', memory: 2Gi}}",
            ),
            (
                "limits: {memory: 4Gi}",
                DEFAULTS,
                "{requests: {cpu: 250m, memory: 256Mi}, limits: {cpu: '2', memory: 4Gi}}",
            ),
            (
                "requests: {cpu: '1'}",
                DEFAULTS,
                "{requests: {cpu: '1', memory: 256Mi}, limits: {cpu: '2', memory: 2Gi}}",
            ),
            ("{}", "defaults: {limits: {cpu: '2'}}", "limits: {cpu: '2'}"),
        ] {
            assert_eq!(resolved(job, class), Ok(yaml(effective)), "{job} under {class}");
        }
    }

    #[test]
    fn without_a_policy_a_job_gets_what_it_asks_for() {
        let asked: ResourceRequirements = yaml("{requests: {cpu: 1500m}, limits: {cpu: 1.5}}");
        let effective = resolve(&asked, None).expect("equal by value");
        assert_eq!(effective.requirements(), &asked);
    }

    #[test]
    fn effective_quantities_are_kept_as_they_were_written() {
        let job = "{requests: {cpu: '0.1', memory: 1024Mi}, limits: {cpu: '1e0'}}";
        let class = "defaults: {limits: {memory: 5.Gi}}";
        let effective = "{requests: {cpu: '0.1', memory: 1024Mi}, limits: {cpu: '1e0', memory: 5.Gi}}";
        assert_eq!(resolved(job, class), Ok(yaml(effective)));
    }

    #[test]
    fn what_was_resolved_resolves_to_itself() {
        let class = yaml(&format!("{{{DEFAULTS}, {MAXIMUM}}}"));
        let once: ResourceRequirements = resolve(&yaml("limits: {cpu: '3'}"), Some(&class)).unwrap().into();
        assert_eq!(resolve(&once, None).unwrap().requirements(), &once);
        assert_eq!(resolve(&once, Some(&class)).unwrap().requirements(), &once);
    }

    #[test]
    fn numbers_are_compared_by_value_and_a_bound_is_in_range() {
        let memory = "{minimum: {requests: {memory: 1Gi}}, maximum: {limits: {memory: 1Gi}}}";
        for (job, class) in [
            ("{requests: {cpu: 1000m}, limits: {cpu: '1'}}", NO_RULES),
            (
                "{requests: {memory: 1024Mi}, limits: {memory: 1073741824}}",
                memory,
            ),
            ("{requests: {memory: 1Gi}, limits: {memory: 1048576Ki}}", memory),
            ("limits: {cpu: 8000m}", "maximum: {limits: {cpu: 8}}"),
            (
                "limits: {cpu: '8e0'}",
                "{minimum: {limits: {cpu: 8}}, maximum: {limits: {cpu: 8}}}",
            ),
        ] {
            assert!(
                resolved(job, class).is_ok(),
                "{job} under {class}: {:?}",
                resolved(job, class)
            );
        }
    }

    #[test]
    fn a_quantity_outside_minimum_and_maximum_is_out_of_range() {
        let minimum = "minimum: {requests: {cpu: 500m}, limits: {memory: 1Gi}}";
        let class = format!("{{{minimum}, {MAXIMUM}}}");
        let enough = "requests: {cpu: 1}, limits: {cpu: 2, memory: 2Gi}";
        let with = |from: &str, to: &str| format!("{{{}}}", enough.replace(from, to));
        for (job, words) in [
            (
                with("limits: {cpu: 2", "limits: {cpu: 16"),
                [
                    "limits.cpu 16 (set by the Job)",
                    "maximum.limits.cpu 8 of the JobClass",
                ],
            ),
            (
                with("limits: {cpu: 2", "limits: {cpu: 8001m"),
                ["limits.cpu 8001m", "maximum.limits.cpu 8"],
            ),
            (
                with("memory: 2Gi", "memory: 16385Mi"),
                ["limits.memory 16385Mi", "maximum.limits.memory 16Gi"],
            ),
            (
                with("memory: 2Gi", "memory: 1G"),
                [
                    "limits.memory 1G (set by the Job)",
                    "minimum.limits.memory 1Gi of the JobClass",
                ],
            ),
            (
                with("requests: {cpu: 1", "requests: {cpu: 499m"),
                ["requests.cpu 499m", "minimum.requests.cpu 500m"],
            ),
            (
                with("memory: 2Gi", "memory: '1e30'"),
                ["limits.memory 1e30", "maximum.limits.memory 16Gi"],
            ),
        ] {
            assert_refused(&job, &class, "ResourcesOutOfRange", &words);
        }
        assert!(resolved(&with("", ""), &class).is_ok());
    }

    #[test]
    fn no_limit_is_above_any_maximum_but_within_any_minimum() {
        let words = [
            "spec.resources.limits.memory is not set",
            "maximum.limits.memory 16Gi",
        ];
        assert_refused("limits: {cpu: 1}", MAXIMUM, "ResourcesOutOfRange", &words);
        assert!(resolved("{}", "minimum: {limits: {cpu: 1}}").is_ok());
    }

    #[test]
    fn no_request_is_below_any_minimum_but_within_any_maximum() {
        let words = [
            "spec.resources.requests.cpu is not set",
            "minimum.requests.cpu 100m",
        ];
        let minimum = "minimum: {requests: {cpu: 100m}}";
        assert_refused("limits: {cpu: 1}", minimum, "ResourcesOutOfRange", &words);
        assert!(resolved("{}", "maximum: {requests: {cpu: 1}}").is_ok());
    }

    #[test]
    fn a_limit_of_zero_or_less_is_out_of_range_with_and_without_a_maximum() {
        for class in [NO_RULES, DEFAULTS, MAXIMUM] {
            for (limit, fault) in [
                ("0", "is zero"),
                ("0Gi", "is zero"),
                ("-0", "is zero"),
                ("-1", "is negative"),
                ("-1Gi", "is negative"),
                ("-1n", "is negative"),
            ] {
                for (job, field) in [
                    (
                        format!("limits: {{cpu: '{limit}', memory: 1Gi}}"),
                        "spec.resources.limits.cpu",
                    ),
                    (
                        format!("limits: {{cpu: 1, memory: '{limit}'}}"),
                        "spec.resources.limits.memory",
                    ),
                ] {
                    assert_refused(&job, class, "ResourcesOutOfRange", &[field, fault]);
                }
            }
        }
    }

    #[test]
    fn a_memory_limit_below_one_page_is_a_slip_of_the_unit() {
        for limit in ["512m", "1m", "1", "512", "4095", "3.9Ki"] {
            let job = format!("limits: {{cpu: 1, memory: '{limit}'}}");
            let said = format!("spec.resources.limits.memory {limit} (set by the Job) is less than one page");
            for class in [NO_RULES, MAXIMUM] {
                assert_refused(&job, class, "ResourcesOutOfRange", &[&said, "Mi or Gi"]);
            }
        }
        for enough in [
            "limits: {memory: 4Ki}",
            "limits: {memory: 5000000m}",
            "requests: {memory: 512m}",
            "limits: {cpu: 512m}",
        ] {
            assert!(resolved(enough, NO_RULES).is_ok(), "{enough}");
        }
    }

    #[test]
    fn a_request_may_be_zero_but_not_negative() {
        assert!(resolved("requests: {cpu: 0, memory: '0'}", NO_RULES).is_ok());
        let words = ["spec.resources.requests.cpu -1m (set by the Job) is negative"];
        assert_refused("requests: {cpu: -1m}", NO_RULES, "ResourcesOutOfRange", &words);
    }

    #[test]
    fn what_kubernetes_cannot_count_is_out_of_range_without_any_maximum() {
        for (job, field) in [
            (
                "limits: {memory: 9223372036854775808}",
                "limits.memory 9223372036854775808",
            ),
            ("limits: {memory: '1e30'}", "limits.memory 1e30"),
            ("limits: {memory: 1000E}", "limits.memory 1000E"),
            ("requests: {cpu: '1e18'}", "requests.cpu 1e18"),
            ("requests: {cpu: '1e999999999'}", "requests.cpu 1e999999999"),
        ] {
            assert_refused(
                job,
                NO_RULES,
                "ResourcesOutOfRange",
                &[field, "more than Kubernetes can count"],
            );
        }
        // Kubernetes cuts a binary quantity to the largest number it can count.
        assert!(resolved("limits: {memory: 16Ei}", NO_RULES).is_ok());
        let forty_digits = "limits: {cpu: '0.1234567890123456789012345678901234567890'}";
        assert!(resolved(forty_digits, NO_RULES).is_ok());
    }

    #[test]
    fn a_request_above_its_limit_is_invalid_and_the_message_says_which_side_is_the_class_s() {
        const JOB: &str = "(set by the Job)";
        const CLASS: &str = "(the default of the JobClass)";
        let class = format!("{{{DEFAULTS}, {MAXIMUM}}}");
        for (job, class, request, limit) in [
            (
                "{requests: {cpu: 1001m}, limits: {cpu: 1}}",
                NO_RULES,
                format!("requests.cpu 1001m {JOB}"),
                format!("limits.cpu 1 {JOB}"),
            ),
            (
                "limits: {cpu: 100m}",
                &class,
                format!("requests.cpu 250m {CLASS}"),
                format!("limits.cpu 100m {JOB}"),
            ),
            (
                "requests: {cpu: 4}",
                &class,
                format!("requests.cpu 4 {JOB}"),
                format!("limits.cpu 2 {CLASS}"),
            ),
            (
                "requests: {memory: 2049Mi}",
                &class,
                format!("requests.memory 2049Mi {JOB}"),
                format!("limits.memory 2Gi {CLASS}"),
            ),
        ] {
            assert_refused(job, class, "InvalidResources", &[&request, "is above", &limit]);
        }
    }

    #[test]
    fn what_is_no_quantity_is_invalid_and_named() {
        for text in ["1K", "1KB", "1 Gi", "1gi", "1_000", "", "Gi", "--1", "0x10", "1e"] {
            let field = format!("spec.resources.limits.memory {text:?} is not a quantity");
            assert_refused(
                &format!("limits: {{memory: '{text}'}}"),
                MAXIMUM,
                "InvalidResources",
                &[&field],
            );
        }
        for part in ["defaults", "minimum", "maximum"] {
            let field = format!("the JobClass's spec.resources.{part}.limits.cpu \"two\" is not a quantity");
            assert_refused(
                "{}",
                &format!("{part}: {{limits: {{cpu: two}}}}"),
                "InvalidResources",
                &[&field],
            );
        }
    }

    #[test]
    fn a_refusal_names_every_violation_of_its_kind() {
        let words = [
            "spec.resources.limits.cpu 9 ",
            "spec.resources.limits.memory is not set",
        ];
        assert_refused("limits: {cpu: 9}", MAXIMUM, "ResourcesOutOfRange", &words);
        let words = [
            "spec.resources.limits.cpu \"a\"",
            "spec.resources.requests.memory \"b\"",
        ];
        let job = "{limits: {cpu: a}, requests: {memory: b}}";
        assert_refused(job, NO_RULES, "InvalidResources", &words);
    }

    #[test]
    fn range_is_checked_before_request_against_limit() {
        let words = ["spec.resources.limits.cpu 100m", "minimum.limits.cpu 200m"];
        let class = format!("{{{DEFAULTS}, minimum: {{limits: {{cpu: 200m}}}}}}");
        assert_refused("limits: {cpu: 100m}", &class, "ResourcesOutOfRange", &words);
    }

    #[test]
    fn a_consistent_policy_is_valid() {
        for policy in [
            "{}",
            "{defaults: {}, minimum: {requests: {}}, maximum: {}}",
            DEFAULTS,
            MAXIMUM,
            &format!("{{{DEFAULTS}, {MAXIMUM}}}"),
            "{minimum: {limits: {cpu: 1}}, defaults: {limits: {cpu: 1000m}}, maximum: {limits: {cpu: '1e0'}}}",
            "{minimum: {requests: {cpu: 0}, limits: {cpu: 0}}, maximum: {requests: {cpu: 0}}}",
            "{defaults: {requests: {cpu: 8}}, maximum: {limits: {memory: 1}}}",
        ] {
            assert_eq!(yaml::<ResourcePolicy>(policy).validate(), Ok(()), "{policy}");
        }
    }

    #[test]
    fn a_policy_that_contradicts_itself_is_not_valid() {
        let above =
            |lower: &str, upper: &str| format!("spec.resources.{lower} is above spec.resources.{upper};");
        for (policy, problem) in [
            (
                "{minimum: {requests: {cpu: 2}}, maximum: {requests: {cpu: 1999m}}}",
                above("minimum.requests.cpu 2", "maximum.requests.cpu 1999m"),
            ),
            (
                "{minimum: {requests: {cpu: 2}}, maximum: {limits: {cpu: 1}}}",
                above("minimum.requests.cpu 2", "maximum.limits.cpu 1"),
            ),
            (
                "{minimum: {limits: {memory: 1Gi}}, maximum: {limits: {memory: 1G}}}",
                above("minimum.limits.memory 1Gi", "maximum.limits.memory 1G"),
            ),
            (
                "{minimum: {requests: {cpu: 2}}, defaults: {requests: {cpu: 1}}}",
                above("minimum.requests.cpu 2", "defaults.requests.cpu 1"),
            ),
            (
                "{minimum: {requests: {cpu: 2}}, defaults: {limits: {cpu: 1}}}",
                above("minimum.requests.cpu 2", "defaults.limits.cpu 1"),
            ),
            (
                "{minimum: {limits: {cpu: 2}}, defaults: {limits: {cpu: 1}}}",
                above("minimum.limits.cpu 2", "defaults.limits.cpu 1"),
            ),
            (
                "defaults: {requests: {cpu: 2}, limits: {cpu: 1}}",
                above("defaults.requests.cpu 2", "defaults.limits.cpu 1"),
            ),
            (
                "{defaults: {requests: {cpu: 2}}, maximum: {requests: {cpu: 1}}}",
                above("defaults.requests.cpu 2", "maximum.requests.cpu 1"),
            ),
            (
                "{defaults: {requests: {cpu: 2}}, maximum: {limits: {cpu: 1}}}",
                above("defaults.requests.cpu 2", "maximum.limits.cpu 1"),
            ),
            (
                "{defaults: {limits: {cpu: 2}}, maximum: {limits: {cpu: 1}}}",
                above("defaults.limits.cpu 2", "maximum.limits.cpu 1"),
            ),
            (
                "maximum: {limits: {cpu: 0}}",
                "spec.resources.maximum.limits.cpu is 0; a limit must be above zero".to_owned(),
            ),
            (
                "maximum: {limits: {memory: -1Gi}}",
                "spec.resources.maximum.limits.memory is -1Gi; a limit must be above zero".to_owned(),
            ),
            (
                "defaults: {limits: {cpu: 0}}",
                "spec.resources.defaults.limits.cpu is 0; a limit must be above zero".to_owned(),
            ),
            (
                "defaults: {requests: {cpu: -1}}",
                "spec.resources.defaults.requests.cpu is -1; it must not be negative".to_owned(),
            ),
            (
                "minimum: {limits: {cpu: -1}}",
                "spec.resources.minimum.limits.cpu is -1; it must not be negative".to_owned(),
            ),
            (
                "minimum: {requests: {memory: 1KB}}",
                "spec.resources.minimum.requests.memory \"1KB\" is not a quantity".to_owned(),
            ),
        ] {
            let problems = yaml::<ResourcePolicy>(policy).validate().expect_err(policy);
            let [found] = problems.as_slice() else {
                panic!("{policy}: {problems:?}");
            };
            assert!(found.to_string().starts_with(&problem), "{policy}: {found}");
        }
    }

    #[test]
    fn every_problem_of_a_policy_is_reported() {
        let policy: ResourcePolicy =
            yaml("{minimum: {limits: {cpu: 3, memory: x}}, maximum: {limits: {cpu: 2, memory: 0}}}");
        let problems = policy.validate().expect_err("three problems").len();
        assert_eq!(problems, 3);
    }

    #[test]
    fn the_api_server_checks_the_same_laws_and_names_the_fields() {
        let schema = serde_json::to_value(schemars::schema_for!(ResourcePolicy)).unwrap();
        let rules = schema["x-kubernetes-validations"].as_array().unwrap();
        let laws = Law::all();
        assert_eq!(rules.len(), laws.len());
        for (rule, law) in rules.iter().zip(laws) {
            let places = match law {
                Law::NotNegative(place) | Law::Positive(place) => vec![place],
                Law::AtMost(lower, upper) => vec![lower, upper],
            };
            for place in places {
                let place = place.to_string();
                assert!(
                    rule["rule"]
                        .as_str()
                        .unwrap()
                        .contains(&format!("has(self.{place})"))
                );
                assert!(rule["message"].as_str().unwrap().contains(&place));
            }
        }
    }

    #[test]
    fn a_quantity_s_schema_takes_an_integer_or_a_short_text_and_no_null() {
        let schema = serde_json::to_value(schemars::schema_for!(ResourceQuantities)).unwrap();
        for resource in ["cpu", "memory"] {
            let quantity = &schema["properties"][resource];
            assert_eq!(quantity["x-kubernetes-int-or-string"], true);
            assert_eq!(quantity["maxLength"], QUANTITY_LENGTH);
            assert!(quantity.get("type").is_none() && quantity.get("nullable").is_none());
        }
        assert!(schema.get("required").is_none());
    }

    #[test]
    fn an_integer_is_a_quantity_and_an_absent_one_is_not_written() {
        let quantities: ResourceQuantities = yaml("cpu: 2");
        assert_eq!(
            serde_json::to_value(quantities).unwrap(),
            serde_json::json!({ "cpu": "2" })
        );
        let nothing = serde_json::to_value(ResourcePolicy::default()).unwrap();
        assert_eq!(nothing, serde_json::json!({}));
    }
}
