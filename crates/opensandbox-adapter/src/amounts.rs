//! CPU and memory in the server's own grammar. It drops what it cannot read, and with it the limit: so whole
//! millicores and whole bytes, which every version reads, rounded up.

use std::collections::BTreeMap;

use ayatori_core::execution::Why;
use ayatori_core::quantity::Quantity;
use ayatori_core::resources::ResourceQuantities;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

/// The largest number of millicores whose billionths the server can still count.
const MOST_MILLICORES: i64 = i64::MAX / 1_000_000;

/// The least that the kernel lets a container have, and so what the kubelet makes of less too: a millisecond of each
/// tenth of a second.
const LEAST_MILLICORES: i64 = 10;

/// These quantities, as a create request has them.
pub(crate) fn amounts(quantities: Option<&ResourceQuantities>) -> Result<BTreeMap<String, String>, Why> {
    let mut amounts = BTreeMap::new();
    let Some(quantities) = quantities else {
        return Ok(amounts);
    };
    if let Some(cpu) = &quantities.cpu {
        let millicores = parse("cpu", cpu)?.to_millis_rounded_up();
        let millicores = millicores
            .filter(|m| *m <= MOST_MILLICORES)
            .ok_or_else(|| too_much("cpu", cpu))?;
        // Nothing stays nothing.
        let millicores = if millicores > 0 {
            millicores.max(LEAST_MILLICORES)
        } else {
            millicores
        };
        amounts.insert("cpu".to_owned(), format!("{millicores}m"));
    }
    if let Some(memory) = &quantities.memory {
        let bytes = parse("memory", memory)?.to_bytes_rounded_up();
        let bytes = bytes.ok_or_else(|| too_much("memory", memory))?;
        amounts.insert("memory".to_owned(), bytes.to_string());
    }
    Ok(amounts)
}

fn parse(name: &str, quantity: &ApiQuantity) -> Result<Quantity, Why> {
    Quantity::try_from(quantity)
        .map_err(|error| Why::new("InvalidResources", format!("{name} {:?}: {error}", quantity.0)))
}

fn too_much(name: &str, quantity: &ApiQuantity) -> Why {
    Why::new(
        "InvalidResources",
        format!(
            "{name} {:?} is more than an OpenSandbox server can count",
            quantity.0
        ),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(cpu: &str, memory: &str) -> Result<String, String> {
        let quantity = |text: &str| (!text.is_empty()).then(|| ApiQuantity(text.to_owned()));
        let quantities = ResourceQuantities {
            cpu: quantity(cpu),
            memory: quantity(memory),
        };
        amounts(Some(&quantities))
            .map(|amounts| amounts.into_values().collect::<Vec<_>>().join(" "))
            .map_err(|why| why.reason)
    }

    #[test]
    fn quantities_become_whole_millicores_and_bytes_and_never_less_than_was_asked_for() {
        for (cpu, memory, expected) in [
            ("", "", Ok("")),
            ("2", "1.5Gi", Ok("2000m 1610612736")),
            ("100u", "512m", Ok("10m 1")),
            ("9m", "", Ok("10m")),
            ("10001u", "", Ok("11m")),
            ("0", "", Ok("0m")),
            ("1k", "0.5Gi", Ok("1000000m 536870912")),
            ("0.1", "1e3", Ok("100m 1000")),
            ("1500m", "1E", Ok("1500m 1000000000000000000")),
            ("", "1e19", Err("InvalidResources")),
            ("1e18", "", Err("InvalidResources")),
            ("words", "", Err("InvalidResources")),
        ] {
            let expected = expected.map(str::to_owned).map_err(str::to_owned);
            assert_eq!(sent(cpu, memory), expected, "cpu {cpu:?}, memory {memory:?}");
        }
        assert_eq!(amounts(None), Ok(BTreeMap::new()));
    }
}
