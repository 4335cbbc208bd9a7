//! `docs/protocol.md` against the code: every table of numbers and offsets
//! that the page states is compared with what is compiled.
//!
//! `cargo test -p tidegate-wire --test protocol_page -- --ignored --nocapture`
//! prints the struct tables as the code has them.

mod common;

use std::{any::type_name, collections::BTreeMap, fs, mem::offset_of};

use tidegate_wire::{
    error::{ErrorCode, Outcome},
    frame::{Kind, HEADER_BYTES},
    limits::*,
    message::*,
    record::RECORD_HEADER_BYTES,
    vocabulary::{Boundary, ClusterAction, Mode, RecordState, ReplicaRole, SettleKind},
};

/// One field as the page shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Field {
    offset: usize,
    size: usize,
    name: String,
    kind: String,
}

struct Layout {
    name: &'static str,
    size: usize,
    fields: Vec<Field>,
}

fn field<S, F>(name: &str, offset: usize, _: impl Fn(&S) -> &F) -> Field {
    Field {
        offset,
        size: size_of::<F>(),
        name: name.to_owned(),
        kind: type_on_page(type_name::<F>()),
    }
}

/// `rkyv::vec::ArchivedVec<tidegate_wire::message::ArchivedDelivery>` →
/// `list of Delivery`.
fn type_on_page(rust: &str) -> String {
    if let Some(inner) = rust.strip_suffix('>') {
        if let Some((outer, inner)) = inner.split_once('<') {
            assert!(outer.ends_with("ArchivedVec"), "{rust}");
            return match type_on_page(inner).as_str() {
                "u8" => "bytes".into(),
                inner => format!("list of {inner}"),
            };
        }
    }
    let last = rust.rsplit("::").next().unwrap_or(rust);
    match last {
        "u8" => "u8".into(),
        "u16_ule" => "u16".into(),
        "u32_ule" => "u32".into(),
        "u64_ule" => "u64".into(),
        "[u8; 16]" => "16 bytes".into(),
        "ArchivedString" => "text".into(),
        other => other
            .strip_prefix("Archived")
            .unwrap_or_else(|| panic!("{rust} has no word on the page"))
            .into(),
    }
}

fn layouts() -> Vec<Layout> {
    let mut out = Vec::new();
    macro_rules! collect {
        ($($name:ident { $($field:ident)* })*) => {$({
            type Archived = <$name as rkyv::Archive>::Archived;
            out.push(Layout {
                name: stringify!($name),
                size: size_of::<Archived>(),
                fields: vec![$(
                    field(
                        stringify!($field),
                        offset_of!(Archived, $field),
                        |archived: &Archived| &archived.$field,
                    ),
                )*],
            });
        })*};
    }
    collect! { Extension { kind bytes } }
    with_fields!(collect);
    out
}

