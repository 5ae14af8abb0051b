//! The annotation by which a Job joins its caller's trace, against the grammar of the W3C read in another way.

use ayatori_controller::telemetry::Caller;

use crate::text;

pub(crate) fn check(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let caller = Caller::parse(text);
    assert_eq!(caller.is_some(), is_valid(text.as_bytes()), "{text:?}");
    let Some(caller) = caller else { return };
    let flags = u8::from_str_radix(&text[53..55], 16).expect("two digits");
    assert_eq!(caller.sampled, flags % 2 == 1);
    assert_eq!(
        format!(
            "{}-{}-{}-{}",
            &text[..2],
            caller.trace,
            caller.span,
            &text[53..55]
        ),
        text[..55]
    );
}

/// By the places of its characters: `VV-TTTTTTTTTTTTTTTTTTTTTTTTTTTTTTTT-SSSSSSSSSSSSSSSS-FF`, and in versions to come
/// `-` and more.
fn is_valid(text: &[u8]) -> bool {
    let Some((known, more)) = text.split_at_checked(55) else {
        return false;
    };
    let dashes = [2, 35, 52];
    let in_place = known.iter().enumerate().all(|(place, byte)| match byte {
        b'-' => dashes.contains(&place),
        byte => !dashes.contains(&place) && (byte.is_ascii_digit() || (b'a'..=b'f').contains(byte)),
    });
    let says_something = |digits: &[u8]| digits.iter().any(|digit| *digit != b'0');
    let ends = match &known[..2] {
        b"00" => more.is_empty(),
        b"ff" => false,
        _ => more.is_empty() || more[0] == b'-',
    };
    in_place && ends && says_something(&known[3..35]) && says_something(&known[36..52])
}
