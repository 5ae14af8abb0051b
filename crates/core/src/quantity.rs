//! The exact value of a Kubernetes quantity such as `250m`, `1.5Gi` or `1e3`.
//!
//! The grammar, the rounding and the cap are those of `resource.Quantity` in
//! `k8s.io/apimachinery`, so that a value means here what it means to the API server. Where Go
//! turns a slip into another number without a word, this type refuses the text or stays exact:
//!
//! | text | Go | here |
//! | --- | --- | --- |
//! | no digit at all: `Gi`, `-`, `.`, `e3` | zero | an error |
//! | exponent beyond 32 bits: `1e4294967296` | the exponent wraps, here to 0 | an error |
//! | more than `E` can carry: `1000E` | kept exact, but printed as `1` | printed as `1000E` |
//! | some numbers below zero as integers, `Value()` of `-9Pi` | -7493989778 | -10133099161583616, away from zero like all others |
//!
//! Numbers are kept as decimal digits and the place of the point. Parsing and comparing therefore
//! cost no more than the text is long, whatever its exponent says; with big integers `1e999999999`
//! would need half a gigabyte.

use std::cmp::Ordering;
use std::fmt;
use std::num::IntErrorKind;
use std::str::FromStr;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;

/// A parsed quantity: compared as a number, displayed as it was written.
///
/// ```
/// use ayatori_core::quantity::Quantity;
///
/// let written: Quantity = "1024Mi".parse()?;
/// assert_eq!(written, "1Gi".parse()?);
/// assert_eq!(written.to_string(), "1024Mi");
/// assert_eq!(written.canonical(), "1Gi");
/// # Ok::<(), ayatori_core::quantity::ParseQuantityError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Quantity {
    written: String,
    notation: Notation,
    /// Never set for zero.
    negative: bool,
    magnitude: Magnitude,
}

/// Why a text is not a quantity. The message does not repeat the text, which may be long.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseQuantityError {
    /// There is no digit where the number should be.
    #[error("a quantity starts with a number, such as 250m, 0.5 or 1.5Gi")]
    NoNumber,
    /// The number is followed by something that is not a suffix.
    #[error(
        "after the number only a suffix may follow: one of n, u, m, k, M, G, T, P, E, \
         Ki, Mi, Gi, Ti, Pi, Ei, or an exponent such as e3"
    )]
    UnknownSuffix,
    /// The decimal exponent does not fit in 32 bits.
    #[error("the exponent is too large")]
    ExponentTooLarge,
}

/// Which kind of suffix a quantity was written with; its canonical form keeps it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notation {
    /// `1500m`, `2`, `3k`
    Decimal,
    /// `15e2`
    Exponent,
    /// `512Mi`
    Binary,
}

const DECIMAL_SUFFIXES: [(&str, i64); 10] = [
    ("n", -9),
    ("u", -6),
    ("m", -3),
    ("", 0),
    ("k", 3),
    ("M", 6),
    ("G", 9),
    ("T", 12),
    ("P", 15),
    ("E", 18),
];

/// Each one is 1024 times the one before it; the first is no suffix.
const BINARY_SUFFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// The largest power of ten that has a suffix.
const EXA: i64 = 18;

/// Kubernetes knows nothing smaller than a billionth.
const NANO_PLACES: i64 = 9;

impl Quantity {
    /// Whether the value is below zero.
    pub fn is_negative(&self) -> bool {
        self.negative
    }

    /// Whether the value is zero, however it was written (`0`, `-0`, `0.0Gi`).
    pub fn is_zero(&self) -> bool {
        self.magnitude.is_zero()
    }

    /// The value in thousandths (millicores, for CPU), rounded up in magnitude; `None` if that is
    /// beyond 64 bits.
    pub fn to_millis_rounded_up(&self) -> Option<i64> {
        self.to_integer_rounded_up(3)
    }

    /// The value as an integer (bytes, for memory), rounded up in magnitude; `None` if that is
    /// beyond 64 bits.
    pub fn to_bytes_rounded_up(&self) -> Option<i64> {
        self.to_integer_rounded_up(0)
    }