fn page() -> String {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/protocol.md");
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// The cells of the rows of the table under the heading `heading`, without
/// the table's head. Backquotes are dropped.
fn table(page: &str, heading: &str) -> Vec<Vec<String>> {
    let mut lines = page.lines().skip_while(|line| *line != heading);
    assert!(
        lines.next().is_some(),
        "the page has no heading {heading:?}"
    );
    let rows: Vec<Vec<String>> = lines
        .take_while(|line| !line.starts_with('#'))
        .filter(|line| line.starts_with('|'))
        .map(|line| {
            line.trim_matches('|')
                .split('|')
                .map(|cell| cell.trim().trim_matches('`').to_owned())
                .collect()
        })
        .skip(2)
        .collect();
    assert!(!rows.is_empty(), "{heading:?} has no table");
    rows
}

/// Number → name, from the first two columns of a table.
fn numbers(page: &str, heading: &str) -> BTreeMap<u64, String> {
    let rows = table(page, heading);
    let out: BTreeMap<u64, String> = rows
        .iter()
        .map(|row| (row[0].parse().expect("a number"), row[1].clone()))
        .collect();
    assert_eq!(out.len(), rows.len(), "{heading:?} states a number twice");
    out
}

fn heading(name: &str) -> String {
    match Kind::ALL.iter().find(|kind| kind.name() == name) {
        Some(kind) => format!("### {name} (kind {})", *kind as u8),
        None => format!("### {name}"),
    }
}

#[test]
fn every_struct_has_the_offsets_and_sizes_that_the_page_states() {
    let page = page();
    for layout in layouts() {
        let heading = heading(layout.name);
        let stated: Vec<Field> = table(&page, &heading)
            .iter()
            .map(|row| Field {
                offset: row[0].parse().expect("an offset"),
                size: row[1].parse().expect("a size"),
                name: row[2].clone(),
                kind: row[3].clone(),
            })
            .collect();
        assert_eq!(stated, layout.fields, "{}", layout.name);
        let size = format!("{heading}\n\n{} bytes.", layout.size);
        assert!(page.contains(&size), "the page lacks {size:?}");
    }
}

#[test]
fn no_byte_of_a_struct_is_padding() {
    for layout in layouts() {
        let mut end = 0;
        for field in &layout.fields {
            assert_eq!(field.offset, end, "{}.{}", layout.name, field.name);
            end += field.size;
        }
        assert_eq!(end, layout.size, "{}", layout.name);
    }
}

#[test]
fn the_page_numbers_the_kinds_as_the_code_does() {
    let code: BTreeMap<u64, String> = Kind::ALL
        .iter()
        .map(|kind| (*kind as u64, kind.name().to_owned()))
        .collect();
    assert_eq!(numbers(&page(), "## Kinds"), code);
}

#[test]
fn the_page_numbers_the_error_codes_as_the_code_does() {
    let code: BTreeMap<u64, String> = (0..=u16::MAX)
        .filter_map(ErrorCode::from_raw)
        .map(|code| (code as u64, format!("{code:?}")))
        .collect();
    assert_eq!(numbers(&page(), "## Error codes"), code);
}

#[test]
fn the_page_numbers_the_one_byte_words_as_the_code_does() {
    let page = page();
    let words = |list: &[(u8, &str)]| -> BTreeMap<u64, String> {
        list.iter()
            .map(|(number, name)| (u64::from(*number), (*name).to_owned()))
            .collect()
    };
    let modes = Mode::ALL.map(|mode| (mode as u8, mode.name()));
    assert_eq!(numbers(&page, "### Mode"), words(&modes));
    let boundaries = [Boundary::Written, Boundary::Durable].map(|b| (b as u8, b.name()));
    assert_eq!(numbers(&page, "### Boundary"), words(&boundaries));
    let roles = ReplicaRole::ALL.map(|role| (role as u8, role.name()));
    assert_eq!(numbers(&page, "### Replica role"), words(&roles));
    let actions = ClusterAction::ALL.map(|action| (action as u8, action.name()));
    assert_eq!(numbers(&page, "### Cluster action"), words(&actions));
    let states: Vec<_> = (0..=u8::MAX)
        .filter_map(RecordState::from_raw)
        .map(|state| (state as u8, state.name()))
        .collect();
    assert_eq!(numbers(&page, "### Record state"), words(&states));
    let settles = [
        (SettleKind::Acknowledge as u8, "acknowledge"),
        (SettleKind::Release as u8, "release"),
        (SettleKind::Reject as u8, "reject"),
    ];
    assert_eq!(numbers(&page, "### Settle kind"), words(&settles));
    let outcomes = [
        (Outcome::Failed as u8, "failed"),
        (Outcome::Unknown as u8, "unknown"),
    ];
    assert_eq!(numbers(&page, "### Outcome"), words(&outcomes));
}

#[test]
fn the_page_states_the_limits_in_force() {
    let page = page();
    let stated: BTreeMap<String, u64> = table(&page, "## Limits")
        .iter()
        .map(|row| {
            let value = row[1].replace(' ', "");
            (row[0].clone(), value.parse().expect("a number"))
        })
        .collect();
    let code = [
        ("frame body, bytes", u64::from(MAX_FRAME_BYTES)),
        ("hello body, bytes", u64::from(MAX_HELLO_BYTES)),
        ("payload of a record, bytes", u64::from(MAX_RECORD_BYTES)),
        ("headers of a record, bytes", u64::from(MAX_HEADERS_BYTES)),
        ("key of a record, bytes", u64::from(MAX_KEY_BYTES)),
        ("records in a publish", u64::from(MAX_BATCH_RECORDS)),
        ("items in a settle", u64::from(MAX_SETTLE_ITEMS)),
        ("queue name, bytes", MAX_NAME_BYTES as u64),
        ("queues in a list reply", u64::from(MAX_LIST_QUEUES)),
        ("records in a peek reply", u64::from(MAX_PEEK_RECORDS)),
        ("partitions of a queue", u64::from(MAX_PARTITIONS)),
    ];
    let code: BTreeMap<String, u64> = code
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value))
        .collect();
    assert_eq!(stated, code);
}

#[test]
fn the_page_lays_out_header_and_record_without_gaps() {
    let page = page();
    for (heading, size) in [
        ("## Frame header", HEADER_BYTES),
        ("## Records", RECORD_HEADER_BYTES),
    ] {
        let mut end = 0;
        for row in table(&page, heading) {
            assert_eq!(
                row[0].parse::<usize>().expect("an offset"),
                end,
                "{heading}"
            );
            end += row[1].parse::<usize>().expect("a size");
        }
        assert_eq!(end, size, "{heading}");
    }
}

#[test]
fn the_page_states_the_critical_extension_bit_and_flags() {
    let page = page();
    for text in [
        format!("at or above {:#06X}", Extension::CRITICAL),
        format!("0, or {PUBLISH_DURABLE}: durable"),
        format!("0, or {SETTLE_CONFIRM}: confirm"),
        format!("sum of {DELIVERY_REDELIVERED}: redelivered"),
        format!("and {DELIVERY_DURABLE}: durable"),
        format!("{ANY_SHARD} = any"),
        format!("sum of {ORDER_FORCE}: also"),
        format!("and {ORDER_ACCEPT_LOSS}: loss is accepted"),
    ] {
        assert!(page.contains(&text), "the page lacks {text:?}");
    }
}

#[test]
#[ignore = "prints the tables for the page; asserts nothing"]
fn print_the_struct_tables() {
    for layout in layouts() {
        println!("{}\n\n{} bytes.\n", heading(layout.name), layout.size);
        println!("| offset | size | field | type | meaning |\n|---|---|---|---|---|");
        for field in layout.fields {
            let Field {
                offset,
                size,
                name,
                kind,
            } = field;
            println!("| {offset} | {size} | `{name}` | {kind} | MEANING |");
        }
        println!();
    }
}
