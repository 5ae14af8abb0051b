//! What the documents say that commands print, compared with what they do print.

/// Stands in a document for lines that are left out.
const LEFT_OUT: &str = "…";

/// The first line that is shown and was not printed, or not in this order.
pub(crate) fn missing<'a>(shown: &'a str, printed: &str) -> Option<&'a str> {
    let mut lines = printed.lines().map(stable);
    shown
        .lines()
        .filter(|line| line.trim() != LEFT_OUT)
        .find(|line| !lines.any(|printed| printed == stable(line)))
}

/// A text as one line.
pub(crate) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// A line without what is another each time: times, ages, UIDs, and how wide columns are.
fn stable(line: &str) -> String {
    let words: Vec<_> = line.split_whitespace().map(stable_word).collect();
    words.join(" ")
}

fn stable_word(word: &str) -> &str {
    let is_hex = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_hexdigit());
    let parts: Vec<_> = word.split('-').collect();
    let is_uid = parts.iter().map(|part| part.len()).eq([8, 4, 4, 4, 12]) && parts.iter().all(|p| is_hex(p));
    let is_age = word.starts_with(|c: char| c.is_ascii_digit())
        && word.ends_with(['s', 'm', 'h', 'd'])
        && word.chars().all(|c| c.is_ascii_digit() || "smhd".contains(c));
    let is_time = word.len() == 20 && word.ends_with('Z') && word.contains('T') && word.contains(':');
    match word {
        _ if is_uid => "UID",
        _ if is_time => "TIME",
        _ if is_age => "AGE",
        _ => word,
    }
}

#[test]
fn what_is_another_each_time_is_not_compared() {
    let shown = "NAME   STATE   AGE\nhello  Failed  4s\n2026-11-29T15:10:02Z\n…\nexecution 0ccb7041-d2ce-4a66-b742-b23d02e57ab1\n";
    let printed = "NAME STATE AGE\nother Failed 1s\nhello Failed 2m3s\n2027-01-01T00:00:00Z\nexecution 11111111-d2ce-4a66-b742-b23d02e57ab1";
    assert_eq!(missing(shown, printed), None);
    assert_eq!(missing("hello Succeeded 4s", printed), Some("hello Succeeded 4s"));
    assert_eq!(
        missing("hello Failed 1s\nNAME STATE AGE", printed),
        Some("NAME STATE AGE")
    );
}