    /// The shortest way to write this value exactly without a decimal point, in the notation it
    /// came in: `1.5` is `1500m`, `1024Ki` is `1Mi`, `1500e1` is `15e3`.
    ///
    /// This is what Go's `CanonicalizeBytes` gives. (Go's `String()` mostly gives the same, but
    /// returns some texts untouched, `+1` and `1.500` among them.) A binary quantity that is not a
    /// whole number of at least 1024 becomes a decimal one, as it does in Go; and so does, once it is read again, one
    /// that 1024 does not divide, since nothing follows its number.
    pub fn canonical(&self) -> String {
        if self.is_zero() {
            return "0".to_owned();
        }
        let sign = if self.negative { "-" } else { "" };
        let (number, suffix) = self.canonical_parts();
        format!("{sign}{number}{suffix}")
    }

    fn canonical_parts(&self) -> (String, String) {
        match self.notation {
            Notation::Binary => self.magnitude.in_binary_units().map_or_else(
                || self.magnitude.in_decimal_units(),
                |(number, suffix)| (number.to_string(), suffix.to_owned()),
            ),
            Notation::Decimal => self.magnitude.in_decimal_units(),
            Notation::Exponent => {
                let (number, exponent) = self.magnitude.in_thousands(i32::MAX.into());
                let suffix = match exponent {
                    0 => String::new(),
                    exponent => format!("e{exponent}"),
                };
                (number, suffix)
            }
        }
    }

    fn to_integer_rounded_up(&self, places: i64) -> Option<i64> {
        let magnitude = i128::from(self.magnitude.to_integer_rounded_up(places)?);
        i64::try_from(if self.negative { -magnitude } else { magnitude }).ok()
    }
}

impl FromStr for Quantity {
    type Err = ParseQuantityError;

    fn from_str(written: &str) -> Result<Self, Self::Err> {
        let (minus, unsigned) = match written.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, written.strip_prefix('+').unwrap_or(written)),
        };
        let (whole, rest) = split_digits(unsigned);
        let (fraction, suffix) = match rest.strip_prefix('.') {
            Some(rest) => split_digits(rest),
            None => ("", rest),
        };
        if whole.is_empty() && fraction.is_empty() {
            return Err(ParseQuantityError::NoNumber);
        }
        let (notation, unit) = parse_suffix(suffix)?;
        let magnitude = Magnitude::from_text(whole, fraction)
            .in_unit(unit)
            .rounded_up(NANO_PLACES);
        let magnitude = match notation {
            // Go caps only what has a binary suffix: 16Ei is 2^63-1, yet 1e30 is 1e30.
            Notation::Binary => magnitude.min(Magnitude::from(i64::MAX.unsigned_abs())),
            Notation::Decimal | Notation::Exponent => magnitude,
        };
        Ok(Self {
            written: written.to_owned(),
            notation,
            negative: minus && !magnitude.is_zero(),
            magnitude,
        })
    }
}

impl TryFrom<&ApiQuantity> for Quantity {
    type Error = ParseQuantityError;

    fn try_from(quantity: &ApiQuantity) -> Result<Self, Self::Error> {
        quantity.0.parse()
    }
}

impl From<&Quantity> for ApiQuantity {
    fn from(quantity: &Quantity) -> Self {
        Self(quantity.written.clone())
    }
}

impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.written)
    }
}

