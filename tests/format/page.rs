//! `docs/on-disk-format.md` as something to read bytes by: its byte tables and
//! its layouts of commands and sections.

use std::{collections::BTreeMap, fs};

use serde_json::{json, Map, Value};

pub struct Page {
    text: String,
}

impl Page {
    pub fn new() -> Self {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/on-disk-format.md");
        Page {
            text: fs::read_to_string(path).unwrap(),
        }
    }

    fn under(&self, heading: &str) -> Vec<&str> {
        let mut lines = self.text.lines().skip_while(|line| *line != heading);
        assert!(lines.next().is_some(), "the page has no {heading:?}");
        lines.take_while(|line| !line.starts_with("## ")).collect()
    }

    /// Place and size of each field of the `nth` table under the heading, by its
    /// words up to the first comma, colon or bracket.
    pub fn table(&self, heading: &str, nth: usize) -> Table {
        let lines = self.under(heading);
        let tables = lines.split(|line| !line.starts_with('|'));
        let mut tables = tables.filter(|table| !table.is_empty());
        let rows = tables.nth(nth).expect("a table").iter().skip(2);
        let mut fields = BTreeMap::new();
        let mut end = 0;
        for row in rows {
            let cells: Vec<&str> = row.trim_matches('|').split('|').map(str::trim).collect();
            let number = |text: &str| text.replace(' ', "").parse::<usize>().ok();
            let (Some(at), Some(size)) = (number(cells[0]), number(cells[1])) else {
                continue;
            };
            let name = cells[2].replace('`', "");
            let name = name.split([',', ':', '(']).next().unwrap().trim();
            fields.insert((name.to_owned(), at), size);
            end = at + size;
        }
        Table { fields, end }
    }

    /// Number and layout of each line of the `nth` block under the heading.
    pub fn layouts(&self, heading: &str, nth: usize) -> BTreeMap<u8, Layout> {
        let lines = self.under(heading);
        let blocks = lines.split(|line| line.starts_with("```")).skip(1);
        let block = blocks.step_by(2).nth(nth).expect("a block").join("\n");
        let mut layouts = BTreeMap::new();
        let mut number = 0;
        for line in block.lines() {
            let (first, rest) = line.split_once(' ').unwrap();
            let rest = match first.parse() {
                Ok(new) => {
                    number = new;
                    // Behind the name.
                    rest.split_once(' ').map_or("", |(_, rest)| rest)
                }
                Err(_) => line,
            };
            let layout: &mut String = layouts.entry(number).or_default();
            *layout = format!("{layout} {}", rest.trim());
        }
        let parse = |(number, text): (u8, String)| (number, Layout::parse(&text));
        layouts.into_iter().map(parse).collect()
    }
}

pub struct Table {
    fields: BTreeMap<(String, usize), usize>,
    /// Behind the last field of known size.
    pub end: usize,
}

impl Table {
    /// The field's number; of several called so, the first.
    pub fn get(&self, bytes: &[u8], name: &str) -> u64 {
        self.wide(bytes, name) as u64
    }

    pub fn wide(&self, bytes: &[u8], name: &str) -> u128 {
        let (at, size) = self.place(name);
        number(&bytes[at..at + size])
    }

    pub fn place(&self, name: &str) -> (usize, usize) {
        let found = self.fields.iter().find(|((field, _), _)| field == name);
        let ((_, at), size) = found.unwrap_or_else(|| panic!("no field {name:?}"));
        (*at, *size)
    }
}

fn number(bytes: &[u8]) -> u128 {
    let bytes = bytes.iter().rev();
    bytes.fold(0, |value, byte| value << 8 | u128::from(*byte))
}

/// What stands one after the other.
#[derive(Debug)]
pub struct Layout(Vec<Part>);

#[derive(Debug)]
enum Part {
    Number {
        name: String,
        bytes: usize,
    },
    Text {
        name: String,
        length: usize,
    },
    Counted {
        name: String,
        count: usize,
        of: Layout,
    },
    ToTheEnd(Layout),
    Rest(String),
    /// Of a run: one, or as many as the count says.
    Lengths,
}

