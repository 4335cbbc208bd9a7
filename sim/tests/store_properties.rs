//! The fuzz entries of what stands on a disk under plain `cargo test`: any
//! bytes, and real ones bent in a few places. `PROPTEST_CASES` raises the budget.

#[path = "../../tests/format/archive.rs"]
#[allow(dead_code)]
mod archive;
#[path = "../../fuzz/src/store_entries.rs"]
mod entries;

use std::{fs, path::Path, sync::OnceLock};

use entries::{CHECKPOINT_HEAD_BYTES, LOG, PACK, PACK_HEAD_BYTES};
use proptest::{collection::vec, prelude::*, sample::Index};
use shards::{
    group::{GroupState, Members, MembershipChange, MembershipStep, PeerId},
    io::Disk,
    log::{segment_name, Extent},
    state::meta::{peer_id, Answer, DeclareRequest, Lineage, MetaCommand, Open},
    store::{pack_name, write_pack, PackJob, PackRecord, RecordSource, SectionKind, Sections},
};
use tidegate_sim::{Random, SimDisk};
use wire::{
    record::RecordParts,
    vocabulary::{Boundary, Mode},
};

const BLOCK: usize = 4096;

/// 512 cases of each property, some seconds in all.
fn budget() -> ProptestConfig {
    let standard = ProptestConfig::default();
    match std::env::var_os("PROPTEST_CASES") {
        Some(_) => standard,
        None => ProptestConfig {
            cases: 512,
            ..standard
        },
    }
}

/// Inputs of each entry, made from what a server left behind.
#[derive(Default)]
struct Seeds {
    checkpoint_body: Vec<Vec<u8>>,
    checkpoint_head: Vec<Vec<u8>>,
    meta: Vec<Vec<u8>>,
    partition: Vec<Vec<u8>>,
    pack: Vec<Vec<u8>>,
    meta_commands: Vec<Vec<u8>>,
    group: Vec<Vec<u8>>,
}

impl Seeds {
    fn all(&self) -> [(&'static str, &[Vec<u8>]); 7] {
        [
            ("checkpoint_body", &self.checkpoint_body),
            ("checkpoint_head", &self.checkpoint_head),
            ("meta", &self.meta),
            ("partition", &self.partition),
            ("pack", &self.pack),
            ("meta_commands", &self.meta_commands),
            ("group", &self.group),
        ]
    }
}

fn seeds() -> &'static Seeds {
    static SEEDS: OnceLock<Seeds> = OnceLock::new();
    SEEDS.get_or_init(|| {
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/format-1");
        let mut seeds = Seeds::default();
        for name in ["stopped", "killed"] {
            let text = fs::read_to_string(fixtures.join(format!("{name}.txt"))).unwrap();
            for (file, bytes) in archive::from_text(&text) {
                if file.contains("/ckpt-") && bytes[0] != 0 {
                    take_checkpoint(&bytes, &mut seeds);
                }
            }
        }
        seeds.pack = vec![small_pack(0), small_pack(1), small_pack(5)];
        seeds.meta_commands = vec![framed(&commands()), framed(&commands()[..3])];
        seeds.group = group_items();
        seeds
    })
}

fn take_checkpoint(file: &[u8], seeds: &mut Seeds) {
    let length = u64::from_le_bytes(file[88..96].try_into().unwrap()) as usize;
    let body = &file[BLOCK..BLOCK + length];
    seeds.checkpoint_body.push(body.to_vec());
    let mut head = file[..CHECKPOINT_HEAD_BYTES].to_vec();
    head[16..32].copy_from_slice(&LOG.0.to_le_bytes());
    seeds
        .checkpoint_head
        .push([&[3], head.as_slice(), body].concat());
    // What stands in front of a captured partition is the engine's.
    let mut last: Option<Vec<u8>> = None;
    for section in Sections::new(body) {
        let section = section.unwrap();
        match section.kind {
            SectionKind::Meta => seeds.meta.push(section.payload.to_vec()),
            SectionKind::Partition => {
                let losses = u32::from_le_bytes(section.payload[16..20].try_into().unwrap());
                let head = &section.payload[20 + 20 * losses as usize..];
                let length = (head.len() as u16).to_le_bytes();
                seeds
                    .partition
                    .extend(last.replace([&length, head].concat()));
            }
            SectionKind::Records => last.as_mut().unwrap().extend(section.payload),
            _ => {}
        }
    }
    seeds.partition.extend(last);
}

