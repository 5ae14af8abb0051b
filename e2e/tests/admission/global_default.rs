//! The global default is left to the controllers: a policy sees one class at a time.

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use ayatori_core::names::IS_DEFAULT_CLASS;
use ayatori_e2e::api;
use serde_json::json;

use crate::scene::{Answer, Judges, create, create_class, create_parameters, when_accepted_says};

#[tokio::test]
async fn two_global_defaults_are_ambiguous_and_one_is_judged_by_controllers_with_and_without_policies()
-> anyhow::Result<()> {
    api::in_namespace(async |run| {
        create_parameters(&run).await?;
        let mut homes = Vec::new();
        for judges in Judges::ALL {
            let name = format!("home-{}", homes.len());
            homes.push(
                run.create_namespace(&name, judges.labels(), BTreeMap::new())
                    .await?,
            );
        }
        // Both would refuse the Jobs, by namespace and by size.
        let policy = json!({
            "allowedNamespaces": { "matchLabels": { "team": "nobody" } },
            "resources": { "maximum": { "limits": { "cpu": 1 } } },
        });
        let classes = ["a", "b"].map(|letter| format!("{}-{letter}", run.namespace));
        for (number, reason) in ["NamespaceNotAllowed", "AmbiguousDefaultJobClass"]
            .into_iter()
            .enumerate()
        {
            let defaults = classes.get(..=number).unwrap_or_default();
            let class = defaults.last().context("a class")?;
            let default = [(IS_DEFAULT_CLASS.to_owned(), "true".to_owned())].into();
            create_class(&run, class, default, &policy).await?;
            for home in &homes {
                let name = reason.to_lowercase();
                if let Answer::Refused(message) = create(&run, home, &name, &json!({})).await? {
                    bail!("{reason}: refused at create: {message}");
                }
                let said = when_accepted_says(&run, home, &name, reason).await?;
                let names_all = defaults.iter().all(|class| said.message.contains(class));
                ensure!(said.status == "False" && names_all, "{said:?}");
            }
        }
        Ok(())
    })
    .await
}
