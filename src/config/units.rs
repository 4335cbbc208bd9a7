//! Sizes and durations as people write them: `64MiB`, `100ms`.

use std::{fmt, time::Duration};

use serde::{de, Deserialize, Deserializer};

const SIZE_UNITS: [(&str, u64); 4] = [
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("B", 1),
];
/// Longer ones first: `ms` ends in `s`.
const TIME_UNITS: [(&str, u64); 4] = [("ms", 1), ("s", 1000), ("m", 60_000), ("h", 3_600_000)];

/// Reads a size with its unit: B, KiB, MiB or GiB. Without one it is bytes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    let expected =
        || format!("{text:?} is not a size; write one like 64MiB (units: B, KiB, MiB, GiB)");
    let (digits, factor) = split_unit(text, &SIZE_UNITS).unwrap_or((text, 1));
    number(digits)
        .and_then(|count| count.checked_mul(factor))
        .ok_or_else(expected)
}

/// Reads a duration with its unit: ms, s, m or h. Only 0 needs none.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let expected =
        || format!("{text:?} is not a duration; write one like 100ms or 30s (units: ms, s, m, h)");
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (digits, factor) = split_unit(text, &TIME_UNITS).ok_or_else(expected)?;
    number(digits)
        .and_then(|count| count.checked_mul(factor))
        .map(Duration::from_millis)
        .ok_or_else(expected)
}

fn split_unit<'a>(text: &'a str, units: &[(&str, u64)]) -> Option<(&'a str, u64)> {
    units
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)))
}

/// Digits only: no sign, no fraction.
fn number(digits: &str) -> Option<u64> {
    let all_digits = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    all_digits.then(|| digits.parse().ok()).flatten()
}

/// Writes a duration in the largest unit that takes it whole.
pub fn show_duration(duration: Duration) -> String {
    let ms = duration.as_millis();
    let units = TIME_UNITS.iter().rev();
    let whole = units.filter(|(_, factor)| ms > 0 && ms.is_multiple_of(u128::from(*factor)));
    match whole.max_by_key(|(_, factor)| *factor) {
        Some((unit, factor)) => format!("{}{unit}", ms / u128::from(*factor)),
        None => "0s".to_owned(),
    }
}

/// A size in a configuration file: text with its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size(pub u64);

/// A duration in a configuration file: text with its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Interval(pub Duration);

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SizeVisitor)
    }
}

impl<'de> Deserialize<'de> for Interval {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(IntervalVisitor)
    }
}

struct SizeVisitor;

impl de::Visitor<'_> for SizeVisitor {
    type Value = Size;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a size with its unit as text, like \"64MiB\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Size, E> {
        // In a file a bare number leaves open what was meant.
        if number(text).is_some_and(|count| count > 0) {
            return Err(E::custom(format!(
                "{text:?} has no unit; write it like \"64MiB\" (units: B, KiB, MiB, GiB)"
            )));
        }
        parse_size(text).map(Size).map_err(E::custom)
    }
}

struct IntervalVisitor;

impl de::Visitor<'_> for IntervalVisitor {
    type Value = Interval;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a duration with its unit as text, like \"100ms\"")
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Interval, E> {
        parse_duration(text).map(Interval).map_err(E::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_with_every_unit_and_without() {
        let cases = [
            ("0", 0),
            ("4096", 4096),
            ("7B", 7),
            ("2KiB", 2048),
            ("64MiB", 64 << 20),
            ("3GiB", 3 << 30),
        ];
        for (text, bytes) in cases {
            assert_eq!(parse_size(text), Ok(bytes), "{text}");
        }
    }

    #[test]
    fn wrong_sizes_are_refused_with_an_example() {
        let wrong = [
            "",
            "MiB",
            "-1MiB",
            "+1",
            "1.5MiB",
            "64MB",
            "64 MiB",
            "64mib",
            "1TiB",
            "١",
            "18446744073709551615KiB",
            "99999999999999999999",
        ];
        for text in wrong {
            let error = parse_size(text).unwrap_err();
            assert!(error.contains("like 64MiB"), "{text}: {error}");
        }
    }

    #[test]
    fn durations_read_with_every_unit_and_only_zero_without() {
        let cases = [
            ("0", 0),
            ("0s", 0),
            ("100ms", 100),
            ("30s", 30_000),
            ("2m", 120_000),
            ("1h", 3_600_000),
        ];
        for (text, ms) in cases {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(ms)),
                "{text}"
            );
        }
        for text in [
            "",
            "5",
            "ms",
            "-1s",
            "1.5s",
            "1 s",
            "5min",
            "1d",
            "99999999999999999h",
        ] {
            let error = parse_duration(text).unwrap_err();
            assert!(error.contains("like 100ms"), "{text}: {error}");
        }
    }

    #[test]
    fn durations_show_in_their_largest_whole_unit() {
        let cases = [
            (0, "0s"),
            (1, "1ms"),
            (1500, "1500ms"),
            (30_000, "30s"),
            (90_000, "90s"),
            (120_000, "2m"),
            (7_200_000, "2h"),
        ];
        for (ms, text) in cases {
            assert_eq!(show_duration(Duration::from_millis(ms)), text);
            if ms > 0 {
                assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)));
            }
        }
    }
}
