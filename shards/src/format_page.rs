//! `docs/on-disk-format.md` against the code: every byte table of the page is
//! laid over what the code writes, with another value in each field.
//!
//! `tests/format/by_page.rs` does the rest: it reads whole directories by what
//! the page says.

use std::fs;

use xxhash_rust::xxh3::xxh3_64;

use crate::{group, log, store};

/// Bytes that the code wrote, and the values it was given: by the field's words
/// on the page up to the first comma, colon or bracket.
pub(crate) struct Golden {
    pub bytes: Vec<u8>,
    pub fields: Vec<(&'static str, u128)>,
}

struct Row {
    at: String,
    size: String,
    field: String,
}

/// The rows of the `nth` table under the heading.
fn table(page: &str, heading: &str, nth: usize) -> Vec<Row> {
    let mut lines = page.lines().skip_while(|line| *line != heading);
    assert!(lines.next().is_some(), "the page has no {heading:?}");
    let lines: Vec<&str> = lines.take_while(|line| !line.starts_with('#')).collect();
    let mut tables = lines
        .split(|line| !line.starts_with('|'))
        .filter(|table| !table.is_empty());
    let table = tables.nth(nth).expect("a table");
    let rows = table.iter().skip(2).map(|line| {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let mut next = || cells.next().expect("three cells").to_owned();
        Row {
            at: next(),
            size: next(),
            field: next(),
        }
    });
    rows.collect()
}

/// The numbers of the page have spaces in them.
fn number(text: &str) -> Option<usize> {
    text.replace(' ', "").parse().ok()
}

fn value(bytes: &[u8]) -> u128 {
    let bytes = bytes.iter().rev();
    bytes.fold(0, |value, byte| value << 8 | u128::from(*byte))
}

/// Takes the expected values one after the other.
struct Laid<'g> {
    golden: &'g Golden,
    heading: &'static str,
    at: usize,
    next: usize,
}

impl Laid<'_> {
    fn row(&mut self, row: &Row) {
        let what = format!("{}, {:?}", self.heading, row.field);
        match row.at.as_str() {
            // Where the last row, of unknown length, ends.
            "behind" if row.size != "rest" => {
                let to = self.behind();
                let between = &self.golden.bytes[self.at..to];
                assert!(between.iter().all(|byte| *byte == 0), "{what}");
                self.at = to;
            }
            "behind" => {}
            at => assert_eq!(number(at), Some(self.at), "{what}: no gap, no overlap"),
        }
        if row.size == "rest" {
            assert!(self.golden.bytes[self.at..].iter().all(|byte| *byte == 0));
            self.at = self.golden.bytes.len();
            return;
        }
        if let Some(size) = row.size.strip_suffix(" each") {
            return self.each(number(size).expect("a size"), &row.field);
        }
        let size = number(&row.size).unwrap_or_else(|| panic!("{what}: {:?}", row.size));
        let bytes = &self.golden.bytes[self.at..self.at + size];
        let name = row.field.replace('`', "");
        let name = name
            .split([',', ':', '('])
            .next()
            .unwrap_or_default()
            .trim();
        if let Some(magic) = name.strip_prefix("magic ") {
            assert_eq!(bytes, magic.as_bytes(), "{what}");
        } else if name == "zero" {
            assert!(bytes.iter().all(|byte| *byte == 0), "{what}");
        } else if name == "checksum of all before" {
            let covered = xxh3_64(&self.golden.bytes[..self.at]);
            assert_eq!(value(bytes), u128::from(covered), "{what}");
        } else {
            self.expect(name, bytes);
        }
        self.at += size;
    }

    /// `word: name type, …`, for as many as there are.
    fn each(&mut self, size: usize, field: &str) {
        let (_, parts) = field.split_once(": ").expect("parts");
        while self.next < self.golden.fields.len() {
            let start = self.at;
            for part in parts.split(", ") {
                let (name, kind) = part.rsplit_once(' ').expect("a name and a type");
                let bits = kind.strip_prefix('u').and_then(number).expect("a type");
                let end = self.at + bits / 8;
                self.expect(name, &self.golden.bytes[self.at..end]);
                self.at = end;
            }
            assert_eq!(self.at - start, size, "{}: {field}", self.heading);
        }
    }

    fn expect(&mut self, name: &str, bytes: &[u8]) {
        let field = self.golden.fields.get(self.next);
        let (golden, expected) = field.unwrap_or_else(|| panic!("{name} is not in the code"));
        assert_eq!(name, *golden, "{}", self.heading);
        assert_eq!(value(bytes), *expected, "{}, {name}", self.heading);
        self.next += 1;
    }

    /// A superblock's checksum is at its end, a marker file's behind the logs.
    fn behind(&self) -> usize {
        match self.heading {
            "## Superblock" => self.golden.bytes.len() - 8,
            _ => self.at,
        }
    }
}

#[test]
fn every_byte_table_of_the_page_is_what_the_code_writes() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/on-disk-format.md");
    let page = fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let tables = [
        ("## Batch", 0, log::golden::batch()),
        ("## Batch", 1, log::golden::fragment()),
        ("## Group state (item kind 2)", 0, group::golden_state()),
        ("## Superblock", 0, log::golden::superblock()),
        ("## Checkpoint", 0, store::golden::checkpoint()),
        ("## Checkpoint", 1, store::golden::section()),
        ("## Packed file", 0, store::golden::pack()),
        ("## Packed file", 1, store::golden::index_entry()),
        ("## Clean marker", 0, log::golden::clean()),
        ("## Latch record and token", 0, log::golden::latch()),
    ];
    for (heading, nth, golden) in &tables {
        let mut laid = Laid {
            golden,
            heading,
            at: 0,
            next: 0,
        };
        for row in table(&page, heading, *nth) {
            laid.row(&row);
        }
        assert_eq!(laid.at, golden.bytes.len(), "{heading}: the page goes on");
        assert_eq!(laid.next, golden.fields.len(), "{heading}: fields are left");
    }
    // No table of bytes is left out.
    let heads = page.lines().filter(|line| *line == "| at | size | field |");
    assert_eq!(heads.count(), tables.len());
}