/// A packed file of so many records, as its entry takes it.
fn small_pack(records: usize) -> Vec<u8> {
    let disk = SimDisk::new(Random::new(1));
    let (mut segment, mut job) = (
        vec![0; 96],
        PackJob {
            file: PACK,
            log_id: LOG,
            records: Vec::new(),
            extents: Vec::new(),
        },
    );
    for number in 0..records {
        let parts = RecordParts {
            key: b"key",
            payload: &vec![number as u8; 20 * number],
            ..RecordParts::default()
        };
        let offset = segment.len() as u64;
        parts.encode(&mut segment).unwrap();
        let len = (segment.len() as u64 - offset) as u32;
        job.extents.push(Extent {
            segment: 4,
            offset,
            len,
        });
        job.records.push(PackRecord {
            queue_id: 1,
            offset: number as u64,
            group: 3,
            generation: 1,
            partition: 0,
            len,
            source: RecordSource::Ring {
                first: number as u32,
                extents: 1,
            },
        });
    }
    disk.create_whole(&segment_name(4), &segment).unwrap();
    write_pack(&disk, &job).unwrap();
    let file = disk.contents(&pack_name(PACK)).unwrap();
    [&[3], &file[..PACK_HEAD_BYTES], &file[BLOCK..]].concat()
}

/// One of each kind, and what a recovery takes from beginning to end.
fn commands() -> Vec<MetaCommand> {
    let peer = |node| peer_id(node, 1);
    let mut commands = vec![MetaCommand::Declare(DeclareRequest {
        name: "orders".to_owned(),
        mode: Some(Mode::Buffered),
        ..DeclareRequest::default()
    })];
    for node in 1..=3 {
        let open = Open {
            cookie: u64::from(node),
            counter: 1,
            nonce: 7,
            lineage: Lineage {
                token: 9,
                last_token: 0,
                recorded: 0,
            },
            level: 1,
        };
        let log = 0;
        commands.push(MetaCommand::Opened { node, log, open });
        commands.push(MetaCommand::Rejoin {
            group: 2,
            retired_peer: peer(node),
            harmed: node == 3,
        });
    }
    commands.push(MetaCommand::Promoting {
        group: 2,
        generation: 1,
        peer: peer(2),
    });
    commands.push(MetaCommand::Collect {
        group: 2,
        generation: 1,
        accepts_loss: false,
    });
    for node in 1..=3 {
        commands.push(MetaCommand::Answered {
            group: 2,
            generation: 1,
            answer: Answer {
                peer: peer(node),
                last_term: 3,
                last_index: u64::from(node),
                counts: node < 3,
            },
        });
    }
    commands.push(MetaCommand::Forget { node: 3 });
    commands.push(MetaCommand::Recovered {
        group: 2,
        generation: 2,
        retired_peer: peer(2),
        new_peer: peer_id(2, 9),
    });
    commands.push(MetaCommand::Delete { queue_id: 1 });
    commands
}

/// As their entry takes them.
fn framed(commands: &[MetaCommand]) -> Vec<u8> {
    let mut out = Vec::new();
    for command in commands {
        let bytes = command.encode();
        out.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        out.extend_from_slice(&bytes);
    }
    out
}

fn group_items() -> Vec<Vec<u8>> {
    let members = Members {
        voters: vec![1, 2, 3],
        learners: vec![4],
    };
    let mut encoded = Vec::new();
    members.encode(&mut encoded);
    let change = MembershipChange {
        step: MembershipStep::Promote,
        peer: 4,
    };
    let state = |stopped| GroupState {
        answers_at: Boundary::Written,
        generation: 2,
        peer: PeerId(1),
        term: 5,
        vote: 1,
        commit: 9,
        base_index: 3,
        base_term: 2,
        members: members.clone(),
        stopped,
        keeps_reported: true,
    };
    vec![
        encoded,
        change.encode().to_vec(),
        state(false).encode(),
        state(true).encode(),
    ]
}

/// A few changes to otherwise valid bytes: they reach deeper than noise.
#[derive(Debug, Clone)]
enum Change {
    Set(Index, u8),
    /// A length, a count, a place.
    SetWord(Index, u32),
    Cut(Index),
    Remove(Index),
    Insert(Index, u8),
    /// So many bytes from there over those here.
    Copy(Index, Index, u8),
}

fn change() -> impl Strategy<Value = Change> {
    let word = prop_oneof![
        Just(0),
        Just(1),
        Just(u32::MAX),
        Just(1 << 31),
        any::<u32>()
    ];
    prop_oneof![
        6 => (any::<Index>(), any::<u8>()).prop_map(|(at, to)| Change::Set(at, to)),
        4 => (any::<Index>(), word).prop_map(|(at, to)| Change::SetWord(at, to)),
        1 => any::<Index>().prop_map(Change::Cut),
        1 => any::<Index>().prop_map(Change::Remove),
        1 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Change::Insert(at, byte)),
        2 => (any::<Index>(), any::<Index>(), any::<u8>())
            .prop_map(|(from, to, count)| Change::Copy(from, to, count)),
    ]
}

