//! What stands on a disk as any bytes: checkpoints and packed files, and what a group's
//! log and checkpoint say of it: commands of group 0, memberships, states.
//!
//! Owns: the claims about those decoders. The fuzz targets and the property
//! tests of the simulator's crate call the same functions.
//!
//! Invariants, checked by assertions:
//! 1. No input makes a decoder panic, nor what is made of an accepted one.
//! 2. Nothing is allocated by a number in the input alone: what is accepted is
//!    no more than its bytes can tell of.
//! 3. What is accepted, captured again, reads the same.

use shards::{
    engine::{Boot, EngineConfig, ShardPlace},
    group::{GroupState, Members, MembershipChange},
    io::Disk,
    log::{Anchor, LogId, LogPosition},
    state::{
        meta::{MetaCommand, MetaState},
        queue::{ConsumerId, Partition},
    },
    store::{
        check_formats, check_packs, look, pack_name, read_index, verify_pack, Checkpoint,
        CheckpointHead, Sections, CHECKPOINT_FILES,
    },
};
use tidegate_sim::{Random, SimDisk};
use xxhash_rust::xxh3::xxh3_64;

/// Whose files these are.
pub const LOG: LogId = LogId(7);
/// Number of the packed file.
pub const PACK: u32 = 9;
pub const DATA_GROUPS: u32 = 6;
/// Bytes of a checkpoint's head, and of a packed file's.
pub const CHECKPOINT_HEAD_BYTES: usize = 112;
pub const PACK_HEAD_BYTES: usize = 56;
const BLOCK: usize = 4096;
/// Of a run of records, and how many it can stand for.
const RUN_BYTES: u64 = 27;
const RUN_RECORDS: u64 = u16::MAX as u64;
/// Memory that a run can take, in bytes: 32 a record, and as much again for
/// chunks of 256 that it only begins and ends in.
const RUN_INDEX_BYTES: u64 = 2 * 32 * RUN_RECORDS + (64 << 10);

fn config() -> EngineConfig {
    EngineConfig {
        shard: 0,
        node: 1,
        cookie: 1,
        nonce: 1,
        lineage: shards::state::meta::Lineage::default(),
        level: shards::state::level::OWN_LEVEL,
        joins: false,
        nodes: vec![1],
        place: ShardPlace::spread(DATA_GROUPS, 1),
        start_wall_ms: 1_000_000,
        start_mono_ms: 0,
        random: 1,
        window_bytes: 1 << 20,
        read_cache_bytes: 1 << 20,
        index_memory_bytes: 1 << 30,
        scrub_interval_ms: 0,
        recovery_grace_ms: 1_000,
        catch_up_bytes_per_s: 32 << 20,
        spread_after_ms: 0,
        addresses: Vec::new(),
        force_group_0: None,
        server: String::new(),
        advertise: String::new(),
    }
}

/// The body of a checkpoint, as boot reads it.
pub fn checkpoint_body(data: &[u8]) {
    let mut bytes = 0;
    let mut sound = true;
    for section in Sections::new(data) {
        match section {
            Ok(section) => bytes += 8 + section.payload.len(),
            Err(_) => sound = false,
        }
    }
    assert!(bytes <= data.len());
    assert!(!sound || bytes == data.len(), "all bytes are in sections");
    let checkpoint = Checkpoint {
        head: head(),
        body: data.to_vec(),
    };
    let (base, packs) = (checkpoint.base(), checkpoint.packs());
    if let Ok(base) = &base {
        assert!(base.links.len() * 16 <= data.len());
        let in_order = base.links.windows(2).all(|two| two[0].0 < two[1].0);
        assert!(in_order && base.links.iter().all(|(end, next)| end < next));
    }
    if let Ok(packs) = &packs {
        assert!(packs.len() * 28 <= data.len());
    }
    if Boot::new(config()).restore(&checkpoint).is_ok() {
        assert!(sound && packs.is_ok());
    }
}

