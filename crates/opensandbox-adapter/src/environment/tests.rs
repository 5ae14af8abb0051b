use proptest::prelude::*;
use secrecy::SecretSlice;
use serde_json::{Value, json};

use super::*;

fn job(spec: &Value) -> Job {
    let mut spec = spec.clone();
    spec["image"] = json!("app");
    serde_json::from_value(json!({
        "apiVersion": "execution.ayatori.ddupan.top/v1alpha1",
        "kind": "Job",
        "metadata": { "name": "build", "namespace": "team" },
        "spec": spec,
    }))
    .unwrap()
}

fn secret(bytes: &[u8]) -> SecretSlice<u8> {
    SecretSlice::from(Box::<[u8]>::from(bytes))
}

/// Secret `s`, ConfigMap `c`, and a Secret `b` with bytes that are no text.
fn data() -> Data {
    let map = |pairs: &[(&str, &[u8])]| {
        let pairs = pairs.iter();
        pairs.map(|(k, v)| ((*k).to_owned(), secret(v))).collect()
    };
    Data {
        secrets: BTreeMap::from([
            (
                "s".to_owned(),
                map(&[("user", b"admin"), ("password", b"p$(user)w"), ("empty", b"")]),
            ),
            (
                "b".to_owned(),
                map(&[
                    ("bytes", &[0xff, 0xfe, 0x00, 0x41]),
                    ("nul", b"a\0b"),
                    ("user", b"bob"),
                ]),
            ),
            ("k".to_owned(), map(&[("EXECD_X", b"1")])),
            (
                "j".to_owned(),
                map(&[("a=b", b"1"), ("GOOD", b"2"), ("ünd", b"3")]),
            ),
        ]),
        config_maps: BTreeMap::from([(
            "c".to_owned(),
            BTreeMap::from([
                ("user".to_owned(), "carol".to_owned()),
                ("1st.key-x".to_owned(), "$(user)".to_owned()),
            ]),
        )]),
    }
}

/// `NAME=value` of each variable, then the words of the command; or why not.
fn seen(spec: &Value) -> Result<(Vec<String>, Vec<String>), Why> {
    let environment = Environment::of(&job(spec), &data())?;
    let variables = environment.variables.iter();
    Ok((
        variables
            .map(|(name, value)| format!("{name}={}", value.expose_secret()))
            .collect(),
        environment
            .command
            .iter()
            .map(|word| word.expose_secret().to_owned())
            .collect(),
    ))
}

fn variables(spec: &Value) -> Vec<String> {
    seen(spec).unwrap().0
}

/// The value of `V`, expanded with these variables.
fn expanded(text: &str, defined: &[(&str, &str)]) -> String {
    let mut env: Vec<_> = defined
        .iter()
        .map(|(name, value)| json!({ "name": name, "value": value.replace('$', "$$") }))
        .collect();
    env.push(json!({ "name": "V", "value": text }));
    let found = Environment::of(&job(&json!({ "env": env })), &Data::default()).unwrap();
    let value = found.variables.iter().find(|(name, _)| name == "V").unwrap();
    value.1.expose_secret().to_owned()
}

