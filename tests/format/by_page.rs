//! Directories read by nothing but the page: every batch, item, command,
//! checkpoint section and packed record of the fixtures, compared with what the
//! program says of them.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{json, Value};
use wire::record::{Record, Records};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    archive::Files,
    fixture::{payload, text, Unpacked, BOOT, SHARDS},
    page::Page,
};

/// Of the fixtures.
const SEGMENT_BYTES: usize = 1 << 20;
const BLOCK: usize = 4096;

/// One shard's files, and what the program said of them.
struct Shard<'f> {
    page: &'f Page,
    files: &'f Files,
    path: String,
    /// The objects of `inspect`.
    batches: Vec<&'f Value>,
    log: &'f Value,
}

impl<'f> Shard<'f> {
    fn file(&self, name: &str) -> &'f [u8] {
        &self.files[&format!("{}/{name}", self.path)]
    }

    fn named(&self, start: &str) -> Vec<String> {
        let names = self.files.keys();
        let names = names.filter_map(|name| name.strip_prefix(&format!("{}/", self.path)));
        let names = names.filter(|name| name.starts_with(start));
        names.map(str::to_owned).collect()
    }

    /// Bytes of the log from a position on, to the end of the segment.
    fn at(&self, position: u64) -> &'f [u8] {
        let (segment, offset) = (
            position / SEGMENT_BYTES as u64,
            position % SEGMENT_BYTES as u64,
        );
        let name = format!("seg-{segment:020}");
        &self.file(&name)[offset as usize..]
    }

    fn log_id(&self) -> u128 {
        u128::from_str_radix(self.log["log_id"].as_str().unwrap(), 16).unwrap()
    }

    /// The newer superblock.
    fn superblock(&self) {
        let table = self.page.table("## Superblock", 0);
        let copies = ["super-a", "super-b"].map(|name| self.file(name));
        for copy in copies {
            let (body, checksum) = copy.split_last_chunk().unwrap();
            assert_eq!(u64::from_le_bytes(*checksum), xxh3_64(body));
            assert_eq!(table.get(copy, "bytes of this copy") as usize, copy.len());
        }
        let newer = copies
            .into_iter()
            .max_by_key(|copy| table.get(copy, "serial"));
        let newer = newer.unwrap();
        assert_eq!(table.wide(newer, "log id"), self.log_id());
        assert_eq!(table.get(newer, "epoch"), self.log["epoch"]);
        assert_eq!(table.get(newer, "open counter"), self.log["open_counter"]);
        assert_eq!(table.get(newer, "segment bytes") as usize, SEGMENT_BYTES);
        let boot = u128::from_str_radix(BOOT, 16).unwrap();
        assert_eq!(
            table.wide(newer, "boot id of the last completed open"),
            boot
        );
    }

    /// Items of the batches that the program showed: kind, group, index, payload
    /// and where each byte of it stands.
    fn items(&self, links: &mut BTreeMap<u64, u64>) -> Vec<Item> {
        let header = self.page.table("## Batch", 0);
        let fragment = self.page.table("## Batch", 1);
        let mut items = Vec::new();
        let mut open: BTreeMap<u64, Item> = BTreeMap::new();
        let mut before = None;
        for batch in &self.batches {
            let position = batch["position"].as_u64().unwrap();
            let bytes = self.at(position);
            let get = |name: &str| header.get(bytes, name);
            assert_eq!(get("log position of this header"), position);
            assert_eq!(get("batch sequence"), batch["sequence"]);
            assert_eq!(get("epoch"), batch["epoch"]);
            assert_eq!(
                get("durable_next as known when the batch was sealed"),
                batch["durable_next"]
            );
            assert_eq!(get("fragments in the body"), batch["fragments"]);
            let (checksum_at, _) = header.place("checksum of all before");
            let checksum = get("checksum of all before");
            assert_eq!(checksum, xxh3_64(&bytes[..checksum_at]));
            let predecessor = get("predecessor's header checksum");
            assert!(before.is_none_or(|before| before == predecessor));
            before = Some(checksum);
            let end = header.end + get("body bytes") as usize;
            let body = &bytes[header.end..end];
            assert_eq!(get("checksum of the body"), xxh3_64(body));

            let (mut at, mut count) = (0, 0);
            while at < body.len() {
                let head = &body[at..];
                let get = |name: &str| fragment.get(head, name);
                let length = get("payload bytes of this fragment") as usize;
                let from = at + fragment.end;
                let place = position + (header.end + from) as u64;
                let piece = &body[from..from + length];
                let flags = get("flags");
                let group = get("group");
                if flags & 2 > 0 {
                    let (kind, index) = (get("kind"), get("index"));
                    let whole = get("first fragment") as usize;
                    let begun = Item {
                        kind,
                        group,
                        index,
                        whole,
                        payload: Vec::new(),
                        pieces: Vec::new(),
                    };
                    open.insert(group, begun);
                }
                // Begun in front of what is shown, else.
                if let Some(item) = open.get_mut(&group) {
                    if flags & 2 == 0 {
                        assert_eq!(get("first fragment") as usize, item.payload.len());
                        let (last, length) = item.pieces[item.pieces.len() - 1];
                        links.insert(last + length, place);
                    }
                    item.payload.extend(piece);
                    item.pieces.push((place, length as u64));
                    if flags & 4 > 0 {
                        assert_eq!(item.payload.len(), item.whole);
                        items.extend(open.remove(&group));
                    }
                }
                at = from + length;
                count += 1;
            }
            assert_eq!(count, batch["fragments"]);
        }
        items
    }
}

