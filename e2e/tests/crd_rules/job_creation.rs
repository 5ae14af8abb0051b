//! What a new Job may ask for.

use anyhow::Context;
use ayatori_core::crd;
use ayatori_e2e::api::{Run, Verdict, Verdict::Accepted, Verdict::Refused, in_namespace, merged};
use kube::api::{Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use crate::creations;
use crate::samples::{NOON, STRANGER, job_spec};

#[tokio::test]
#[rustfmt::skip]
async fn a_job_is_created_only_with_a_valid_image() -> anyhow::Result<()> {
    const WORDS: Verdict = Refused("must be an image reference");
    let digest = format!("app@sha256:{}", "0123456789abcdef".repeat(4));
    let tagged = format!("registry.example/app:1.2@sha256:{}", "0123456789abcdef".repeat(4));
    let image = |image: &str| json!({ "image": image });
    creations(
        crd::job(),
        job_spec(),
        vec![
            ("a bare name", image("busybox"), Accepted),
            ("a registry with a port and a tag", image("localhost:5999/none:1"), Accepted),
            ("a registry by IPv6 address", image("[fd00::1]:5000/app"), Accepted),
            ("a path with separators", image("registry.example/a-b/c__d/e.f:v1.2-rc.1"), Accepted),
            ("a digest", image(&digest), Accepted),
            ("a tag and a digest", image(&tagged), Accepted),
            ("a path in upper case and an empty part", image("UPPER//bad"), WORDS),
            ("upper case in the path", image("registry.example/App"), WORDS),
            ("white space", image("app :1"), WORDS),
            ("a trailing newline", image("app\n"), WORDS),
            ("nothing", image(""), WORDS),
            ("an empty tag", image("app:"), WORDS),
            ("a tag that is too long", image(&format!("app:{}", "a".repeat(129))), WORDS),
            ("a digest that is too short", image("app@sha256:abc"), WORDS),
            ("a URL", image("https://registry.example/app"), WORDS),
            ("no image at all", json!({ "image": null }), Refused("spec.image: Required value")),
            ("an image that is too long", image(&"a".repeat(1025)), Refused("spec.image: Too long: may not be more than 1024")),
        ],
    )
    .await
}

#[tokio::test]
#[rustfmt::skip]
async fn a_job_is_created_only_with_valid_environment_variables() -> anyhow::Result<()> {
    const NAME: Verdict = Refused("must be the name of an environment variable");
    let named = |name: &str| json!({ "env": [{ "name": name, "value": "x" }] });
    let from = |source: Value| json!({ "env": [{ "name": "A", "valueFrom": source }] });
    let key = |name: &str, key: &str| from(json!({ "secretKeyRef": { "name": name, "key": key } }));
    let all_of = |source: Value| json!({ "envFrom": [source] });
    let many = |count: usize| json!({ "env": (0..count).map(|n| json!({ "name": format!("A{n}") })).collect::<Vec<_>>() });
    creations(
        crd::job(),
        job_spec(),
        vec![
            ("dots, dashes and a leading digit", json!({ "env": [{ "name": "my.var" }, { "name": "my-var" }, { "name": "1X" }] }), Accepted),
            ("a space and other printable characters", named("a b~!<>"), Accepted),
            ("a name without a value", json!({ "env": [{ "name": "A" }] }), Accepted),
            ("an equals sign in a name", named("A=B"), NAME),
            ("an empty name", named(""), NAME),
            ("a NUL in a name", named("A\u{0}"), NAME),
            ("a newline in a name", named("A\n"), NAME),
            ("a name outside ASCII", named("é"), NAME),
            ("a name that is too long", named(&"A".repeat(257)), Refused("spec.env[0].name: Too long")),
            ("the same name twice", json!({ "env": [{ "name": "A", "value": "1" }, { "name": "A", "value": "2" }] }), Refused("spec.env[1]: Duplicate value")),
            ("256 variables", many(256), Accepted),
            ("257 variables", many(257), Refused("spec.env: Too many: 257: must have at most 256 items")),
            ("a value of 32768 characters", json!({ "env": [{ "name": "A", "value": "x".repeat(32768) }] }), Accepted),
            ("a longer value", json!({ "env": [{ "name": "A", "value": "x".repeat(32769) }] }), Refused("spec.env[0].value: Too long")),
            ("a NUL in a value", json!({ "env": [{ "name": "A", "value": "a\u{0}b" }] }), Refused("spec.env[0].value")),
            ("a key of a Secret", key("s", "my-key_1.txt"), Accepted),
            ("a key of a ConfigMap", from(json!({ "configMapKeyRef": { "name": "c", "key": "k", "optional": true } })), Accepted),
            (
                "a value and a source",
                json!({ "env": [{ "name": "A", "value": "x", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }] }),
                Refused("value and valueFrom exclude each other"),
            ),
            ("an empty source", from(json!({})), Refused("exactly one source must be set: secretKeyRef or configMapKeyRef")),
            (
                "two sources",
                from(json!({ "secretKeyRef": { "name": "s", "key": "k" }, "configMapKeyRef": { "name": "c", "key": "k" } })),
                Refused("exactly one source must be set: secretKeyRef or configMapKeyRef"),
            ),
            ("a Secret with a bad name", key("My_Secret", "k"), Refused("must be the name of an object")),
            ("a key with a slash", key("s", "a/b"), Refused("must be a key of a Secret or ConfigMap")),
            ("a key that climbs", key("s", "..k"), Refused("must be a key of a Secret or ConfigMap")),
            ("a key that is missing", from(json!({ "secretKeyRef": { "name": "s" } })), Refused("key: Required value")),
            ("a whole Secret with a prefix", all_of(json!({ "prefix": "P_", "secretRef": { "name": "s" } })), Accepted),
            ("a whole ConfigMap", all_of(json!({ "configMapRef": { "name": "c", "optional": true } })), Accepted),
            ("an equals sign in a prefix", all_of(json!({ "prefix": "P=", "secretRef": { "name": "s" } })), Refused("must be a prefix of names of environment variables")),
            ("envFrom without a source", all_of(json!({ "prefix": "P_" })), Refused("exactly one source must be set: secretRef or configMapRef")),
            (
                "envFrom with two sources",
                all_of(json!({ "secretRef": { "name": "s" }, "configMapRef": { "name": "c" } })),
                Refused("exactly one source must be set: secretRef or configMapRef"),
            ),
            ("envFrom with a bad name", all_of(json!({ "secretRef": { "name": "S" } })), Refused("must be the name of an object")),
            ("65 sources", json!({ "envFrom": vec![json!({ "secretRef": { "name": "s" } }); 65] }), Refused("spec.envFrom: Too many")),
        ],
    )
    .await
}

#[tokio::test]
#[rustfmt::skip]
async fn a_job_is_created_only_with_fields_in_range() -> anyhow::Result<()> {
    let field = |name: &str, value: Value| json!({ name: value });
    const CONTROLLER: Verdict = Refused("must be a domain-prefixed path");
    creations(
        crd::job(),
        job_spec(),
        vec![
            ("a class by name", field("jobClassName", json!("rootless")), Accepted),
            ("a class whose name is too long", field("jobClassName", json!("a".repeat(64))), Refused("spec.jobClassName: Too long")),
            (
                "a class whose name is none",
                field("jobClassName", json!("Root_Less")),
                Refused("spec.jobClassName: Invalid value: \"Root_Less\": must be the name of an object"),
            ),
            ("an absolute working directory", field("workingDir", json!("/src")), Accepted),
            ("a relative working directory", field("workingDir", json!("src")), Refused("spec.workingDir: Invalid value: \"src\": must be an absolute path")),
            ("a NUL in the working directory", field("workingDir", json!("/a\u{0}")), Refused("spec.workingDir")),
            ("line breaks and other characters in a command", field("command", json!(["sh", "-c", "a\nb\r\t\u{1}☃"])), Accepted),
            ("a NUL in a command", field("command", json!(["sh", "a\u{0}"])), Refused("spec.command[1]")),
            ("a NUL in an argument", field("args", json!(["\u{0}"])), Refused("spec.args[0]")),
            ("1024 arguments", field("args", json!(vec!["x"; 1024])), Accepted),
            ("1025 arguments", field("args", json!(vec!["x"; 1025])), Refused("spec.args: Too many")),
            ("1025 parts of a command", field("command", json!(vec!["x"; 1025])), Refused("spec.command: Too many")),
            ("an argument of 65536 characters", field("args", json!(["x".repeat(65536)])), Accepted),
            ("a longer one", field("args", json!(["x".repeat(65537)])), Refused("spec.args[0]: Too long")),
            ("pull secrets", field("imagePullSecrets", json!([{ "name": "a" }, { "name": "b" }])), Accepted),
            ("a pull secret named twice", field("imagePullSecrets", json!([{ "name": "a" }, { "name": "a" }])), Refused("spec.imagePullSecrets[1]: Duplicate value")),
            ("a pull secret with a bad name", field("imagePullSecrets", json!([{ "name": "A" }])), Refused("must be the name of an object")),
            ("the shortest deadline", field("activeDeadlineSeconds", json!(1)), Accepted),
            ("the longest deadline", field("activeDeadlineSeconds", json!(i32::MAX)), Accepted),
            ("a deadline of 0", field("activeDeadlineSeconds", json!(0)), Refused("should be greater than or equal to 1")),
            ("a negative deadline", field("activeDeadlineSeconds", json!(-5)), Refused("should be greater than or equal to 1")),
            ("a deadline beyond int32", field("activeDeadlineSeconds", json!(2_147_483_648_i64)), Refused("should be less than or equal to 2147483647")),
            ("the largest int64 as a deadline", field("activeDeadlineSeconds", json!(i64::MAX)), Refused("should be less than or equal to 2147483647")),
            ("a deadline that is no number", field("activeDeadlineSeconds", json!("5")), Refused("must be of type integer")),
            ("a starting deadline of 0", field("startingDeadlineSeconds", json!(0)), Refused("should be greater than or equal to 1")),
            ("a starting deadline beyond int32", field("startingDeadlineSeconds", json!(2_147_483_648_i64)), Refused("should be less than or equal to 2147483647")),
            ("the longest starting deadline", field("startingDeadlineSeconds", json!(i32::MAX)), Accepted),
            ("a TTL of 0", field("ttlSecondsAfterFinished", json!(0)), Accepted),
            ("the longest TTL", field("ttlSecondsAfterFinished", json!(i32::MAX)), Accepted),
            ("a negative TTL", field("ttlSecondsAfterFinished", json!(-1)), Refused("should be greater than or equal to 0")),
            ("a TTL beyond int32", field("ttlSecondsAfterFinished", json!(2_147_483_648_i64)), Refused("should be less than or equal to 2147483647")),
            ("no grace", field("terminationGracePeriodSeconds", json!(0)), Accepted),
            ("a day of grace", field("terminationGracePeriodSeconds", json!(86400)), Accepted),
            ("more than a day of grace", field("terminationGracePeriodSeconds", json!(86401)), Refused("should be less than or equal to 86400")),
            ("our own controller by name", field("managedBy", json!("execution.ayatori.ddupan.top/job-controller")), Accepted),
            ("a controller with a long path", field("managedBy", json!("example.com/a/b~c")), Accepted),
            ("a controller without a path", field("managedBy", json!("example.com/")), CONTROLLER),
            ("a controller without a domain", field("managedBy", json!("/controller")), CONTROLLER),
            ("a controller without a slash", field("managedBy", json!("controller")), CONTROLLER),
            ("a controller in upper case", field("managedBy", json!("Example.com/controller")), CONTROLLER),
            ("a controller with white space", field("managedBy", json!("example.com/my controller")), CONTROLLER),
            ("a controller whose name is too long", field("managedBy", json!(format!("example.com/{}", "a".repeat(52)))), Refused("spec.managedBy: Too long")),
            ("suspended and cancelled from the start", json!({ "suspend": true, "cancelRequested": true }), Accepted),
        ],
    )
    .await
}

#[tokio::test]
async fn a_job_is_created_only_with_quantities_that_kubernetes_can_read() -> anyhow::Result<()> {
    let cpu = |value: Value| json!({ "resources": { "requests": { "cpu": value } } });
    let memory = |value: &str| json!({ "resources": { "limits": { "memory": value } } });
    let quantity = Refused("quantity");
    creations(
        crd::job(),
        job_spec(),
        vec![
            ("a number", cpu(json!(1)), Accepted),
            ("millicores", cpu(json!("100m")), Accepted),
            ("an exponent", memory("1e3"), Accepted),
            ("a fraction", memory("1.5Gi"), Accepted),
            ("a word", memory("abc"), quantity),
            ("a suffix nobody knows", memory("1KB"), quantity),
            ("white space", memory("1 Gi"), quantity),
            ("an exponent without digits", memory("1e"), quantity),
        ],
    )
    .await
}

#[tokio::test]
#[rustfmt::skip]
async fn text_of_a_job_is_capped_so_that_its_status_always_fits() -> anyhow::Result<()> {
    const WORDS: Verdict = Refused("hold more than 131072 characters together");
    let env = |count: usize, length: usize| {
        let entry = |n: usize| json!({ "name": format!("A{n:03}"), "value": "x".repeat(length) });
        json!({ "env": (0..count).map(entry).collect::<Vec<_>>() })
    };
    let args = |count: usize, length: usize| json!({ "args": vec!["x".repeat(length); count] });
    creations(
        crd::job(),
        job_spec(),
        vec![
            ("256 variables of 508 characters", env(256, 508), Accepted),
            ("one character more in each", env(256, 509), WORDS),
            ("3 variables of 32 KiB", env(3, 32768), Accepted),
            ("4 variables of 32 KiB, whose names are too much", env(4, 32768), WORDS),
            ("2 arguments of 64 KiB", args(2, 65536), Accepted),
            ("16 arguments of 64 KiB", args(16, 65536), WORDS),
            ("a command beside the arguments", merged(args(2, 65536), &json!({ "command": ["x"] })), WORDS),
        ],
    )
    .await
}

/// The worst that fits: characters that take six bytes each in etcd, every list full, every message full.
#[tokio::test]
#[rustfmt::skip]
async fn the_largest_job_can_take_its_largest_status() -> anyhow::Result<()> {
    in_namespace(async |run: Run| {
        let jobs = run.objects(&crd::job());
        let reference = |n: usize| json!({ "name": format!("A{n:03}"), "valueFrom": { "secretKeyRef": { "name": "s".repeat(253), "key": "k".repeat(253) } } });
        let spec = json!({
            "image": "a".repeat(1024),
            "managedBy": STRANGER,
            "args": ["<".repeat(65536), "<".repeat(65536 - 256 * 4)],
            "env": (0..256).map(reference).collect::<Vec<_>>(),
        });
        let mut job = run.object(&crd::job(), "large", spec);
        job.metadata.annotations = Some([("example.com/filling".to_owned(), "x".repeat(250_000))].into());
        jobs.create(&PostParams::default(), &job).await.context("the largest Job")?;
        let condition = |n: usize| {
            json!({ "type": format!("Condition{n}"), "status": "True", "reason": "R".repeat(256), "message": "<".repeat(2048), "lastTransitionTime": NOON })
        };
        let status = json!({ "status": {
            "conditions": (0..16).map(condition).collect::<Vec<_>>(),
            "result": { "outcome": "Failed", "reason": "R".repeat(128), "message": "<".repeat(1024) },
            "correlation": { "selector": "<".repeat(1024), "url": "<".repeat(4096) },
        }});
        jobs.patch_status("large", &PatchParams::default(), &Patch::Merge(status)).await.context("the largest status")?;
        let release = json!({ "metadata": { "finalizers": ["example.com/x"] } });
        jobs.patch("large", &PatchParams::default(), &Patch::Merge(release.clone())).await.context("a finalizer on it")?;
        jobs.patch("large", &PatchParams::default(), &Patch::Merge(json!({ "metadata": { "finalizers": null } }))).await?;
        Ok(())
    })
    .await
}