#[test]
fn references_are_expanded_as_the_kubelet_does() {
    let defined = [
        ("A", "x"),
        ("B", ""),
        ("my.var", "dotted"),
        ("a b", "spaced"),
        ("D", "$(A)$$"),
    ];
    for (text, expected) in [
        ("", ""),
        ("plain", "plain"),
        ("$(A)", "x"),
        ("-$(A)-$(A)-", "-x-x-"),
        ("$(A)$(A)", "xx"),
        ("[$(B)]", "[]"),
        ("$(my.var)", "dotted"),
        ("$(a b)", "spaced"),
        ("$(NOPE)", "$(NOPE)"),
        ("$(A)-$(NOPE)-$$(A)-$$", "x-$(NOPE)-$(A)-$"),
        ("$$", "$"),
        ("$$$$", "$$"),
        ("$$$", "$$"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$x"),
        ("$$$$(A)", "$$(A)"),
        ("$", "$"),
        ("a$", "a$"),
        ("$A", "$A"),
        ("${A}", "${A}"),
        ("$(", "$("),
        ("$(A", "$(A"),
        ("$(A$$", "$(A$"),
        ("$(A$(A)", "$(A$(A)"),
        ("$($(A)", "$($(A)"),
        ("$($(A))", "$($(A))"),
        ("$()", "$()"),
        ("$)", "$)"),
        ("$(A))", "x)"),
        ("$((A))", "$((A))"),
        ("$ (A)", "$ (A)"),
        ("漢$(A)字$é", "漢x字$é"),
        // What a value holds is not expanded again.
        ("$(D)", "$(A)$$"),
    ] {
        assert_eq!(expanded(text, &defined), expected, "{text}");
    }
}

#[test]
fn a_reference_sees_only_what_was_defined_before_it() {
    let spec = json!({
        "envFrom": [{ "secretRef": { "name": "s" } }],
        "env": [
            { "name": "EARLY", "value": "$(LATE) $(user)" },
            { "name": "LATE", "value": "late" },
            { "name": "SELF", "value": "$(SELF)" },
            { "name": "user", "value": "not $(user)" },
            { "name": "AFTER", "value": "$(user)" },
        ],
        "command": ["$(LATE)", "$(EARLY)"],
        "args": ["$(user)", "$$(user)", "", "$(NOPE)"],
    });
    let (variables, command) = seen(&spec).unwrap();
    assert_eq!(
        variables,
        [
            "AFTER=not admin",
            "EARLY=$(LATE) admin",
            "LATE=late",
            "SELF=$(SELF)",
            "empty=",
            "password=p$(user)w",
            "user=not admin",
        ]
    );
    assert_eq!(
        command,
        ["late", "$(LATE) admin", "not admin", "$(user)", "", "$(NOPE)"]
    );
}

#[test]
fn later_sources_win_and_env_wins_over_all_of_them() {
    let secret = json!({ "secretRef": { "name": "s" } });
    let config_map = json!({ "configMapRef": { "name": "c" } });
    let user = |spec: Value| {
        let found = variables(&spec);
        found.into_iter().find(|v| v.starts_with("user=")).unwrap()
    };
    assert_eq!(user(json!({ "envFrom": [secret, config_map] })), "user=carol");
    assert_eq!(user(json!({ "envFrom": [config_map, secret] })), "user=admin");
    let env = json!([{ "name": "user", "value": "" }]);
    assert_eq!(user(json!({ "envFrom": [secret], "env": env })), "user=");
}

#[test]
fn a_prefix_goes_before_every_key_and_any_key_is_a_name() {
    let spec = json!({ "envFrom": [
        { "configMapRef": { "name": "c" } },
        { "prefix": "P_", "configMapRef": { "name": "c" } },
    ] });
    assert_eq!(
        variables(&spec),
        [
            "1st.key-x=$(user)",
            "P_1st.key-x=$(user)",
            "P_user=carol",
            "user=carol"
        ]
    );
}

#[test]
fn keys_that_no_variable_can_be_named_by_are_left_out_and_told() {
    let spec = json!({ "envFrom": [{ "prefix": "P", "secretRef": { "name": "j" } }] });
    let environment = Environment::of(&job(&spec), &data()).unwrap();
    assert_eq!(environment.skipped, ["Pa=b", "Pünd"]);
    assert_eq!(variables(&spec), ["PGOOD=2"]);
}

#[test]
fn what_is_optional_and_missing_is_left_out_and_what_is_needed_is_named() {
    let key = |kind: &str, name: &str, key: &str, optional: Value| {
        let source = json!({ kind: { "name": name, "key": key, "optional": optional } });
        json!({ "env": [{ "name": "X", "valueFrom": source }] })
    };
    let whole = |kind: &str, name: &str, optional: Value| json!({ "envFrom": [{ kind: { "name": name, "optional": optional } }] });
    for (spec, expected) in [
        (key("secretKeyRef", "s", "user", json!(false)), "X=admin"),
        (key("secretKeyRef", "s", "user", json!(true)), "X=admin"),
        (key("secretKeyRef", "s", "empty", json!(true)), "X="),
        // Not expanded: it is no `value`.
        (key("secretKeyRef", "s", "password", json!(null)), "X=p$(user)w"),
        (key("configMapKeyRef", "c", "user", json!(null)), "X=carol"),
        (key("secretKeyRef", "s", "nope", json!(true)), ""),
        (key("secretKeyRef", "nope", "k", json!(true)), ""),
        (key("configMapKeyRef", "c", "nope", json!(true)), ""),
        (key("configMapKeyRef", "nope", "k", json!(true)), ""),
        (whole("secretRef", "nope", json!(true)), ""),
        (whole("configMapRef", "nope", json!(true)), ""),
    ] {
        assert_eq!(variables(&spec).join(" "), expected, "{spec}");
    }
    for (spec, expected) in [
        (
            key("secretKeyRef", "s", "nope", json!(false)),
            "SecretKeyNotFound",
        ),
        (key("secretKeyRef", "nope", "k", json!(null)), "SecretNotFound"),
        (
            key("configMapKeyRef", "c", "nope", json!(null)),
            "ConfigMapKeyNotFound",
        ),
        (
            key("configMapKeyRef", "nope", "k", json!(null)),
            "ConfigMapNotFound",
        ),
        (whole("secretRef", "nope", json!(null)), "SecretNotFound"),
        (whole("configMapRef", "nope", json!(false)), "ConfigMapNotFound"),
    ] {
        assert_eq!(seen(&spec).unwrap_err().reason, expected, "{spec}");
    }
}

#[test]
fn a_variable_without_a_value_is_empty() {
    let spec =
        json!({ "env": [{ "name": "A" }, { "name": "B", "value": "" }, { "name": "C", "value": "[$(A)]" }] });
    assert_eq!(variables(&spec), ["A=", "B=", "C=[]"]);
}

#[test]
fn bytes_that_no_environment_can_hold_are_refused_by_name_and_not_by_value() {
    for key in ["bytes", "nul"] {
        let source = json!({ "secretKeyRef": { "name": "b", "key": key } });
        let spec = json!({ "env": [{ "name": "X", "valueFrom": source }] });
        let why = seen(&spec).unwrap_err();
        assert_eq!(why.reason, "InvalidSecretValue");
        assert!(
            why.message.contains(&format!("{key:?} of Secret \"b\"")),
            "{why:?}"
        );
        assert!(!why.message.contains("a\0b"), "{why:?}");
    }
    let mut data = data();
    let values = data.config_maps.get_mut("c").unwrap();
    values.insert("nul".to_owned(), "a\0b".to_owned());
    let spec = json!({ "envFrom": [{ "configMapRef": { "name": "c" } }] });
    let why = Environment::of(&job(&spec), &data).unwrap_err();
    assert_eq!(why.reason, "InvalidConfigMapValue");
}

#[test]
fn a_value_that_something_later_replaces_may_be_anything() {
    let bytes = json!({ "secretRef": { "name": "b" } });
    let text = |name: &str| json!({ "name": name, "value": "text" });
    let replaced = json!({ "envFrom": [bytes], "env": [text("bytes"), text("nul")] });
    assert_eq!(variables(&replaced), ["bytes=text", "nul=text", "user=bob"]);

    let used = json!({ "envFrom": [bytes], "env": [text("nul"), { "name": "bytes", "value": "$(bytes)" }] });
    assert_eq!(seen(&used).unwrap_err().reason, "InvalidSecretValue");
    let used = json!({ "envFrom": [bytes], "command": ["$(bytes)"] });
    assert_eq!(seen(&used).unwrap_err().reason, "InvalidSecretValue");
}

#[test]
fn names_that_belong_to_opensandbox_are_refused_wherever_they_come_from() {
    for (name, refused) in [
        ("BOOTSTRAP_CMD", true),
        ("BOOTSTRAP_SHELL", true),
        ("EXECD", true),
        ("EXECD_ENVS", true),
        ("EXECD_INIT", true),
        ("EXECD_BOOTSTRAP_PRE_SCRIPT", true),
        ("EXECD_LIFECYCLE_CONFIG", true),
        ("OPENSANDBOX_ID", true),
        ("OPENSANDBOX_LIFECYCLE", true),
        ("OPENSANDBOX_EGRESS_MITMPROXY_TRANSPARENT", true),
        ("OPEN_SANDBOX_LIFECYCLE", true),
        ("CMD", true),
        ("SHELL_BIN", true),
        ("LIFECYCLE_STATUS_FILE", true),
        ("BOOTSTRAP_SERVERS", false),
        ("execd", false),
        ("MY_EXECD", false),
        ("CMDS", false),
        ("PATH", false),
        ("HOME", false),
    ] {
        let found = seen(&json!({ "env": [{ "name": name, "value": "x" }] }));
        let expected = refused.then(|| "ReservedEnvName".to_owned());
        assert_eq!(found.err().map(|why| why.reason), expected, "{name}");
    }
    for spec in [
        json!({ "envFrom": [{ "secretRef": { "name": "k" } }] }),
        json!({ "envFrom": [{ "prefix": "BOOTSTRAP_SHELL", "secretRef": { "name": "s" } }, { "prefix": "EXECD_", "configMapRef": { "name": "c" } }] }),
    ] {
        assert_eq!(seen(&spec).unwrap_err().reason, "ReservedEnvName", "{spec}");
    }
}

#[test]
fn an_expansion_that_no_process_could_be_given_is_refused_before_it_is_built() {
    let doubling = |times: usize| {
        let mut env = vec![json!({ "name": "V0", "value": "x".repeat(1024) })];
        for number in 1..=times {
            let twice = format!("$(V{0})$(V{0})", number - 1);
            env.push(json!({ "name": format!("V{number}"), "value": twice }));
        }
        json!(env)
    };
    assert!(seen(&json!({ "env": doubling(6) })).is_ok());
    for spec in [
        json!({ "env": doubling(7) }),
        json!({ "env": doubling(255) }),
        json!({ "env": doubling(6), "command": vec!["$(V6)$(V6)"] }),
        json!({ "env": doubling(6), "command": vec!["$(V6)"; 100] }),
    ] {
        let why = seen(&spec).unwrap_err();
        assert_eq!(why.reason, "UnsupportedFeature");
        assert!(why.message.contains("longer than"), "{why:?}");
    }
}

#[test]
fn only_names_that_a_shell_could_assign_to_pass_every_shell() {
    for (name, passes) in [
        ("A", true),
        ("_a1", true),
        ("1A", false),
        ("my.var", false),
        ("my-var", false),
        ("a b", false),
        ("é", false),
        ("", false),
    ] {
        assert_eq!(passes_shells(name), passes, "{name}");
    }
}

#[test]
fn nothing_of_an_environment_is_printed_but_names() {
    let spec = json!({
        "envFrom": [{ "secretRef": { "name": "s" } }],
        "env": [{ "name": "URL", "value": "https://$(user)@host" }],
        "command": ["curl", "$(URL)"],
    });
    let environment = Environment::of(&job(&spec), &data()).unwrap();
    let printed = format!("{environment:?}");
    assert!(printed.contains("URL"), "{printed}");
    for secret in ["admin", "https", "curl"] {
        assert!(!printed.contains(secret), "{printed}");
    }
}

/// Text in which `$`, brackets and a name come up often.
fn reference_like() -> impl Strategy<Value = String> {
    let part = prop_oneof!["\\$", "\\(", "\\)", "A", "B", "\\$\\(A\\)", "[a-z漢 ]{0,3}"];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

/// The rules once more, as a machine that reads one character after the other.
fn as_machine(text: &str, defined: &BTreeMap<&str, String>) -> String {
    let characters: Vec<char> = text.chars().collect();
    let mut out = String::new();
    let mut at = 0;
    while let Some(&c) = characters.get(at) {
        let next = characters.get(at + 1);
        let close = (at + 2..characters.len()).find(|i| characters[*i] == ')');
        match (c, next, close) {
            ('$', Some('$'), _) => {
                out.push('$');
                at += 2;
            }
            ('$', Some('('), Some(close)) => {
                let name: String = characters[at + 2..close].iter().collect();
                match defined.get(name.as_str()) {
                    Some(value) => out.push_str(value),
                    None => out.push_str(&format!("$({name})")),
                }
                at = close + 1;
            }
            _ => {
                out.push(c);
                at += 1;
            }
        }
    }
    out
}

proptest! {
    #[test]
    fn expansion_agrees_with_a_machine_of_the_same_rules(
        text in reference_like(),
        a in reference_like(),
        b in proptest::option::of(reference_like()),
    ) {
        let mut defined = BTreeMap::from([("A", a)]);
        defined.extend(b.map(|b| ("B", b)));
        let pairs: Vec<_> = defined.iter().map(|(name, value)| (*name, value.as_str())).collect();
        prop_assert_eq!(expanded(&text, &pairs), as_machine(&text, &defined));
    }

    #[test]
    fn doubled_dollars_protect_any_text(text in "[^\0]{0,40}") {
        prop_assert_eq!(expanded(&text.replace('$', "$$"), &[("A", "x")]), text);
    }

    #[test]
    fn text_without_dollars_stays_as_it_is(text in "[^\0$]{0,40}") {
        prop_assert_eq!(expanded(&text, &[("A", "x")]), text);
    }

    #[test]
    fn the_last_of_a_name_wins(
        sources in prop::collection::vec(prop::collection::btree_map("[A-D]", "[a-z]{0,3}", 0..4), 0..5),
        env in prop::collection::btree_map("[A-D]", "[a-z]{0,3}", 0..4),
    ) {
        let named = sources.iter().enumerate().map(|(n, values)| (format!("c{n}"), values.clone()));
        let data = Data { config_maps: named.collect(), ..Data::default() };
        let env_from: Vec<_> = (0..sources.len())
            .map(|n| json!({ "configMapRef": { "name": format!("c{n}") } }))
            .collect();
        let variables: Vec<_> = env.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
        let spec = json!({ "envFrom": env_from, "env": variables });
        let found = Environment::of(&job(&spec), &data).unwrap().variables;
        let found: BTreeMap<_, _> = found.into_iter().map(|(n, v)| (n, v.expose_secret().to_owned())).collect();
        let mut expected = BTreeMap::new();
        for values in sources.into_iter().chain([env]) {
            expected.extend(values);
        }
        prop_assert_eq!(found, expected);
    }
}