fn bend(bytes: &mut Vec<u8>, changes: &[Change]) {
    for change in changes {
        if bytes.is_empty() {
            return;
        }
        let len = bytes.len();
        match change {
            Change::Set(at, to) => bytes[at.index(len)] = *to,
            Change::SetWord(at, to) => {
                let at = at.index(len);
                let end = len.min(at + 4);
                bytes[at..end].copy_from_slice(&to.to_le_bytes()[..end - at]);
            }
            Change::Cut(at) => bytes.truncate(at.index(len)),
            Change::Remove(at) => drop(bytes.remove(at.index(len))),
            Change::Insert(at, byte) => bytes.insert(at.index(len), *byte),
            Change::Copy(from, to, count) => {
                let (from, to) = (from.index(len), to.index(len));
                let count = usize::from(*count).min(len - from.max(to));
                bytes.copy_within(from..from + count, to);
            }
        }
    }
}

/// One of the inputs, bent.
fn bent(of: fn(&Seeds) -> &Vec<Vec<u8>>) -> impl Strategy<Value = Vec<u8>> {
    (any::<Index>(), vec(change(), 1..6)).prop_map(move |(which, changes)| {
        let seeds = of(seeds());
        let mut bytes = seeds[which.index(seeds.len())].clone();
        bend(&mut bytes, &changes);
        bytes
    })
}

fn noise() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..600)
}

#[test]
fn what_a_server_left_passes_through_every_entry() {
    let seeds = seeds();
    for (name, inputs) in seeds.all() {
        assert!(inputs.len() >= 2, "{name}");
    }
    seeds
        .checkpoint_body
        .iter()
        .for_each(|input| entries::checkpoint_body(input));
    seeds
        .checkpoint_head
        .iter()
        .for_each(|input| entries::checkpoint_head(input));
    seeds.meta.iter().for_each(|input| entries::meta(input));
    seeds
        .partition
        .iter()
        .for_each(|input| entries::partition(input));
    seeds.pack.iter().for_each(|input| entries::pack(input));
    seeds
        .meta_commands
        .iter()
        .for_each(|input| entries::meta_commands(input));
    seeds.group.iter().for_each(|input| entries::group(input));
}

/// For `scripts/fuzz`: where its corpus begins.
#[test]
#[ignore = "writes fuzz/corpus"]
fn write_the_seeds_of_the_fuzz_targets() {
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus");
    for (name, inputs) in seeds().all() {
        let directory = corpus.join(name);
        fs::create_dir_all(&directory).unwrap();
        for (number, input) in inputs.iter().enumerate() {
            fs::write(directory.join(format!("seed-{number}")), input).unwrap();
        }
    }
}

proptest! {
    #![proptest_config(budget())]

    #[test]
    fn noise_is_no_checkpoint_and_no_packed_file(data in noise()) {
        entries::checkpoint_body(&data);
        entries::checkpoint_head(&data);
        entries::meta(&data);
        entries::partition(&data);
        entries::pack(&data);
        entries::meta_commands(&data);
        entries::group(&data);
    }

    #[test]
    fn bent_commands_of_group_0_are_applied_alike_or_refused(
        data in bent(|seeds| &seeds.meta_commands),
    ) {
        entries::meta_commands(&data);
    }

    #[test]
    fn bent_memberships_and_states_of_groups_are_read_or_refused(
        data in bent(|seeds| &seeds.group),
    ) {
        entries::group(&data);
    }

    #[test]
    fn bent_checkpoint_bodies_are_read_or_refused(data in bent(|seeds| &seeds.checkpoint_body)) {
        entries::checkpoint_body(&data);
    }

    #[test]
    fn bent_checkpoint_heads_are_read_or_refused(data in bent(|seeds| &seeds.checkpoint_head)) {
        entries::checkpoint_head(&data);
    }

    #[test]
    fn bent_states_of_group_0_are_read_or_refused(data in bent(|seeds| &seeds.meta)) {
        entries::meta(&data);
    }

    #[test]
    fn bent_partitions_are_read_or_refused(data in bent(|seeds| &seeds.partition)) {
        entries::partition(&data);
    }

    #[test]
    fn bent_packed_files_are_read_or_refused(data in bent(|seeds| &seeds.pack)) {
        entries::pack(&data);
    }
}
