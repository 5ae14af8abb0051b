//! A Job's environment, against a model of its own of what the kubelet does.
//!
//! Each line is `+NAME=VALUE` (of a whole ConfigMap), `@NAME=VALUE` (one key of one), `NAME=VALUE` (a value to expand),
//! or, without a `=`, a word of the command.

use std::collections::BTreeMap;

use ayatori_controller::references::Data;
use ayatori_core::job::{EnvFromSource, EnvVar, EnvVarSource, Job, JobSpec, KeySelector, ObjectSelector};
use ayatori_opensandbox_adapter::environment::Environment;
use secrecy::ExposeSecret;

use crate::text;

/// What Linux gives a process in one string at most.
const LONGEST: usize = 128 * 1024;

/// The model builds no more than this.
const ENOUGH: usize = 4 * LONGEST;

pub(crate) fn check(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let lines: Vec<Line<'_>> = text.split('\n').map(Line::read).collect();
    let (job, data) = asked(&lines);
    match (Environment::of(&job, &data), modelled(&lines)) {
        (Ok(ours), Ok((variables, words))) => {
            let seen: Vec<_> = ours
                .variables
                .iter()
                .map(|(n, v)| (n.as_str(), v.expose_secret()))
                .collect();
            let modelled: Vec<_> = variables.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
            assert_eq!(seen, modelled);
            let seen: Vec<_> = ours.command.iter().map(ExposeSecret::expose_secret).collect();
            assert_eq!(seen, words);
        }
        (_, Err(Impossible::NotModelled)) => {}
        (Ok(_), Err(Impossible::TooLong)) => panic!("it is too long for Linux, and accepted"),
        (Err(ours), modelled) => match ours.reason.as_str() {
            "ReservedEnvName" => assert!(["_", "CMD", "EXECD"].iter().any(|part| text.contains(part))),
            "InvalidConfigMapValue" => assert!(text.contains('\0')),
            "UnsupportedFeature" => assert!(modelled.is_err(), "{}", ours.message),
            other => panic!("{other}: {}", ours.message),
        },
    }
}

enum Line<'a> {
    Imported(&'a str, &'a str),
    Taken(&'a str, &'a str),
    Defined(&'a str, &'a str),
    Word(&'a str),
}

impl<'a> Line<'a> {
    fn read(line: &'a str) -> Self {
        let Some((name, value)) = line.split_once('=') else {
            return Line::Word(line);
        };
        match (name.strip_prefix('+'), name.strip_prefix('@')) {
            (Some(name), _) => Line::Imported(name, value),
            (_, Some(name)) => Line::Taken(name, value),
            _ => Line::Defined(name, value),
        }
    }
}

fn asked(lines: &[Line<'_>]) -> (Job, Data) {
    let (mut spec, mut data) = (JobSpec::default(), Data::default());
    for (index, line) in lines.iter().enumerate() {
        let object = format!("c{index}");
        match line {
            Line::Imported(name, value) => {
                let (prefix, key) = name.split_at(name.find('.').unwrap_or(0));
                data.config_maps
                    .insert(object.clone(), [(key.to_owned(), (*value).to_owned())].into());
                spec.env_from.push(EnvFromSource {
                    prefix: Some(prefix.to_owned()),
                    config_map_ref: Some(ObjectSelector {
                        name: object,
                        optional: None,
                    }),
                    ..EnvFromSource::default()
                });
            }
            Line::Taken(name, value) => {
                data.config_maps
                    .insert(object.clone(), [("key".to_owned(), (*value).to_owned())].into());
                let reference = KeySelector {
                    name: object,
                    key: "key".to_owned(),
                    optional: Some(index % 2 == 0),
                };
                spec.env.push(EnvVar {
                    name: (*name).to_owned(),
                    value: None,
                    value_from: Some(EnvVarSource {
                        config_map_key_ref: Some(reference),
                        ..EnvVarSource::default()
                    }),
                });
            }
            Line::Defined(name, value) => spec.env.push(EnvVar {
                name: (*name).to_owned(),
                value: Some((*value).to_owned()),
                value_from: None,
            }),
            Line::Word(word) => spec.command.push((*word).to_owned()),
        }
    }
    (Job::new("job", spec), data)
}

/// Longer than Linux gives a process in one string.
struct TooLong;

type Values = BTreeMap<String, Result<String, TooLong>>;

type Modelled = (BTreeMap<String, String>, Vec<String>);

#[derive(Debug)]
enum Impossible {
    TooLong,
    /// It would take too much time here to say.
    NotModelled,
}

/// What a process would be given, or what makes that impossible. A value that is too long matters only to what uses it:
/// a later one of its name may take its place.
fn modelled(lines: &[Line<'_>]) -> Result<Modelled, Impossible> {
    let mut variables = BTreeMap::new();
    let mut room = ENOUGH;
    let mut built = |text: &str, variables: &Values| {
        let text = expanded(text, variables);
        room = room.checked_sub(text.as_ref().map_or(LONGEST, String::len))?;
        Some(text)
    };
    for line in lines {
        if let Line::Imported(name, value) = line
            && !name.is_empty()
            && name.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        {
            variables.insert((*name).to_owned(), Ok((*value).to_owned()));
        }
    }
    for line in lines {
        let (name, value) = match line {
            Line::Defined(name, value) => (name, built(value, &variables).ok_or(Impossible::NotModelled)?),
            Line::Taken(name, value) => (name, Ok((*value).to_owned())),
            Line::Imported(..) | Line::Word(_) => continue,
        };
        variables.insert((*name).to_owned(), value);
    }
    let mut words = Vec::new();
    for line in lines {
        if let Line::Word(word) = line {
            let word = built(word, &variables).ok_or(Impossible::NotModelled)?;
            words.push(word.map_err(|TooLong| Impossible::TooLong)?);
        }
    }
    let mut usable = BTreeMap::new();
    for (name, value) in variables {
        let value = value.map_err(|TooLong| Impossible::TooLong)?;
        if name.len() + value.len() + 2 > LONGEST {
            return Err(Impossible::TooLong);
        }
        usable.insert(name, value);
    }
    Ok((usable, words))
}

/// Byte by byte from the left, as the documentation of a container's `env` puts it: `$(NAME)` is the value of a variable
/// that is known, and stays as it is if there is none; `$$` is `$`; any other `$` is itself.
fn expanded(text: &str, variables: &Values) -> Result<String, TooLong> {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        match (bytes[at], bytes.get(at + 1)) {
            (b'$', Some(b'$')) => {
                out.push(b'$');
                at += 2;
            }
            (b'$', Some(b'(')) => match (at + 2..bytes.len()).find(|end| bytes[*end] == b')') {
                Some(end) => {
                    match variables.get(&text[at + 2..end]) {
                        Some(value) => out.extend(value.as_ref().map_err(|TooLong| TooLong)?.bytes()),
                        None => out.extend(&bytes[at..=end]),
                    }
                    at = end + 1;
                }
                None => {
                    out.push(b'$');
                    at += 1;
                }
            },
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
        if out.len() >= LONGEST {
            return Err(TooLong);
        }
    }
    Ok(String::from_utf8(out).expect("whole characters in a row"))
}
