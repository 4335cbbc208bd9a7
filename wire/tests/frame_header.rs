//! The fixed header: every field of it wrong in turn, and every length that
//! matters.

use tidegate_wire::{
    error::WireError,
    frame::{check_start, FrameHeader, Kind, HEADER_BYTES, MAGIC, VERSION},
    limits::{MAX_FRAME_BYTES, MAX_HELLO_BYTES},
};

fn valid() -> [u8; HEADER_BYTES] {
    FrameHeader {
        kind: Kind::Publish as u8,
        length: 1_000,
        correlation: 0x0102_0304_0506_0708,
    }
    .encode()
}

fn decode(bytes: [u8; HEADER_BYTES]) -> Result<FrameHeader, WireError> {
    FrameHeader::decode(&bytes, MAX_FRAME_BYTES)
}

fn with_length(length: u32) -> [u8; HEADER_BYTES] {
    let mut bytes = valid();
    bytes[8..12].copy_from_slice(&length.to_le_bytes());
    bytes
}

#[test]
fn a_bad_magic_is_known_by_its_fourth_byte() {
    assert_eq!(check_start(b""), Ok(()));
    assert_eq!(check_start(b"GET"), Ok(()));
    assert_eq!(check_start(b"TDGT"), Ok(()));
    let found = *b"GET ";
    assert_eq!(check_start(b"GET /"), Err(WireError::BadMagic { found }));
}

#[test]
fn each_field_stands_at_its_documented_place() {
    let bytes = valid();
    assert_eq!(&bytes[..4], b"TDGT");
    assert_eq!(bytes[4], 1);
    assert_eq!(bytes[5], 5);
    assert_eq!(&bytes[6..8], [0, 0]);
    assert_eq!(&bytes[8..12], 1_000u32.to_le_bytes());
    assert_eq!(&bytes[12..16], [0; 4]);
    assert_eq!(&bytes[16..], [8, 7, 6, 5, 4, 3, 2, 1]);
    let header = decode(bytes).expect("valid");
    assert_eq!(header.encode(), bytes);
}

#[test]
fn any_other_magic_is_refused_and_shown() {
    for at in 0..4 {
        let mut bytes = valid();
        bytes[at] ^= 0x20;
        let found = [bytes[0], bytes[1], bytes[2], bytes[3]];
        assert_ne!(found, MAGIC);
        assert_eq!(decode(bytes), Err(WireError::BadMagic { found }));
    }
    let mut http = valid();
    http[..4].copy_from_slice(b"GET ");
    let message = decode(http).expect_err("not a frame").to_string();
    assert!(message.contains("another protocol"), "{message}");
}

#[test]
fn older_and_newer_versions_are_refused_by_number() {
    for found in [0, VERSION + 1, 200, u8::MAX] {
        let mut bytes = valid();
        bytes[4] = found;
        let supported = VERSION;
        assert_eq!(decode(bytes), Err(WireError::Version { found, supported }));
    }
}

#[test]
fn every_reserved_bit_is_refused() {
    for at in [6, 7, 12, 13, 14, 15] {
        for bit in 0..8 {
            let mut bytes = valid();
            bytes[at] |= 1 << bit;
            match decode(bytes) {
                Err(WireError::ReservedBits { bits }) => assert_ne!(bits, 0),
                other => panic!("byte {at} bit {bit}: {other:?}"),
            }
        }
    }
}

#[test]
fn an_unknown_kind_still_decodes_so_that_it_can_be_refused_by_name() {
    for raw in 0..=u8::MAX {
        let mut bytes = valid();
        bytes[5] = raw;
        let header = decode(bytes).expect("the kind is the caller's to judge");
        assert_eq!(header.kind, raw);
        match Kind::from_raw(raw) {
            Some(kind) => assert_eq!(kind as u8, raw),
            None => assert!(!Kind::ALL.iter().any(|kind| *kind as u8 == raw)),
        }
    }
    assert_eq!(Kind::from_raw(0), None);
    assert_eq!(Kind::from_raw(42), None);
}

#[test]
fn f71_f74_lengths_up_to_the_limit_pass_and_above_it_are_refused() {
    for limit in [0, 1, MAX_HELLO_BYTES, MAX_FRAME_BYTES] {
        for length in [0, 1, limit.saturating_sub(1), limit] {
            let read = FrameHeader::decode(&with_length(length), limit);
            if length <= limit {
                assert_eq!(read.expect("within the limit").length, length);
            }
        }
        for len in [limit + 1, limit + 2, 100_000_000, u32::MAX - 1, u32::MAX] {
            let read = FrameHeader::decode(&with_length(len), limit);
            assert_eq!(read, Err(WireError::FrameTooLong { len, limit }));
        }
    }
}

#[test]
fn a_limit_above_the_protocols_is_the_protocols() {
    let read = FrameHeader::decode(&with_length(MAX_FRAME_BYTES + 1), u32::MAX);
    assert_eq!(
        read,
        Err(WireError::FrameTooLong {
            len: MAX_FRAME_BYTES + 1,
            limit: MAX_FRAME_BYTES,
        })
    );
}
