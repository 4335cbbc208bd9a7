//! Bodies that are cut, bent, from another kind or from a later version.

mod common;

use common::{decode_owned, examples, examples::CORRELATION, split_frame};
use tidegate_wire::{
    codec::{encode, encode_deliver, encode_publish},
    error::WireError,
    frame::{FrameHeader, Kind, HEADER_BYTES},
    limits::MAX_FRAME_BYTES,
    message::*,
};

#[test]
fn a_body_cut_at_any_byte_is_refused_or_decodes_and_never_panics() {
    macro_rules! visit {
        ($name:ident, $example:ident) => {
            let mut frame = Vec::new();
            encode(&mut frame, CORRELATION, &examples::$example()).expect("within the limits");
            let (_, body) = split_frame(&frame);
            for end in 0..body.len() {
                let cut = decode_owned::<$name>(&body[..end]);
                if end < size_of::<<$name as rkyv::Archive>::Archived>() {
                    assert!(cut.is_err(), "shorter than its root struct");
                }
                let _ = decode_owned::<$name>(&body[end..]);
            }
        };
    }
    for_each_body!(visit);
}

#[test]
fn a_body_with_any_bit_flipped_is_refused_or_decodes_and_never_panics() {
    macro_rules! visit {
        ($name:ident, $example:ident) => {
            let example = examples::$example();
            let mut frame = Vec::new();
            encode(&mut frame, CORRELATION, &example).expect("within the limits");
            let mut body = frame.split_off(HEADER_BYTES);
            for at in 0..body.len() {
                for bit in 0..8 {
                    // The padding behind a short text is the only thing not read.
                    let padding = body[at] == 0xFF;
                    body[at] ^= 1 << bit;
                    if let Ok(read) = decode_owned::<$name>(&body) {
                        let same = read == example;
                        assert!(!same || padding, "byte {at} bit {bit} is not read");
                    }
                    body[at] ^= 1 << bit;
                }
            }
        };
    }
    for_each_body!(visit);
}

#[test]
fn a_frame_with_any_byte_of_its_header_changed_is_refused_or_another_valid_header() {
    let mut frame = Vec::new();
    encode(&mut frame, CORRELATION, &examples::ping()).expect("within the limits");
    let (valid, _) = split_frame(&frame);
    let bytes: [u8; HEADER_BYTES] = frame[..HEADER_BYTES].try_into().expect("24 bytes");
    for at in 0..HEADER_BYTES {
        for change in 1..=u8::MAX {
            let mut bent = bytes;
            bent[at] ^= change;
            if let Ok(read) = FrameHeader::decode(&bent, MAX_FRAME_BYTES) {
                assert_ne!(read, valid);
                assert_eq!(read.encode(), bent, "what is accepted is read whole");
            }
        }
    }
}

#[test]
fn an_empty_body_is_refused_for_every_kind() {
    macro_rules! visit {
        ($name:ident, $example:ident) => {
            match decode_owned::<$name>(&[]) {
                Err(WireError::BadBody { kind, .. }) => assert_eq!(kind, Kind::$name.name()),
                other => panic!("{other:?}"),
            }
        };
    }
    for_each_body!(visit);
}

#[test]
fn a_body_of_another_kind_never_panics() {
    let mut bodies = Vec::new();
    macro_rules! collect {
        ($name:ident, $example:ident) => {
            let mut frame = Vec::new();
            encode(&mut frame, CORRELATION, &examples::$example()).expect("within the limits");
            bodies.push(frame.split_off(HEADER_BYTES));
        };
    }
    for_each_body!(collect);
    for body in &bodies {
        macro_rules! visit {
            ($name:ident, $example:ident) => {
                let _ = decode_owned::<$name>(body);
            };
        }
        for_each_body!(visit);
    }
}

#[test]
fn an_unknown_critical_extension_is_refused_in_every_kind_and_others_are_passed_over() {
    macro_rules! visit {
        ($name:ident, $example:ident) => {
            for kind in [0, 1, 0x7FFF, Extension::CRITICAL, 0x8001, u16::MAX] {
                let mut body = examples::$example();
                body.extensions.push(Extension {
                    kind,
                    bytes: vec![1; 3],
                });
                let mut frame = Vec::new();
                encode(&mut frame, CORRELATION, &body).expect("within the limits");
                let (_, bytes) = split_frame(&frame);
                match decode_owned::<$name>(bytes) {
                    Ok(read) => {
                        assert!(kind < Extension::CRITICAL);
                        assert_eq!(read, body);
                    }
                    Err(error) => {
                        assert!(kind >= Extension::CRITICAL);
                        assert_eq!(error, WireError::CriticalExtension { kind });
                    }
                }
            }
        };
    }
    for_each_body!(visit);
}

