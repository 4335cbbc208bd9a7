//! Values as they are typed on the command line, and as they are shown.

use std::time::Duration;

/// Payload sizes in bytes, both ends included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SizeRange {
    pub min: usize,
    pub max: usize,
}

/// The modes of the queues, taken in turn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Modes(pub Vec<wire::vocabulary::Mode>);

/// Records per burst, taken in turn.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Bursts(pub Vec<u64>);

/// Reads `250us`, `100ms`, `3s`, `1.5s`, `2m`.
///
/// # Errors
/// A sentence for the user.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let digits = text
        .find(|letter: char| !letter.is_ascii_digit() && letter != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let wrong = || format!("\"{text}\" is not a duration; write for example 250us, 100ms, 3s, 2m");
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit {
        "us" => number / 1e6,
        "ms" => number / 1e3,
        "s" => number,
        "m" => number * 60.0,
        _ => return Err(wrong()),
    };
    if !(0.0..=1e6).contains(&seconds) {
        return Err(wrong());
    }
    Ok(Duration::from_secs_f64(seconds))
}

/// Reads `1024` or `100-4000`. Every payload carries its trace header, so the
/// smallest size is [`crate::payload::HEADER_BYTES`].
///
/// # Errors
/// A sentence for the user.
pub fn parse_size(text: &str) -> Result<SizeRange, String> {
    let number = |part: &str| {
        part.parse::<usize>()
            .map_err(|_| format!("\"{text}\" is not a size; write 1024 or 100-4000 (bytes)"))
    };
    let (min, max) = match text.split_once('-') {
        Some((min, max)) => (number(min)?, number(max)?),
        None => (number(text)?, number(text)?),
    };
    let least = crate::payload::HEADER_BYTES;
    if min < least {
        return Err(format!(
            "a payload has at least {least} bytes: it carries run, producer, sequence and intended time"
        ));
    }
    if max < min || max > wire::limits::MAX_RECORD_BYTES as usize {
        return Err(format!(
            "sizes go from small to large, up to {} bytes",
            wire::limits::MAX_RECORD_BYTES
        ));
    }
    Ok(SizeRange { min, max })
}

/// Reads `200,100`: records per burst, taken in turn.
///
/// # Errors
/// A sentence for the user.
pub fn parse_bursts(text: &str) -> Result<Bursts, String> {
    let sizes: Option<Vec<u64>> = text
        .split(',')
        .map(|part| part.trim().parse().ok().filter(|size| *size > 0))
        .collect();
    sizes.map(Bursts).ok_or_else(|| {
        format!("\"{text}\" is not a list of burst sizes; write for example 200,100")
    })
}

/// Reads one mode, or several that the queues take in turn.
///
/// # Errors
/// A sentence for the user.
pub fn parse_modes(text: &str) -> Result<Modes, String> {
    let modes: Option<Vec<_>> = text
        .split(',')
        .map(|name| wire::vocabulary::Mode::from_name(name.trim()))
        .collect();
    modes
        .map(Modes)
        .ok_or_else(|| format!("\"{text}\" is not a mode; write durable, buffered or speculative"))
}

/// Reads a rate in records per second: `10000`, `10k`, `1.2M`, `0.5`.
///
/// # Errors
/// A sentence for the user.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    let (number, factor) = match text.strip_suffix(['k', 'K']) {
        Some(number) => (number, 1e3),
        None => match text.strip_suffix('M') {
            Some(number) => (number, 1e6),
            None => (text, 1.0),
        },
    };
    match number.parse::<f64>() {
        Ok(rate) if rate > 0.0 && rate * factor <= 1e9 => Ok(rate * factor),
        _ => Err(format!(
            "\"{text}\" is not a rate; write records per second, for example 10000 or 10k"
        )),
    }
}

/// Nanoseconds as microseconds for people: three significant digits and more.
pub fn show_us(ns: u64) -> String {
    let us = ns as f64 / 1e3;
    match us {
        us if us < 10.0 => format!("{us:.2}"),
        us if us < 100.0 => format!("{us:.1}"),
        _ => group_thousands(us.round() as u64),
    }
}

/// `1 234 567`.
pub fn group_thousands(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_need_a_unit() {
        assert_eq!(parse_duration("100ms"), Ok(Duration::from_millis(100)));
        assert_eq!(parse_duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_duration("2m"), Ok(Duration::from_secs(120)));
        assert_eq!(parse_duration("250us"), Ok(Duration::from_micros(250)));
        for wrong in ["", "3", "s", "-1s", "1h", "1.2.3s", "99999999s", "NaNs"] {
            assert!(parse_duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_hold_the_trace_header_and_stay_below_the_record_limit() {
        let range = |min, max| Ok(SizeRange { min, max });
        assert_eq!(parse_size("1024"), range(1024, 1024));
        assert_eq!(parse_size("100-4000"), range(100, 4000));
        for wrong in ["", "8", "x", "100-50", "1024-", "9000000"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn rates_bursts_and_modes_read_as_typed() {
        assert_eq!(parse_rate("10k"), Ok(10_000.0));
        assert_eq!(parse_rate("1.2M"), Ok(1_200_000.0));
        assert_eq!(parse_rate("0.5"), Ok(0.5));
        assert!(["0", "-3", "k", "inf", ""]
            .iter()
            .all(|text| parse_rate(text).is_err()));
        assert_eq!(parse_bursts("200,100"), Ok(Bursts(vec![200, 100])));
        assert!(["", "0", "1,,2"]
            .iter()
            .all(|text| parse_bursts(text).is_err()));
        assert_eq!(parse_modes("durable,buffered").unwrap().0.len(), 2);
        assert!(parse_modes("fast").is_err());
    }

    #[test]
    fn thousands_are_grouped() {
        assert_eq!(group_thousands(0), "0");
        assert_eq!(group_thousands(999), "999");
        assert_eq!(group_thousands(1_234_567), "1 234 567");
    }
}