impl PartialEq for Quantity {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Quantity {}

impl PartialOrd for Quantity {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Quantity {
    fn cmp(&self, other: &Self) -> Ordering {
        match (self.negative, other.negative) {
            (false, false) => self.magnitude.cmp(&other.magnitude),
            (true, true) => other.magnitude.cmp(&self.magnitude),
            (false, true) => Ordering::Greater,
            (true, false) => Ordering::Less,
        }
    }
}

/// What a number is multiplied by.
#[derive(Clone, Copy)]
enum Unit {
    PowerOfTen(i64),
    Factor(u64),
}

fn parse_suffix(suffix: &str) -> Result<(Notation, Unit), ParseQuantityError> {
    // The tables come first: `1E` is exa, only `1E3` has an exponent.
    if let Some((_, power)) = DECIMAL_SUFFIXES.iter().find(|(name, _)| *name == suffix) {
        return Ok((Notation::Decimal, Unit::PowerOfTen(*power)));
    }
    if let Some(steps) = BINARY_SUFFIXES.iter().position(|name| *name == suffix) {
        return Ok((Notation::Binary, Unit::Factor(1 << (10 * steps))));
    }
    let power = suffix
        .strip_prefix(['e', 'E'])
        .ok_or(ParseQuantityError::UnknownSuffix)?
        .parse::<i32>()
        .map_err(|error| match error.kind() {
            IntErrorKind::PosOverflow | IntErrorKind::NegOverflow => ParseQuantityError::ExponentTooLarge,
            _ => ParseQuantityError::UnknownSuffix,
        })?;
    Ok((Notation::Exponent, Unit::PowerOfTen(power.into())))
}

fn split_digits(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit());
    text.split_at(end.unwrap_or(text.len()))
}

/// An exact number of at least zero: `0.DIGITS × 10^point`.
///
/// The digits neither start nor end with a zero, and zero has none and the lowest point there is.
/// So equal numbers are equal field by field, and the order of the fields is that of the numbers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Magnitude {
    point: i64,
    digits: Vec<u8>,
}

impl Magnitude {
    fn normalised(point: i64, mut digits: Vec<u8>) -> Self {
        let Some(first) = digits.iter().position(|digit| *digit != 0) else {
            return Self {
                point: i64::MIN,
                digits: Vec::new(),
            };
        };
        let significant = digits.iter().rposition(|digit| *digit != 0).unwrap_or(first);
        digits.truncate(significant + 1);
        digits.drain(..first);
        Self {
            point: point - length(first),
            digits,
        }
    }

    /// `whole` and `fraction` hold ASCII digits only.
    fn from_text(whole: &str, fraction: &str) -> Self {
        let digits = whole.bytes().chain(fraction.bytes());
        Self::normalised(
            length(whole.len()),
            digits.map(|byte| byte.wrapping_sub(b'0')).collect(),
        )
    }

    fn is_zero(&self) -> bool {
        self.digits.is_empty()
    }

    fn in_unit(self, unit: Unit) -> Self {
        match unit {
            _ if self.is_zero() => self,
            Unit::PowerOfTen(power) => Self {
                point: self.point + power,
                digits: self.digits,
            },
            Unit::Factor(factor) => self.times(factor),
        }
    }

    /// Long multiplication, from the last digit to the first.
    fn times(&self, factor: u64) -> Self {
        let mut product = Vec::with_capacity(self.digits.len() + 20);
        let mut carry = 0_u128;
        for digit in self.digits.iter().rev() {
            carry += u128::from(*digit) * u128::from(factor);
            product.push((carry % 10) as u8);
            carry /= 10;
        }
        while carry > 0 {
            product.push((carry % 10) as u8);
            carry /= 10;
        }
        product.reverse();
        let grown = length(product.len()) - length(self.digits.len());
        Self::normalised(self.point + grown, product)
    }

    /// The next number up that has at most this many decimal places.
    fn rounded_up(self, places: i64) -> Self {
        if self.is_zero() || self.point + places >= length(self.digits.len()) {
            return self;
        }
        // The digits end with a non-zero one, so cutting any of them off always leaves a remainder.
        let kept = usize::try_from(self.point + places).unwrap_or(0);
        let mut digits = self.digits;
        digits.truncate(kept);
        while digits.last() == Some(&9) {
            digits.pop();
        }
        match digits.last_mut() {
            Some(last) => {
                *last += 1;
                Self {
                    point: self.point,
                    digits,
                }
            }
            None => Self {
                point: self.point.max(-places) + 1,
                digits: vec![1],
            },
        }
    }

    /// `self × 10^places` as an integer, rounded up; `None` beyond 64 bits.
    fn to_integer_rounded_up(&self, places: i64) -> Option<u64> {
        if self.is_zero() {
            return Some(0);
        }
        let rounded = self.clone().rounded_up(places);
        let zeros = rounded.point + places - length(rounded.digits.len());
        let digits = rounded.digits.iter().try_fold(0_u64, |number, digit| {
            number.checked_mul(10)?.checked_add(u64::from(*digit))
        })?;
        digits.checked_mul(10_u64.checked_pow(u32::try_from(zeros).ok()?)?)
    }