fn head() -> CheckpointHead {
    CheckpointHead {
        log_id: LOG,
        serial: 1,
        anchor: Anchor::default(),
        durable_next: LogPosition(0),
        keep_from: LogPosition(0),
        next_pack: 1,
    }
}

/// A captured partition: length of its head (two bytes), head, records.
pub fn partition(data: &[u8]) {
    let Some((length, rest)) = data.split_first_chunk::<2>() else {
        return;
    };
    let length = usize::from(u16::from_le_bytes(*length));
    let Some((head, records)) = rest.split_at_checked(length) else {
        return;
    };
    let Ok(mut partition) = Partition::restore(head) else {
        return;
    };
    let restored = partition.restore_records(records);
    let runs = records.len() as u64 / RUN_BYTES + 1;
    let most = runs * RUN_INDEX_BYTES + 64 * head.len() as u64 + 4096;
    assert!(partition.index_bytes() <= most);
    if restored.is_err() {
        return;
    }
    let first = capture(&mut partition);
    let mut again = Partition::restore(&first.0).expect("what was captured");
    again.restore_records(&first.1).expect("what was captured");
    assert!(first == capture(&mut again), "captured anew it is another");
    serve(&mut partition);
}

fn capture(partition: &mut Partition) -> (Vec<u8>, Vec<u8>) {
    let (mut head, mut records) = (Vec::new(), Vec::new());
    partition.begin_capture(&mut head);
    while partition.capture_records(usize::MAX, &mut records, &mut |_, _| {}) {}
    partition.end_capture();
    (head, records)
}

/// Hands some of it out.
fn serve(partition: &mut Partition) {
    partition.open_delivery(u64::MAX);
    partition.open_mark(u64::MAX);
    let id = ConsumerId {
        connection: 1,
        subscription: 1,
    };
    partition.subscribe(id, 100, 1 << 40);
    let mut offsets = std::collections::BTreeSet::new();
    while let Some(dispatch) = partition.next_delivery(2_000_000, &mut |_| false) {
        assert!(offsets.insert(dispatch.offset), "handed out twice");
    }
    let counts = partition.counts(2_000_000);
    assert_eq!(counts.leased, offsets.len() as u64);
}

/// Group 0's state.
pub fn meta(data: &[u8]) {
    let Ok(state) = MetaState::restore(DATA_GROUPS, data) else {
        return;
    };
    let mut first = Vec::new();
    state.capture(&mut first);
    assert!(first.len() <= data.len());
    let again = MetaState::restore(DATA_GROUPS, &first).expect("what was captured");
    let mut second = Vec::new();
    again.capture(&mut second);
    assert_eq!(first, second);
    assert!(state.iter_from("").count() <= state.len());
}

/// Group 0's log: commands, each behind its length (two bytes), applied one after the
/// other. What is made of them is captured and restored as it is.
pub fn meta_commands(data: &[u8]) {
    let mut state = MetaState::new(DATA_GROUPS);
    let mut twin = MetaState::new(DATA_GROUPS);
    let mut rest = data;
    while let Some((length, behind)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_le_bytes(*length)).min(behind.len());
        let (command, behind) = behind.split_at(length);
        rest = behind;
        let Ok(command) = MetaCommand::decode(command) else {
            continue;
        };
        let again = MetaCommand::decode(&command.encode()).expect("what was encoded");
        assert_eq!(again, command);
        assert_eq!(state.apply(&command), twin.apply(&again));
    }
    let (mut first, mut second) = (Vec::new(), Vec::new());
    state.capture(&mut first);
    twin.capture(&mut second);
    assert_eq!(first, second, "the same commands make the same state");
    let restored = MetaState::restore(DATA_GROUPS, &first).expect("what was captured");
    second.clear();
    restored.capture(&mut second);
    assert_eq!(first, second);
    for (group, _) in state.histories() {
        assert_eq!(state.generation(group), restored.generation(group));
    }
}