struct Item {
    kind: u64,
    group: u64,
    index: u64,
    /// Payload bytes.
    whole: usize,
    payload: Vec<u8>,
    /// Where its pieces stand, and their lengths.
    pieces: Vec<(u64, u64)>,
}

/// A partition by (queue id, number).
type Key = (u64, u64);

/// What a checkpoint and the commands behind it make of a partition, as far as
/// it can be told without being a queue.
#[derive(Default)]
struct Partition {
    covered: u64,
    next_offset: u64,
    generation: u64,
    losses: Vec<Value>,
    /// Payload, key and length by offset; of what was there at the checkpoint.
    records: BTreeMap<u64, (Value, String)>,
}

/// Reads one fixture by the page and compares it with what is said beside it.
fn read(name: &str) {
    let page = Page::new();
    let fixture = Unpacked::new(name);
    let (files, holds) = (fixture.files(), fixture.holds.clone());
    let mut partitions: BTreeMap<Key, Partition> = BTreeMap::new();
    let mut queues = BTreeSet::new();
    for shard in 0..SHARDS {
        let objects = holds["offline"]["inspect"]["objects"].as_array().unwrap();
        let own = objects.iter().filter(|object| object["shard"] == shard);
        let (batches, logs): (Vec<_>, Vec<_>) = own.partition(|object| object["kind"] == "batch");
        let shard = Shard {
            page: &page,
            files: &files,
            path: format!("data/shard-{shard:02}"),
            batches,
            log: logs[0],
        };
        shard.superblock();
        let mut links = BTreeMap::new();
        checkpoint(&shard, &mut links, &mut partitions, &mut queues);
        packed_files(&shard);
        let items = shard.items(&mut links);
        assert_eq!(items.len() as u64, shard.log["items"].as_u64().unwrap());
        replay(&page, &items, &mut partitions, &mut queues);
        markers(&shard);
    }
    compare(&holds["served"], &partitions, &queues);
}

