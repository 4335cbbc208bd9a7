//! Records and batches: limits, reserved fields, checksums, counts.

use tidegate_wire::{
    error::WireError,
    limits::{MAX_HEADERS_BYTES, MAX_KEY_BYTES, MAX_RECORD_BYTES},
    record::{check_batch, Record, RecordParts, Records, RECORD_HEADER_BYTES},
};

fn encoded(parts: &RecordParts<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    parts.encode(&mut out).expect("within the limits");
    assert_eq!(out.len(), parts.encoded_len());
    out
}

fn small() -> Vec<u8> {
    encoded(&RecordParts {
        key: b"key",
        headers: b"\x01\x00\x01\x00\x00\x00ab",
        payload: b"payload",
        not_before_ms: 12_345,
    })
}

/// Sets a u32 field and states the right checksum for the changed bytes.
fn with_field(mut bytes: Vec<u8>, at: usize, value: u32) -> Vec<u8> {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    resealed(bytes)
}

fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let crc = crc32c::crc32c(&bytes[4..]);
    bytes[..4].copy_from_slice(&crc.to_le_bytes());
    bytes
}

fn refusal(bytes: &[u8]) -> &'static str {
    match Record::parse(bytes, 3) {
        Err(WireError::BadRecord { index: 3, reason }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn f72_an_empty_record_is_a_record() {
    let bytes = encoded(&RecordParts::default());
    assert_eq!(bytes.len(), RECORD_HEADER_BYTES);
    let record = Record::parse(&bytes, 0).expect("valid");
    record.verify(0).expect("the checksum matches");
    assert!(record.payload.is_empty());

    let headers_only = encoded(&RecordParts {
        headers: b"\x01\x00\x00\x00\x00\x00a",
        ..Default::default()
    });
    let batch = [bytes.clone(), headers_only, bytes].concat();
    check_batch(&batch, 3).expect("three records");
}

#[test]
fn f74_each_part_at_its_limit_passes_and_one_byte_more_is_refused() {
    let payload = vec![1; MAX_RECORD_BYTES as usize + 1];
    let headers = vec![2; MAX_HEADERS_BYTES as usize + 1];
    let key = vec![3; usize::from(MAX_KEY_BYTES) + 1];
    let largest = RecordParts {
        key: &key[1..],
        headers: &headers[1..],
        payload: &payload[1..],
        not_before_ms: u64::MAX,
    };
    let bytes = encoded(&largest);
    check_batch(&bytes, 1).expect("at every limit");
    let record = Record::parse(&bytes, 0).expect("valid");
    assert_eq!(record.payload.len(), MAX_RECORD_BYTES as usize);
    assert_eq!(record.not_before_ms, u64::MAX);

    let too_large = [
        RecordParts {
            key: &key,
            ..largest
        },
        RecordParts {
            headers: &headers,
            ..largest
        },
        RecordParts {
            payload: &payload,
            ..largest
        },
    ];
    for parts in too_large {
        let mut out = b"kept".to_vec();
        assert!(matches!(
            parts.encode(&mut out),
            Err(WireError::BadRecord { .. })
        ));
        assert_eq!(out, b"kept");
    }
}

#[test]
fn f18_stated_lengths_above_a_limit_are_refused_before_they_are_used() {
    for len in [MAX_RECORD_BYTES + 1, u32::MAX - 1, u32::MAX, 0x8000_0000] {
        assert_eq!(refusal(&with_field(small(), 4, len)), "payload above 8 MiB");
    }
    for len in [MAX_HEADERS_BYTES + 1, u32::MAX] {
        assert_eq!(
            refusal(&with_field(small(), 8, len)),
            "headers above 64 KiB"
        );
    }
    for len in [u32::from(MAX_KEY_BYTES) + 1, 0xFFFF] {
        assert_eq!(
            refusal(&with_field(small(), 12, len)),
            "key above 1024 bytes"
        );
    }
}

#[test]
fn f18_stated_lengths_beyond_the_bytes_at_hand_are_refused() {
    for (at, len) in [
        (4, MAX_RECORD_BYTES),
        (4, 8),
        (8, MAX_HEADERS_BYTES),
        (8, 9),
        (12, 1024),
        (12, 4),
    ] {
        assert_eq!(refusal(&with_field(small(), at, len)), "truncated body");
    }
}

#[test]
fn every_reserved_bit_of_a_record_is_refused() {
    for at in (14..20).chain(28..32) {
        for bit in 0..8 {
            let mut bytes = small();
            bytes[at] |= 1 << bit;
            let reason = refusal(&resealed(bytes));
            assert!(reason.contains("reserved"), "byte {at} bit {bit}: {reason}");
        }
    }
}

#[test]
fn a_record_cut_at_any_byte_is_refused() {
    let bytes = small();
    for end in 0..bytes.len() {
        let reason = refusal(&bytes[..end]);
        assert!(reason.starts_with("truncated"), "{end}: {reason}");
    }
}

#[test]
fn every_flipped_bit_of_a_batch_is_found() {
    let batch = [small(), encoded(&RecordParts::default()), small()].concat();
    check_batch(&batch, 3).expect("three records");
    for at in 0..batch.len() {
        for bit in 0..8 {
            let mut bent = batch.clone();
            bent[at] ^= 1 << bit;
            assert!(check_batch(&bent, 3).is_err(), "byte {at} bit {bit}");
        }
    }
}

#[test]
fn a_wrong_checksum_names_the_record_and_both_values() {
    let mut batch = [small(), small()].concat();
    let at = batch.len() - 1;
    batch[at] ^= 1;
    let computed = crc32c::crc32c(&batch[small().len() + 4..]);
    let stated = crc32c::crc32c(&small()[4..]);
    assert_eq!(
        check_batch(&batch, 2),
        Err(WireError::RecordChecksum {
            index: 1,
            stated,
            computed,
        })
    );
}

#[test]
fn check_batch_wants_exactly_the_stated_count() {
    let batch = small().repeat(3);
    check_batch(&batch, 3).expect("three records");
    check_batch(&[], 0).expect("none of none");
    for (bytes, count) in [
        (&batch[..], 0),
        (&batch, 2),
        (&batch, 4),
        (&batch, u32::MAX),
    ] {
        match check_batch(bytes, count) {
            Err(WireError::BadRecord { reason, .. }) => {
                assert_eq!(reason, "the stated record count differs");
            }
            other => panic!("count {count}: {other:?}"),
        }
    }
    assert!(check_batch(&[], 1).is_err());
    assert!(check_batch(&batch[..batch.len() - 1], 3).is_err());
    assert!(check_batch(&[&batch[..], &[0]].concat(), 3).is_err());
}

#[test]
fn a_walk_ends_at_the_first_bad_record() {
    let mut batch = small();
    batch.extend_from_slice(&[0xFF; 40]);
    batch.extend_from_slice(&small());
    let read: Vec<bool> = Records::new(&batch).map(|record| record.is_ok()).collect();
    assert_eq!(read, [true, false]);
}