/// What an entry and a checkpoint say of a group's replicas.
pub fn group(data: &[u8]) {
    if let Some(change) = MembershipChange::decode(data) {
        assert_eq!(change.encode().as_slice(), data);
        let mut members = Members::of_voters(vec![1, 2, 3]);
        change.apply(&mut members);
        let voters = members.voters.iter();
        assert!(voters.clone().all(|peer| !members.learners.contains(peer)));
    }
    if let Some(members) = Members::decode(data) {
        assert!(8 * (members.voters.len() + members.learners.len()) <= data.len());
        let mut again = Vec::new();
        members.encode(&mut again);
        assert_eq!(again, data);
    }
    if let Ok(state) = GroupState::decode(data) {
        let again = GroupState::decode(&state.encode()).expect("what was encoded");
        assert_eq!(again, state);
    }
}

/// A checkpoint file: what is made right (1 the body's checksum, 2 the head's),
/// the head's bytes, the body.
pub fn checkpoint_head(data: &[u8]) {
    let Some((mend, rest)) = data.split_first() else {
        return;
    };
    let Some((head, body)) = rest.split_at_checked(CHECKPOINT_HEAD_BYTES) else {
        return;
    };
    let mut file = head.to_vec();
    file.resize(BLOCK, 0);
    file.extend_from_slice(body);
    let stated = u64::from_le_bytes(head[88..96].try_into().expect("eight"));
    let covered = usize::try_from(stated).ok().and_then(|len| body.get(..len));
    if let Some(covered) = covered.filter(|_| mend & 1 > 0) {
        file[96..104].copy_from_slice(&xxh3_64(covered).to_le_bytes());
    }
    if mend & 2 > 0 {
        let checksum = xxh3_64(&file[..104]);
        file[104..112].copy_from_slice(&checksum.to_le_bytes());
    }
    let disk = SimDisk::new(Random::new(1));
    let name = CHECKPOINT_FILES[usize::from(mend >> 7)];
    disk.create_whole(name, &file).expect("a new file");
    let checked = check_formats(&disk, LOG);
    match look(&disk, LOG) {
        Ok(Some(found)) => {
            assert_eq!(found.head.log_id, LOG);
            assert_eq!(Some(found.body.as_slice()), covered);
        }
        Ok(None) => assert!(checked.is_ok()),
        Err(_) => assert!(checked.is_err()),
    }
    assert_eq!(disk.contents(name), Some(file), "a look changes nothing");
}

/// A packed file: what is made right (1 the index's checksum, 2 the head's), the
/// head's bytes, what is behind its block.
pub fn pack(data: &[u8]) {
    let Some((mend, rest)) = data.split_first() else {
        return;
    };
    let Some((head, behind)) = rest.split_at_checked(PACK_HEAD_BYTES) else {
        return;
    };
    let mut file = head.to_vec();
    file.resize(BLOCK, 0);
    file.extend_from_slice(behind);
    let word = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four")) as usize;
    let from = BLOCK + word(36);
    let index = word(32)
        .checked_mul(40)
        .and_then(|len| file.get(from..from.checked_add(len)?));
    if let Some(index) = index.filter(|_| mend & 1 > 0) {
        let checksum = xxh3_64(index);
        file[40..48].copy_from_slice(&checksum.to_le_bytes());
    }
    if mend & 2 > 0 {
        let checksum = xxh3_64(&file[..48]);
        file[48..56].copy_from_slice(&checksum.to_le_bytes());
    }
    let disk = SimDisk::new(Random::new(1));
    let name = pack_name(PACK);
    disk.create_whole(&name, &file).expect("a new file");
    // Damage is no other format.
    let checked = check_packs(&disk, LOG, &[PACK].into());
    if let Ok(index) = read_index(&disk, LOG, PACK) {
        checked.expect("its format is read");
        assert!(index.len() * 40 <= file.len());
        for entry in &index {
            assert!(entry.at as usize + entry.len as usize <= file.len());
        }
        let bad = verify_pack(&disk, LOG, PACK, &mut |_| {}).expect("its index is read");
        assert!(bad.len() <= index.len());
    }
}