/// The checkpoint in force, if there is one.
fn checkpoint(
    shard: &Shard<'_>,
    links: &mut BTreeMap<u64, u64>,
    partitions: &mut BTreeMap<Key, Partition>,
    queues: &mut BTreeSet<String>,
) {
    let page = shard.page;
    let head = page.table("## Checkpoint", 0);
    let section = page.table("## Checkpoint", 1);
    let layouts = page.layouts("## Checkpoint", 0);
    let names = shard.named("ckpt-");
    let files = names.iter().map(|name| shard.file(name));
    let with_head = files.filter(|file| file[0] != 0);
    let Some(file) = with_head.max_by_key(|file| head.get(file, "serial")) else {
        return;
    };
    let serial = shard.log["checkpoint"].as_u64();
    assert_eq!(head.get(file, "serial"), serial.unwrap_or(0));
    let body = &file[BLOCK..BLOCK + head.get(file, "body bytes") as usize];
    assert_eq!(head.get(file, "checksum of the body"), xxh3_64(body));
    let (at, _) = head.place("checksum of all before");
    assert_eq!(
        head.get(file, "checksum of all before"),
        xxh3_64(&file[..at])
    );
    if let Some(first) = shard.batches.first().filter(|_| serial.is_some()) {
        assert_eq!(head.get(file, "anchor"), first["position"]);
    }

    let mut sections = Vec::new();
    let mut at = 0;
    while at < body.len() {
        let kind = section.get(&body[at..], "kind") as u8;
        let from = at + section.end;
        at = from + section.get(&body[at..], "payload bytes") as usize;
        let payload = &body[from..at];
        sections.push((kind, layouts[&kind].read(payload), payload));
    }
    assert_eq!(at, body.len());
    for (_, read, _) in sections.iter().filter(|(kind, ..)| *kind == 6) {
        for link in read["…"].as_array().unwrap() {
            links.insert(number(link, "end"), number(link, "next"));
        }
    }
    let mut last = (0, 0);
    for (kind, read, payload) in &sections {
        match kind {
            2 => note_queues(read, queues),
            3 => drop(group_state(
                page,
                &payload[number(read, "group_state") as usize..],
            )),
            4 => {
                last = key(read);
                partitions.insert(last, captured(read));
            }
            5 => {
                let partition = partitions.get_mut(&last).unwrap();
                for run in read["…"].as_array().unwrap() {
                    take_run(shard, links, run, partition);
                }
            }
            _ => {}
        }
    }
}

fn number(value: &Value, name: &str) -> u64 {
    let field = value
        .get(name)
        .unwrap_or_else(|| panic!("no {name}: {value}"));
    field.as_u64().unwrap()
}

fn key(value: &Value) -> Key {
    (number(value, "queue_id"), number(value, "partition"))
}

fn note_queues(meta: &Value, queues: &mut BTreeSet<String>) {
    for queue in meta["queues"].as_array().unwrap() {
        queues.insert(queue["name"].as_str().unwrap().to_owned());
    }
}

fn captured(read: &Value) -> Partition {
    let losses = read["losses"].as_array().unwrap().iter().map(|loss| {
        let confirmed = number(loss, "confirmed_next");
        let confirmed = (confirmed > 0).then_some(confirmed);
        json!([
            number(loss, "generation"),
            number(loss, "first_lost"),
            confirmed
        ])
    });
    Partition {
        covered: number(read, "covered"),
        next_offset: number(read, "next_offset"),
        generation: number(read, "generation"),
        losses: losses.collect(),
        records: BTreeMap::new(),
    }
}

/// Reads the records of a run where it says they are.
fn take_run(shard: &Shard<'_>, links: &BTreeMap<u64, u64>, run: &Value, partition: &mut Partition) {
    let packed = number(run, "kind") & 3 == 2;
    let mut place = number(run, "place");
    let offsets = number(run, "first_offset")..;
    for (offset, length) in offsets.zip(run["lengths"].as_array().unwrap()) {
        let length = length.as_u64().unwrap() as usize;
        let bytes = if packed {
            let file = shard.file(&format!("pack-{:010}", place >> 32));
            let at = (place & 0xffff_ffff) as usize;
            file[at..at + length].to_vec()
        } else {
            ring_bytes(shard, links, place, length)
        };
        place += length as u64;
        let seen = note_record(&bytes);
        assert_eq!(partition.records.insert(offset, seen), None);
    }
}

