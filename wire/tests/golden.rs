//! The bytes of each frame kind, pinned in `tests/vectors/<kind>.hex`. They
//! are the contract with clients in other languages: a difference here is a
//! break of the protocol, not a test to be updated.
//!
//! A new kind gets its file from `UPDATE_VECTORS=1 cargo test -p tidegate-wire
//! --test golden`; commit only files that are new.

mod common;

use std::{fmt::Debug, fs, path::PathBuf};

use common::{
    decode_owned,
    examples::{self, CORRELATION},
    split_frame,
};
use tidegate_wire::{
    codec::{encode, encode_deliver, encode_publish},
    frame::Kind,
    message::*,
    record::{Record, Records},
};

fn vector_path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/vectors")
        .join(format!("{name}.hex"))
}

/// `QueueInfoReply` → `queue_info_reply`.
fn file_name(kind: Kind) -> String {
    let mut out = String::new();
    for (at, letter) in kind.name().char_indices() {
        if at > 0 && letter.is_ascii_uppercase() {
            out.push('_');
        }
        out.push(letter.to_ascii_lowercase());
    }
    out
}

fn render(comment: &str, bytes: &[u8]) -> String {
    let mut out = format!("# {comment}\n");
    for line in bytes.chunks(16) {
        let line: Vec<String> = line.iter().map(|byte| format!("{byte:02x}")).collect();
        out += &line.join(" ");
        out.push('\n');
    }
    out
}

fn parse(text: &str) -> Vec<u8> {
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(str::split_whitespace)
        .map(|byte| u8::from_str_radix(byte, 16).expect("two hex digits"))
        .collect()
}

/// The pinned bytes; they must be what `bytes` are now.
fn pinned(name: &str, comment: &str, bytes: &[u8]) -> Vec<u8> {
    let path = vector_path(name);
    let text = render(comment, bytes);
    if std::env::var_os("UPDATE_VECTORS").is_some() {
        fs::write(&path, &text).expect("the vectors directory exists");
    }
    let stands =
        fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(stands, text, "{name}: the bytes of this kind have changed");
    parse(&stands)
}

fn check<T: Debug + PartialEq>(
    kind: Kind,
    correlation: u64,
    example: &T,
    frame: &[u8],
    decode: impl Fn(&[u8]) -> T,
) {
    let comment = format!("{example:?}");
    let bytes = pinned(&file_name(kind), &comment, frame);
    let (header, body) = split_frame(&bytes);
    assert_eq!(header.kind, kind as u8);
    assert_eq!(header.correlation, correlation);
    assert_eq!(&decode(body), example, "{kind:?}");
}

#[test]
fn every_kind_encodes_to_its_pinned_bytes_and_decodes_from_them() {
    let mut seen = Vec::new();
    macro_rules! visit {
        ($name:ident, $example:ident) => {
            let example: $name = examples::$example();
            let correlation = match Kind::$name {
                Kind::Deliver => 0,
                _ => CORRELATION,
            };
            let mut frame = Vec::new();
            encode(&mut frame, correlation, &example).expect("within the limits");
            check(Kind::$name, correlation, &example, &frame, |body| {
                decode_owned::<$name>(body).expect("a valid body")
            });
            seen.push(Kind::$name);
        };
    }
    for_each_body!(visit);
    assert_eq!(seen, Kind::ALL, "each kind has an example, in order");
}

#[test]
fn encode_publish_makes_the_pinned_bytes() {
    let example = examples::publish();
    let body = Publish {
        records: vec![],
        ..example.clone()
    };
    let mut frame = Vec::new();
    encode_publish(&mut frame, CORRELATION, &body, &example.records).expect("within the limits");
    let pinned = fs::read_to_string(vector_path("publish")).expect("the vector is committed");
    assert_eq!(frame, parse(&pinned));
}

#[test]
fn encode_deliver_makes_the_pinned_bytes() {
    let example = examples::deliver();
    let body = Deliver {
        records: vec![],
        ..example.clone()
    };
    let mut frame = Vec::new();
    encode_deliver(&mut frame, &body, |out| {
        out.extend_from_slice(&examples::record_full());
        out.extend_from_slice(&examples::record_empty());
    })
    .expect("within the limits");
    let pinned = fs::read_to_string(vector_path("deliver")).expect("the vector is committed");
    assert_eq!(frame, parse(&pinned));
}

#[test]
fn records_encode_to_their_pinned_bytes_and_decode_from_them() {
    let comment = "record: key \"user-17\", headers trace=ok, payload \"hello, record\", \
                   not before 1900000000123";
    let bytes = pinned("record", comment, &examples::record_full());
    let record = Record::parse(&bytes, 0).expect("a valid record");
    record.verify(0).expect("the checksum matches");
    assert_eq!(record.bytes, bytes);
    assert_eq!(record.key, b"user-17");
    assert_eq!(record.headers, b"\x05\x00\x02\x00\x00\x00traceok");
    assert_eq!(record.payload, b"hello, record");
    assert_eq!(record.not_before_ms, 1_900_000_000_123);

    let bytes = pinned(
        "record_empty",
        "record: everything empty",
        &examples::record_empty(),
    );
    let record = Record::parse(&bytes, 0).expect("a valid record");
    record.verify(0).expect("the checksum matches");
    assert!(record.key.is_empty() && record.headers.is_empty() && record.payload.is_empty());
}

#[test]
fn the_records_inside_a_pinned_deliver_have_the_lengths_their_deliveries_state() {
    let text = fs::read_to_string(vector_path("deliver")).expect("the vector is committed");
    let bytes = parse(&text);
    let (_, body) = split_frame(&bytes);
    let deliver = decode_owned::<Deliver>(body).expect("a valid body");
    let lengths: Vec<usize> = Records::new(&deliver.records)
        .map(|record| record.expect("a valid record").bytes.len())
        .collect();
    let stated: Vec<usize> = deliver
        .deliveries
        .iter()
        .map(|item| item.len as usize)
        .collect();
    assert_eq!(lengths, stated);
}

#[test]
fn no_vector_file_is_left_over() {
    let mut known: Vec<String> = Kind::ALL.iter().map(|kind| file_name(*kind)).collect();
    known.extend(["record".into(), "record_empty".into()]);
    for entry in fs::read_dir(vector_path("x").parent().expect("a directory")).expect("readable") {
        let name = entry.expect("readable").file_name();
        let name = name.to_str().expect("an ASCII name");
        let stem = name.strip_suffix(".hex").expect("only vectors are here");
        assert!(known.iter().any(|known| known == stem), "{name}");
    }
}