impl Layout {
    fn parse(text: &str) -> Self {
        let mut parts = Vec::new();
        for part in top_level(text) {
            parts.push(Part::parse(part.trim()));
        }
        Layout(parts)
    }

    /// Reads all of `bytes`: numbers, texts and lists by name; what goes on to
    /// the end as `…`.
    pub fn read(&self, bytes: &[u8]) -> Value {
        let mut at = 0;
        let read = self.read_at(bytes, &mut at);
        assert_eq!(at, bytes.len(), "bytes are left: {self:?}");
        read
    }

    fn read_at(&self, bytes: &[u8], at: &mut usize) -> Value {
        let mut read = Map::new();
        let take = |at: &mut usize, count: usize| {
            *at += count;
            number(&bytes[*at - count..*at]) as u64
        };
        for part in &self.0 {
            match part {
                Part::Number { name, bytes } => {
                    read.insert(name.clone(), json!(take(at, *bytes)));
                }
                Part::Text { name, length } => {
                    let length = take(at, *length) as usize;
                    let text = &bytes[*at..*at + length];
                    *at += length;
                    let text = String::from_utf8(text.to_vec()).unwrap();
                    read.insert(name.clone(), json!(text));
                }
                Part::Counted { name, count, of } => {
                    let count = take(at, *count);
                    let list = (0..count).map(|_| of.read_at(bytes, at));
                    read.insert(name.clone(), list.collect());
                }
                Part::ToTheEnd(of) => {
                    let mut list = Vec::new();
                    while *at < bytes.len() {
                        list.push(of.read_at(bytes, at));
                    }
                    read.insert("…".to_owned(), json!(list));
                }
                Part::Rest(name) => {
                    // Where it begins; the caller has the bytes.
                    read.insert(name.clone(), json!(*at));
                    *at = bytes.len();
                }
                Part::Lengths => {
                    let all_equal = read["kind"].as_u64().unwrap() & 4 > 0;
                    let count = read["count"].as_u64().unwrap() as usize;
                    let stated = if all_equal { 1 } else { count };
                    let lengths: Vec<u64> = (0..stated).map(|_| take(at, 4)).collect();
                    let lengths = lengths.iter().cycle().take(count);
                    read.insert("lengths".to_owned(), lengths.copied().collect());
                }
            }
        }
        Value::Object(read)
    }
}

impl Part {
    fn parse(text: &str) -> Self {
        if let Some(inner) = text.strip_prefix('(') {
            let inner = inner.strip_suffix(")…").expect("a list to the end");
            return Part::ToTheEnd(Layout::parse(inner));
        }
        if let Some(name) = text.strip_suffix('…') {
            return Part::Rest(name.to_owned());
        }
        let Some((name, kind)) = text.split_once(' ') else {
            assert_eq!(text, "lengths");
            return Part::Lengths;
        };
        let name = name.to_owned();
        let (kind, rest) = kind.split_once(' ').unwrap_or((kind, ""));
        let bits: usize = kind.strip_prefix('u').unwrap().parse().unwrap();
        let bytes = bits / 8;
        match rest {
            "" => Part::Number { name, bytes },
            "text" => Part::Text {
                name,
                length: bytes,
            },
            list => {
                let inner = list.strip_prefix("× (").unwrap();
                let inner = inner.strip_suffix(')').unwrap();
                let of = Layout::parse(inner);
                Part::Counted {
                    name,
                    count: bytes,
                    of,
                }
            }
        }
    }
}

/// The parts between commas that are in no bracket.
fn top_level(text: &str) -> Vec<&str> {
    let (mut depth, mut from, mut parts) = (0, 0, Vec::new());
    for (at, character) in text.char_indices() {
        match character {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[from..at]);
                from = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts.retain(|part| !part.trim().is_empty());
    parts
}
