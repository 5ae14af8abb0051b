//! What the admission policies of the chart `execution-api` refuse, and that the controllers refuse it as well.
//!
//! Needs both charts installed with their default values, of this checkout. Nothing runs: the classes here are never
//! ready. The module `global_default` makes classes global defaults for a moment; every other Job of these tests
//! chooses its class by name or through its namespace.

mod class_policy;
mod gitops;
mod global_default;
mod platform_rules;
mod rendered;
mod scene;