fn ring_bytes(
    shard: &Shard<'_>,
    links: &BTreeMap<u64, u64>,
    mut place: u64,
    length: usize,
) -> Vec<u8> {
    let mut bytes = Vec::new();
    while bytes.len() < length {
        place = links.get(&place).copied().unwrap_or(place);
        let behind = links.range(place + 1..).next();
        let there = behind.map_or(u64::MAX, |(end, _)| end - place);
        let count = there.min((length - bytes.len()) as u64);
        bytes.extend(&shard.at(place)[..count as usize]);
        place += count;
    }
    bytes
}

fn note_record(bytes: &[u8]) -> (Value, String) {
    assert!(Record::is_intact(bytes));
    let record = Records::new(bytes).next().unwrap().unwrap();
    assert_eq!(record.bytes.len(), bytes.len());
    (payload(record.payload), text(record.key))
}

fn packed_files(shard: &Shard<'_>) {
    let head = shard.page.table("## Packed file", 0);
    let entry = shard.page.table("## Packed file", 1);
    for name in shard.named("pack-") {
        let file = shard.file(&name);
        let number: u64 = name["pack-".len()..].parse().unwrap();
        assert_eq!(head.get(file, "number of the file"), number);
        assert_eq!(head.wide(file, "log id"), shard.log_id());
        let records = head.get(file, "records") as usize;
        let data = head.get(file, "bytes of records") as usize;
        let index = &file[BLOCK + data..][..records * entry.end];
        assert_eq!(head.get(file, "checksum of the index"), xxh3_64(index));
        let mut at = BLOCK;
        for entry_bytes in index.chunks(entry.end) {
            assert_eq!(entry.get(entry_bytes, "place in the file") as usize, at);
            let length = entry.get(entry_bytes, "length") as usize;
            assert!(Record::is_intact(&file[at..at + length]));
            at += length;
        }
        assert_eq!(at, BLOCK + data);
    }
}

fn group_state(page: &Page, bytes: &[u8]) -> u64 {
    let table = page.table("## Group state (item kind 2)", 0);
    let voters = table.get(bytes, "voters") as usize;
    assert_eq!(bytes.len(), table.end + 8 * voters);
    assert_eq!(voters, 1);
    let voter = u64::from_le_bytes(bytes[table.end..].try_into().unwrap());
    assert_eq!(voter, table.get(bytes, "peer id"));
    table.get(bytes, "generation")
}

/// The commands behind the checkpoint.
fn replay(
    page: &Page,
    items: &[Item],
    partitions: &mut BTreeMap<Key, Partition>,
    queues: &mut BTreeSet<String>,
) {
    let of_group_0 = page.layouts("## Entries (item kind 1)", 0);
    let of_groups = page.layouts("## Entries (item kind 1)", 1);
    for item in items {
        if item.kind == 2 {
            group_state(page, &item.payload);
            continue;
        }
        let Some((kind, bytes)) = item.payload.split_first() else {
            continue;
        };
        let layouts = if item.group == 0 {
            &of_group_0
        } else {
            &of_groups
        };
        let read = layouts[kind].read(bytes);
        assert_eq!(number(&read, "version"), 1);
        match (item.group, kind) {
            (0, 1) => drop(queues.insert(read["name"].as_str().unwrap().to_owned())),
            (0, _) => {}
            (_, 2) => drop(partitions.remove(&key(&read))),
            (_, 8) => {}
            _ => {
                let partition = partitions.entry(key(&read)).or_default();
                if item.index > partition.covered {
                    follow(partition, *kind, &read, bytes);
                }
            }
        }
    }
}

fn follow(partition: &mut Partition, kind: u8, read: &Value, bytes: &[u8]) {
    match kind {
        1 => partition.generation = 1,
        3 => {
            let records = &bytes[number(read, "records") as usize..];
            let mut count = 0;
            for record in Records::new(records) {
                let seen = note_record(record.unwrap().bytes);
                partition.records.insert(partition.next_offset, seen);
                partition.next_offset += 1;
                count += 1;
            }
            assert_eq!(count, number(read, "count"));
        }
        9 => partition.generation = number(read, "generation"),
        _ => {}
    }
}

