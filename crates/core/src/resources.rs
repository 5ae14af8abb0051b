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
//! other is refused by the API server and by [`ResourcePolicy::validate`], both by the same [`Law`]s.

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

    /// CEL for whether the quantity is there. What is no quantity has a message of its own. Plain `has()`: behind
    /// `?.` the API server no longer knows how long the text is, and refuses the rule for its cost.
    fn cel_is_given(self) -> String {
        let [part, side, resource] = self.names();
        format!(
            "(has(self.{part}) && has(self.{part}.{side}) && has(self.{part}.{side}.{resource}) && \
             isQuantity(string(self.{self})))"
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
                format!("!{} || {}.compareTo(quantity('0')) >= 0", place.cel_is_given(), place.cel()),
                format!("{place} must not be negative"),
            ),
            Self::Positive(place) => (
                place,
                format!("!{} || {}.compareTo(quantity('0')) > 0", place.cel_is_given(), place.cel()),
                format!("{place} must be above zero: leave it out for no limit"),
            ),
            Self::AtMost(lower, upper) => (
                lower,
                format!(
                    "!{} || !{} || {}.compareTo({}) <= 0",
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
fn quantity_schema(_: &mut SchemaGenerator) -> Schema {
    let rule = Rule::new("isQuantity(string(self))")
        .message("must be a Kubernetes quantity, such as 2, 250m, 0.5, 512Mi, 1.5Gi or 1e3");
    json_schema!({
        "x-kubernetes-int-or-string": true,
        "maxLength": QUANTITY_LENGTH,
        "x-kubernetes-validations": [rule],
    })
}
