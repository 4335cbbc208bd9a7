//! Format numbers: telling the bytes of another version from damaged ones.
//!
//! Every file, and every batch, starts with a magic number and a format number.
//! Those two keep their places in all versions; whatever else a version changes
//! inside, it raises the number. So magic and number are looked at first, and
//! the checksum, which may be anywhere in another format, decides only one
//! thing: bytes that verify once the number is put right are this format's,
//! with a damaged number.
//!
//! Never: takes another version's bytes for damage, or for nothing.

use thiserror::Error;

/// Something is in a format that this program does not read.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{what} has format {format}, this program reads format {reads}")]
pub struct OtherFormat {
    /// The file, or the place in the log.
    pub what: String,
    pub format: u32,
    pub reads: u32,
}

/// The other format that `bytes` are in: `this` names what they would begin
/// with here, the number of `digits` bytes (little-endian) behind `magic`.
/// `verifies` checks all of them as this format.
pub(crate) fn other_format(
    bytes: &[u8],
    magic: &[u8],
    this: &[u8],
    verifies: impl FnOnce(&[u8]) -> bool,
) -> Option<u32> {
    let (start, rest) = bytes.split_at_checked(magic.len())?;
    let (number, rest) = rest.split_at_checked(this.len())?;
    if start != magic || number == this {
        return None;
    }
    let mended = [magic, this, rest].concat();
    if verifies(&mended) {
        return None;
    }
    let value = number
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | u32::from(*byte));
    Some(value)
}

/// As [`other_format`] for a magic number whose last digit is the format.
pub(crate) fn other_digit(
    bytes: &[u8],
    magic: &[u8],
    verifies: impl FnOnce(&[u8]) -> bool,
) -> Option<u32> {
    let (digit, name) = magic.split_last()?;
    let other = other_format(bytes, name, std::slice::from_ref(digit), verifies)?;
    // Anything but a digit there is no number of ours.
    other
        .checked_sub(u32::from(b'0'))
        .filter(|number| *number <= 9)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAGIC: &[u8] = b"MAGIC";
    const THIS: &[u8] = &[1, 0];

    fn of(bytes: &[u8]) -> Option<u32> {
        other_format(bytes, MAGIC, THIS, |bytes| bytes.ends_with(b"sum"))
    }

    #[test]
    fn another_number_is_named_wherever_its_checksum_stands() {
        assert_eq!(of(b"MAGIC\x02\x00body"), Some(2));
        assert_eq!(of(b"MAGIC\x01\x02body"), Some(0x0201));
    }

    #[test]
    fn this_format_damage_and_strangers_are_no_other_format() {
        assert_eq!(of(b"MAGIC\x01\x00body"), None, "this format");
        assert_eq!(of(b"MAGIC\x05\x00sum"), None, "only the number changed");
        assert_eq!(of(b"MAGIK\x02\x00body"), None);
        for len in 0..7 {
            assert_eq!(of(&b"MAGIC\x02\x00"[..len]), None);
        }
    }

    #[test]
    fn a_digit_of_the_magic_number_is_its_format() {
        let of = |bytes| other_digit(bytes, b"FILE1", |bytes| bytes.ends_with(b"sum"));
        assert_eq!(of(&b"FILE2body"[..]), Some(2));
        assert_eq!(of(&b"FILE1body"[..]), None);
        assert_eq!(of(&b"FILE2sum"[..]), None);
        assert_eq!(of(&b"FILEXbody"[..]), None);
    }
}