/// Clean marker, latch record, token.
fn markers(shard: &Shard<'_>) {
    let table = shard.page.table("## Latch record and token", 0);
    let check = |bytes: &[u8], state: u64| {
        assert_eq!(bytes.len(), table.end);
        assert_eq!(table.get(bytes, "state"), state);
        assert_eq!(table.wide(bytes, "log id"), shard.log_id());
        assert_eq!(table.get(bytes, "open counter"), shard.log["open_counter"]);
        let (at, _) = table.place("checksum of all before");
        assert_eq!(
            table.get(bytes, "checksum of all before"),
            xxh3_64(&bytes[..at])
        );
    };
    let latched = shard.log["latched"] == true;
    let token = &shard.files[&format!("run/tidegate-log-{:032x}", shard.log_id())];
    check(token, if latched { 2 } else { 1 });
    assert_eq!(shard.named("latched").len(), usize::from(latched));
    if latched {
        check(shard.file("latched"), 2);
    }
    let clean = shard.files.get("data/clean");
    assert_eq!(clean.is_some(), shard.log["stopped_cleanly"] == true);
    let Some(clean) = clean else { return };
    let table = shard.page.table("## Clean marker", 0);
    let logs = table.get(clean, "logs") as usize;
    let entries = clean[table.end..].chunks(40).take(logs);
    let own = entries
        .map(|entry| {
            let word = |at: usize| u64::from_le_bytes(entry[at..at + 8].try_into().unwrap());
            let log_id = u128::from_le_bytes(entry[..16].try_into().unwrap());
            (log_id, word(16), word(24))
        })
        .find(|(log_id, ..)| *log_id == shard.log_id());
    let (_, open_counter, end) = own.unwrap();
    assert_eq!(open_counter, shard.log["open_counter"]);
    assert_eq!(end, shard.log["end"]);
}

/// With what a server showed of the directory.
fn compare(served: &Value, partitions: &BTreeMap<Key, Partition>, queues: &BTreeSet<String>) {
    let mut compared = 0;
    for (name, shown) in served.as_object().unwrap() {
        assert!(queues.contains(name), "{name} is declared nowhere");
        let id = number(&shown["queue"], "id");
        let stated = shown["queue"]["partitions"].as_array().unwrap();
        for (number_of, stated) in (0..).zip(stated) {
            let partition = &partitions[&(id, number_of)];
            assert_eq!(partition.next_offset, number(stated, "published"), "{name}");
            // A start of a latched log begins another one.
            assert!(partition.generation <= number(stated, "generation"));
            let losses = stated["losses"].as_array().unwrap();
            assert!(losses.starts_with(&partition.losses), "{name}");
        }
        for record in shown["records"].as_array().unwrap() {
            let partition = &partitions[&(id, number(record, "partition"))];
            let (payload, key) = &partition.records[&number(record, "offset")];
            assert_eq!(
                (payload, key.as_str()),
                (&record["payload"], record["key"].as_str().unwrap())
            );
            compared += 1;
        }
    }
    assert!(compared >= 10, "{compared}");
}

#[test]
fn a_reader_written_from_the_page_reads_a_stopped_directory() {
    read("stopped");
}

#[test]
fn a_reader_written_from_the_page_reads_a_killed_directory() {
    read("killed");
}

#[test]
fn a_reader_written_from_the_page_reads_a_latched_directory() {
    read("latched");
}

/// Every line of the layouts that the fixtures do not have to hold is at least
/// understood.
#[test]
fn the_layouts_of_the_page_have_every_kind_there_is() {
    let page = Page::new();
    let count = |heading, nth| page.layouts(heading, nth).into_keys().collect::<Vec<u8>>();
    let of_group_0: Vec<u8> = (1..=16).chain(19..=21).collect();
    assert_eq!(count("## Entries (item kind 1)", 0), of_group_0);
    let all = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 19];
    assert_eq!(count("## Entries (item kind 1)", 1), all);
    assert_eq!(count("## Checkpoint", 0), [1, 2, 3, 4, 5, 6, 7]);
}