#[test]
fn a_list_whose_length_is_enormous_is_refused_without_allocating_for_it() {
    let mut frame = Vec::new();
    encode(&mut frame, CORRELATION, &examples::ping()).expect("within the limits");
    let end = frame.len();
    for length in [2, 1_000, u32::MAX / 2, u32::MAX] {
        frame[end - 4..].copy_from_slice(&length.to_le_bytes());
        assert!(decode_owned::<Ping>(&frame[HEADER_BYTES..]).is_err());
    }
}

#[test]
fn text_that_is_not_utf8_is_refused_inline_and_out_of_line() {
    for name in ["orders", "longer-than-eight"] {
        let body = Locate {
            name: name.into(),
            extensions: vec![],
        };
        let mut frame = Vec::new();
        encode(&mut frame, CORRELATION, &body).expect("within the limits");
        let at = frame
            .windows(name.len())
            .position(|bytes| bytes == name.as_bytes())
            .expect("the text is in the frame");
        frame[at + 2] = 0xC3;
        assert!(decode_owned::<Locate>(&frame[HEADER_BYTES..]).is_err());
    }
}

#[test]
fn f74_a_frame_at_the_limit_encodes_and_one_byte_more_leaves_the_buffer_unchanged() {
    let overhead = {
        let mut frame = Vec::new();
        encode_publish(&mut frame, 1, &Publish::default(), &[]).expect("within the limits");
        frame.len() - HEADER_BYTES
    };
    let room = MAX_FRAME_BYTES as usize - overhead;
    let records = vec![0xAB; room + 1];

    let mut out = b"kept".to_vec();
    encode_publish(&mut out, 1, &Publish::default(), &records[..room]).expect("at the limit");
    let (header, _) = split_frame(&out[4..]);
    assert_eq!(header.length, MAX_FRAME_BYTES);

    let refusal = Err(WireError::FrameTooLong {
        len: MAX_FRAME_BYTES + 1,
        limit: MAX_FRAME_BYTES,
    });
    let mut out = b"kept".to_vec();
    let answer = encode_publish(&mut out, 1, &Publish::default(), &records);
    assert_eq!((answer, out.as_slice()), (refusal, b"kept".as_slice()));

    let too_much = vec![0; MAX_FRAME_BYTES as usize + 1];
    let answer = encode_publish(&mut out, 1, &Publish::default(), &too_much);
    assert!(matches!(answer, Err(WireError::FrameTooLong { .. })));
    let answer = encode_deliver(&mut out, &Deliver::default(), |out| {
        out.extend_from_slice(&too_much);
    });
    assert!(matches!(answer, Err(WireError::FrameTooLong { .. })));
    let owned = Publish {
        records: too_much,
        ..Default::default()
    };
    let answer = encode(&mut out, 1, &owned);
    assert!(matches!(answer, Err(WireError::FrameTooLong { .. })));
    assert_eq!(out, b"kept");
}

#[test]
fn frames_appended_one_after_the_other_read_back_one_by_one() {
    let mut out = Vec::new();
    encode(&mut out, 1, &examples::ping()).expect("within the limits");
    let second = out.len();
    encode(&mut out, 2, &examples::declare()).expect("within the limits");
    let third = out.len();
    encode_deliver(&mut out, &Deliver::default(), |out| out.push(9)).expect("within the limits");
    let (header, _) = split_frame(&out[..second]);
    assert_eq!(header.correlation, 1);
    let (_, body) = split_frame(&out[second..third]);
    assert_eq!(
        decode_owned::<Declare>(body).expect("a valid body"),
        examples::declare()
    );
    let (_, body) = split_frame(&out[third..]);
    let deliver = decode_owned::<Deliver>(body).expect("a valid body");
    assert_eq!(deliver.records, [9]);
}
