//! A log's first checkpoint: its files are there before it.

use shards::log::{LogId, LogPosition};
use shards::store::{self, CheckpointHead};
use tidegate_sim::{Random, SimDisk};

const LOG: LogId = LogId(7);

fn head(serial: u64) -> CheckpointHead {
    CheckpointHead {
        log_id: LOG,
        serial,
        anchor: Default::default(),
        durable_next: LogPosition(9),
        keep_from: LogPosition(5),
        next_pack: 1,
    }
}

fn publish(disk: &SimDisk, serial: u64, bytes: usize) -> Result<bool, shards::io::DiskError> {
    // One section, of a kind that this layer passes over.
    let mut body = vec![1, 1, 0, 0];
    body.extend_from_slice(&(bytes as u32).to_le_bytes());
    body.resize(8 + bytes, 3);
    store::publish(disk, &head(serial), &[body], &mut |_, _| {})
}

fn serial_of(found: Option<store::Checkpoint>) -> Option<u64> {
    found.map(|checkpoint| checkpoint.head.serial)
}

fn fall(disk: &SimDisk, power: bool) {
    match power {
        true => disk.power_cut(),
        false => disk.process_crash(),
    }
}

/// F27: without a checkpoint nothing is ever let go, so the first one must be
/// possible on a disk that is full.
#[test]
fn f27_the_first_checkpoints_need_no_room() {
    let disk = SimDisk::new(Random::new(0));
    assert_eq!(store::take_over(&disk, LOG).unwrap(), None);
    assert_eq!(store::look(&disk, LOG).unwrap(), None);
    disk.set_free_bytes(Some(0));
    for serial in 1..4 {
        assert_eq!(publish(&disk, serial, 50_000), Ok(true));
        disk.power_cut();
        let found = store::take_over(&disk, LOG).unwrap();
        assert_eq!(serial_of(found), Some(serial));
    }
}

/// A body that outgrew its file takes the room there is, and what it had is not
/// lost to a shorter one where there is none.
#[test]
fn f27_a_checkpoint_that_does_not_fit_leaves_the_room_of_its_file() {
    let disk = SimDisk::new(Random::new(0));
    store::take_over(&disk, LOG).unwrap();
    disk.set_free_bytes(Some(0));
    assert!(publish(&disk, 1, 100_000).is_err());
    assert_eq!(publish(&disk, 1, 50_000), Ok(true));
    disk.set_free_bytes(Some(40 << 10));
    // Twice the file would not fit, and just enough does.
    assert_eq!(publish(&disk, 2, 90_000), Ok(true));
    assert!(publish(&disk, 3, 200_000).is_err());
    disk.power_cut();
    let found = store::take_over(&disk, LOG).unwrap();
    assert_eq!(serial_of(found), Some(2));
}

/// Until the first checkpoint is surely durable no start goes on from it alone,
/// and none is afraid of it later.
#[test]
fn the_first_checkpoint_counts_once_it_is_durable() {
    let (mut none, mut first) = (0, 0);
    for seed in 0..800 {
        let mut random = Random::new(seed);
        let disk = SimDisk::new(random.fork());
        disk.set_physical_bytes(4096);
        for _ in 0..random.below(3) {
            disk.crash_after(Some(random.below(8)));
            let _ = store::take_over(&disk, LOG);
            fall(&disk, random.chance(1, 2));
        }
        assert_eq!(store::take_over(&disk, LOG).unwrap(), None);
        disk.crash_after(Some(random.below(12)));
        let alone = publish(&disk, 1, 9_000);
        let released = alone == Ok(true);
        fall(&disk, random.chance(1, 2));
        // What a start went on from, and let go under, must stay.
        let mut went_on_from = released.then_some(1);
        for _ in 0..4 {
            disk.crash_after(random.chance(1, 2).then(|| random.below(8)));
            let found = store::take_over(&disk, LOG);
            if let Ok(found) = found {
                let serial = serial_of(found);
                assert!(serial >= went_on_from, "seed {seed}: {serial:?}");
                went_on_from = serial;
            }
            fall(&disk, random.chance(2, 3));
        }
        match went_on_from {
            None => none += 1,
            Some(_) => first += 1,
        }
    }
    assert!(none > 20 && first > 20, "{none} without, {first} with");
}