    /// As a whole number of the largest binary unit, if it is a whole number of at least 1024.
    fn in_binary_units(&self) -> Option<(u64, &'static str)> {
        if self.point < length(self.digits.len()) {
            return None;
        }
        let mut number = self.to_integer_rounded_up(0).filter(|n| *n >= 1024)?;
        let mut suffixes = BINARY_SUFFIXES.iter();
        let mut suffix = suffixes.next()?;
        while number % 1024 == 0 {
            suffix = suffixes.next()?;
            number /= 1024;
        }
        Some((number, suffix))
    }

    fn in_decimal_units(&self) -> (String, String) {
        let (number, exponent) = self.in_thousands(EXA);
        let suffix = DECIMAL_SUFFIXES
            .iter()
            .find(|(_, power)| *power == exponent)
            .map_or("", |(name, _)| *name);
        (number, suffix.to_owned())
    }

    /// As a whole number times the largest power of a thousand, and of at most `10^limit`.
    fn in_thousands(&self, limit: i64) -> (String, i64) {
        let smallest = self.point - length(self.digits.len());
        let exponent = (smallest - smallest.rem_euclid(3)).min(limit);
        let zeros = usize::try_from(smallest - exponent).unwrap_or(0);
        let digits = self.digits.iter().map(|digit| char::from(b'0' + digit));
        let number = digits.chain(std::iter::repeat_n('0', zeros)).collect();
        (number, exponent)
    }
}

impl From<u64> for Magnitude {
    fn from(number: u64) -> Self {
        Self::from_text(&number.to_string(), "")
    }
}

