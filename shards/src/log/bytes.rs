//! Little-endian fields at fixed places of a header.

pub(crate) fn get_u16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(get(bytes, at)?))
}

pub(crate) fn get_u32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(get(bytes, at)?))
}

pub(crate) fn get_u64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(get(bytes, at)?))
}

pub(crate) fn get_u128(bytes: &[u8], at: usize) -> Option<u128> {
    Some(u128::from_le_bytes(get(bytes, at)?))
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

/// Whether every byte is zero.
pub(crate) fn all_zero(bytes: &[u8]) -> bool {
    static ZEROS: [u8; 4096] = [0; 4096];
    bytes
        .chunks(ZEROS.len())
        .all(|chunk| ZEROS.get(..chunk.len()) == Some(chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_beyond_the_end_are_absent() {
        let bytes = [1, 0, 0, 0, 2, 0, 0, 0];
        assert_eq!(get_u32(&bytes, 4), Some(2));
        assert_eq!(get_u32(&bytes, 5), None);
        assert_eq!(get_u64(&bytes, usize::MAX), None);
    }

    #[test]
    fn one_set_byte_is_seen_anywhere() {
        let mut bytes = vec![0u8; 10_000];
        assert!(all_zero(&bytes));
        for at in [0, 4095, 4096, 9_999] {
            bytes[at] = 1;
            assert!(!all_zero(&bytes));
            bytes[at] = 0;
        }
    }
}