/// A count of digits, as the signed number that a place is.
fn length(digits: usize) -> i64 {
    i64::try_from(digits).expect("no text is longer than 2^63 bytes")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quantity(text: &str) -> Quantity {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    /// Answers of `k8s.io/apimachinery` v0.35.4: the canonical form, or `None` for an error.
    const FROM_GO: &[(&str, Option<&str>)] = &[
        ("0", Some("0")),
        ("-0", Some("0")),
        ("+0", Some("0")),
        ("00", Some("0")),
        ("0.0", Some("0")),
        ("0Gi", Some("0")),
        ("0e5", Some("0")),
        (".0", Some("0")),
        ("1", Some("1")),
        ("+1", Some("1")),
        ("-1", Some("-1")),
        ("007", Some("7")),
        ("1.", Some("1")),
        ("5.", Some("5")),
        (".5", Some("500m")),
        ("0.1", Some("100m")),
        ("1.5", Some("1500m")),
        ("-1.5", Some("-1500m")),
        ("1.500", Some("1500m")),
        ("1.50", Some("1500m")),
        ("100", Some("100")),
        ("1000", Some("1k")),
        ("1500", Some("1500")),
        ("1000000", Some("1M")),
        ("1234567", Some("1234567")),
        ("100m", Some("100m")),
        ("0.1m", Some("100u")),
        ("250m", Some("250m")),
        ("1000m", Some("1")),
        ("1500m", Some("1500m")),
        ("2000m", Some("2")),
        ("-100m", Some("-100m")),
        ("1n", Some("1n")),
        ("0.1n", Some("1n")),
        ("0.5n", Some("1n")),
        ("-0.1n", Some("-1n")),
        ("1u", Some("1u")),
        ("1500u", Some("1500u")),
        ("0.0001u", Some("1n")),
        ("1k", Some("1k")),
        ("1000k", Some("1M")),
        ("1500k", Some("1500k")),
        ("1.5k", Some("1500")),
        ("1M", Some("1M")),
        ("1G", Some("1G")),
        ("1T", Some("1T")),
        ("1P", Some("1P")),
        ("1E", Some("1E")),
        ("9E", Some("9E")),
        ("1Ki", Some("1Ki")),
        ("1Mi", Some("1Mi")),
        ("1Gi", Some("1Gi")),
        ("1Ti", Some("1Ti")),
        ("1Pi", Some("1Pi")),
        ("1Ei", Some("1Ei")),
        ("7Ei", Some("7Ei")),
        ("8Ei", Some("9223372036854775807")),
        ("16Ei", Some("9223372036854775807")),
        ("-16Ei", Some("-9223372036854775807")),
        ("7.99999999999999999999Ei", Some("9223372036854775807")),
        ("1024Ki", Some("1Mi")),
        ("1024Mi", Some("1Gi")),
        ("1025Mi", Some("1025Mi")),
        ("1000Ki", Some("1000Ki")),
        ("512Ki", Some("512Ki")),
        ("0.5Gi", Some("512Mi")),
        ("1.5Gi", Some("1536Mi")),
        (".5Gi", Some("512Mi")),
        ("5.Gi", Some("5Gi")),
        ("1.0Gi", Some("1Gi")),
        ("1.2Ki", Some("1228800m")),
        ("1.1Mi", Some("1153433600m")),
        ("0.5Ki", Some("512")),
        ("0.0001Ki", Some("102400u")),
        ("1.953125Ki", Some("2000")),
        ("9999999937.5Ki", Some("10239999936000")),
        ("-0.5Gi", Some("-512Mi")),
        ("-1.2Ki", Some("-1228800m")),
        ("1e3", Some("1e3")),
        ("1E3", Some("1e3")),
        ("1e+3", Some("1e3")),
        ("1e-3", Some("1e-3")),
        ("1e03", Some("1e3")),
        ("12e-1", Some("1200e-3")),
        ("1.5e3", Some("1500")),
        ("1e0", Some("1")),
        ("1e1", Some("10")),
        ("1e2", Some("100")),
        ("100e1", Some("1e3")),
        ("1500e3", Some("1500e3")),
        ("3145728e3", Some("3145728e3")),
        ("1e-9", Some("1e-9")),
        ("1e-10", Some("1e-9")),
        ("-1e-10", Some("-1e-9")),
        ("1e9", Some("1e9")),
        ("1e18", Some("1e18")),
        ("1e30", Some("1e30")),
        ("1e100", Some("10e99")),
        ("1234567890123456789e100", Some("12345678901234567890e99")),
        ("9223372036854775807", Some("9223372036854775807")),
        ("9223372036854775808", Some("9223372036854775808")),
        ("-9223372036854775808", Some("-9223372036854775808")),
        ("9223372036854775807Ki", Some("9223372036854775807")),
        ("0.1234567891", Some("123456790n")),
        ("0.123456789123456789123456789123456789abcd", None),
        ("0.1234567891234567891234567891234567891234", Some("123456790n")),
        ("999999999.9999999999", Some("1G")),
        (
            "1111111111111111111111111111111111111111",
            Some("1111111111111111111111111111111111111111"),
        ),
        ("0.9999999995", Some("1")),
        ("e", None),
        ("1e", None),
        ("1e+", None),
        ("1e-", None),
        ("1e1.5", None),
        ("1e1e1", None),
        ("1ee3", None),
        ("1e99999999999999999999", None),
        ("1K", None),
        ("1KB", None),
        ("1kB", None),
        ("1mi", None),
        ("1gi", None),
        ("1i", None),
        ("1ki", None),
        ("1Kii", None),
        ("1 Gi", None),
        (" 1", None),
        ("1 ", None),
        ("1_000", None),
        ("1,5", None),
        ("0x10", None),
        ("0b1", None),
        ("--1", None),
        ("+-1", None),
        ("++1", None),
        ("1.1.1", None),
        ("1..1", None),
        (".1.", None),
        ("1+1", None),
        ("1-", None),
        ("1Ki3", None),
        ("1m3", None),
        ("1nm", None),
        ("abc", None),
        ("1μ", None),
        ("١", None),
        ("Infinity", None),
        ("NaN", None),
        ("null", None),
        ("", None),
    ];

    #[test]
    fn a_text_means_what_it_means_to_apimachinery() {
        for (text, expected) in FROM_GO {
            let canonical = text.parse::<Quantity>().ok().map(|value| value.canonical());
            assert_eq!(canonical.as_deref(), *expected, "{text:?}");
        }
    }

    /// Go takes every one of them for zero, or for another number than it says.
    #[test]
    fn a_slip_that_go_reads_as_another_number_is_an_error() {
        use ParseQuantityError::{ExponentTooLarge, NoNumber};
        for (text, expected) in [
            ("Gi", NoNumber),
            ("k", NoNumber),
            ("E", NoNumber),
            ("e3", NoNumber),
            (".", NoNumber),
            (".Gi", NoNumber),
            ("-", NoNumber),
            ("+", NoNumber),
            ("-Mi", NoNumber),
            ("1e2147483648", ExponentTooLarge),
            ("1e-2147483649", ExponentTooLarge),
            ("1e4294967296", ExponentTooLarge),
        ] {
            assert_eq!(text.parse::<Quantity>(), Err(expected), "{text}");
        }
    }

    #[test]
    fn a_number_beyond_the_largest_suffix_keeps_its_value_in_canonical_form() {
        for (text, expected) in [
            ("1000E", "1000E"),
            ("-1000000P", "-1000E"),
            ("1000000000000000000000000000000", "1000000000000E"),
        ] {
            assert_eq!(quantity(text).canonical(), expected);
        }
    }

    #[test]
    fn integers_are_rounded_up_in_magnitude_and_absent_beyond_64_bits() {
        const MAX: i64 = i64::MAX;
        for (text, bytes, millis) in [
            ("0", Some(0), Some(0)),
            ("-0", Some(0), Some(0)),
            ("1", Some(1), Some(1000)),
            ("1.5", Some(2), Some(1500)),
            ("-1.5", Some(-2), Some(-1500)),
            ("-0.0001Ki", Some(-1), Some(-103)),
            ("100m", Some(1), Some(100)),
            ("0.1m", Some(1), Some(1)),
            ("1n", Some(1), Some(1)),
            ("0.0000000001", Some(1), Some(1)),
            ("1e-99999", Some(1), Some(1)),
            ("1500u", Some(1), Some(2)),
            ("999999999n", Some(1), Some(1000)),
            ("9.9995", Some(10), Some(10_000)),
            ("0.5Gi", Some(536_870_912), Some(536_870_912_000)),
            ("1.5Gi", Some(1_610_612_736), Some(1_610_612_736_000)),
            (".5Gi", Some(536_870_912), Some(536_870_912_000)),
            ("5.Gi", Some(5_368_709_120), Some(5_368_709_120_000)),
            ("1.2Ki", Some(1229), Some(1_228_800)),
            ("1e3", Some(1000), Some(1_000_000)),
            ("12e-1", Some(2), Some(1200)),
            ("1E", Some(1_000_000_000_000_000_000), None),
            ("16Ei", Some(MAX), None),
            ("9223372036854775807", Some(MAX), None),
            ("9223372036854775808", None, None),
            ("-9223372036854775808", Some(i64::MIN), None),
            ("-9223372036854775809", None, None),
            ("9223372036854775807m", Some(9_223_372_036_854_776), Some(MAX)),
            ("9223372036854775808m", Some(9_223_372_036_854_776), None),
            ("18446744073709551616", None, None),
            ("1e30", None, None),
            ("1e999999999", None, None),
        ] {
            assert_eq!(quantity(text).to_bytes_rounded_up(), bytes, "{text}");
            assert_eq!(quantity(text).to_millis_rounded_up(), millis, "{text}");
        }
    }

    #[test]
    fn quantities_are_ordered_as_numbers_whatever_they_look_like() {
        let ascending = [
            &["-1e999999999"][..],
            &["-1Gi", "-1024Mi"],
            &["-1", "-1000m"],
            &["-1n", "-0.1n", "-1e-999999999"],
            &["0", "-0", "+0", "0.00Gi", "0e999999999"],
            &["1n", "0.1n", "1e-9", "1e-999999999"],
            &["999m", "0.999"],
            &["1", "+1", "1.0", "01", "1000m", "1e0", "10e-1", "0.001k"],
            &["1001m"],
            &["2"],
            &["10", "1e1"],
            &["1000", "1k", "1e3", "1E3"],
            &["1024", "1Ki"],
            &["1e9", "1G"],
            &["1Gi", "1024Mi", "1073741824"],
            &["1E", "1000P", "1e18"],
            &["1Ei", "1152921504606846976"],
            &["9223372036854775807", "8Ei", "16Ei"],
            &["9223372036854775808"],
            &["1e30", "1000000000000E"],
            &["1e999999999"],
            &["1.1e999999999"],
        ];
        let ranked = || {
            let texts = ascending.iter().enumerate();
            texts.flat_map(|(rank, texts)| texts.iter().map(move |text| (rank, *text)))
        };
        for (left_rank, left) in ranked() {
            for (right_rank, right) in ranked() {
                let order = quantity(left).cmp(&quantity(right));
                assert_eq!(order, left_rank.cmp(&right_rank), "{left} against {right}");
            }
        }
    }

    #[test]
    fn a_quantity_is_displayed_as_it_was_written() {
        for text in ["1024Mi", "+1", "1.500", "007", "1E3", "5.Gi"] {
            assert_eq!(quantity(text).to_string(), text);
            assert_eq!(ApiQuantity::from(&quantity(text)).0, text);
        }
    }

    #[test]
    fn only_what_is_below_zero_is_negative() {
        for (text, negative, zero) in [
            ("-1n", true, false),
            ("-0.0000000001", true, false),
            ("-0", false, true),
            ("-0Gi", false, true),
            ("0", false, true),
            ("1n", false, false),
        ] {
            assert_eq!(quantity(text).is_negative(), negative, "{text}");
            assert_eq!(quantity(text).is_zero(), zero, "{text}");
        }
    }

    #[test]
    fn an_error_says_what_may_follow_the_number() {
        let error = "1KB".parse::<Quantity>().expect_err("K is not a suffix");
        assert!(error.to_string().contains("Ki, Mi, Gi"), "{error}");
    }

    const SUFFIXES: [&str; 21] = [
        "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei", "e0", "E3",
        "e-7", "e+20", "e50",
    ];

    fn well_formed() -> impl Strategy<Value = String> {
        let number = r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})";
        (number, proptest::sample::select(&SUFFIXES[..])).prop_map(|(number, suffix)| number + suffix)
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in r"\PC*|[-+.0-9eEimnukKMGTP]{0,60}") {
            if let Ok(value) = text.parse::<Quantity>() {
                value.canonical();
                value.to_bytes_rounded_up();
                value.to_millis_rounded_up();
                prop_assert_eq!(&value, &value.clone());
            }
        }

        #[test]
        fn the_canonical_form_has_the_same_value_and_is_its_own_canonical_form(text in well_formed()) {
            let value = quantity(&text);
            let canonical = quantity(&value.canonical());
            prop_assert_eq!(&canonical, &value);
            let again = quantity(&canonical.canonical());
            prop_assert_eq!(again.canonical(), canonical.canonical());
            if canonical.notation == value.notation {
                prop_assert_eq!(canonical.canonical(), value.canonical());
            }
        }

        #[test]
        fn the_order_is_that_of_the_numbers(left: i64, right: i64, near in -2_i64..=2) {
            for right in [right, left.saturating_add(near)] {
                let (nano, exponent) = (format!("{left}n"), format!("{right}e-9"));
                prop_assert_eq!(quantity(&nano).cmp(&quantity(&exponent)), left.cmp(&right));
            }
        }

        #[test]
        fn what_fits_64_bits_is_exact(number: i64) {
            prop_assert_eq!(quantity(&number.to_string()).to_bytes_rounded_up(), Some(number));
            prop_assert_eq!(quantity(&format!("{number}m")).to_millis_rounded_up(), Some(number));
        }

        #[test]
        fn a_binary_suffix_multiplies_exactly(number in 0_u32.., thousandths in 0_u32..1000) {
            let value = quantity(&format!("{number}.{thousandths:03}Mi"));
            let thousandths = (i64::from(number) * 1000 + i64::from(thousandths)) << 20;
            prop_assert_eq!(value.to_millis_rounded_up(), Some(thousandths));
        }
    }
}
