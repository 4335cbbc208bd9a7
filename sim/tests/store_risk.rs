//! Checkpoint files under power cuts.

use shards::log::{LogId, LogPosition};
use shards::store::{self, CheckpointHead};
use tidegate_sim::{Random, SimDisk};

/// What was let go under a checkpoint is gone: no start may put that checkpoint
/// at risk by writing over it, not even with the same bytes.
#[test]
fn a_checkpoint_that_something_was_let_go_under_outlives_power_cuts_in_starts() {
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let disk = SimDisk::new(random.fork());
        disk.set_physical_bytes(4096);
        let log_id = LogId(7);
        let serial = 1 + seed % 3;
        for serial in 1..=serial {
            let head = CheckpointHead {
                log_id,
                serial,
                anchor: Default::default(),
                durable_next: LogPosition(0),
                keep_from: LogPosition(0),
                next_pack: 1,
            };
            let alone = store::publish(&disk, &head, &[vec![0; 9_000]], &mut |_, _| {});
            assert_eq!(alone, Ok(true));
        }
        for _ in 0..4 {
            disk.crash_after(Some(random.below(6)));
            let _ = store::load(&disk, log_id);
            match random.chance(1, 3) {
                true => disk.process_crash(),
                false => disk.power_cut(),
            }
        }
        let loaded = store::load(&disk, log_id).unwrap();
        let loaded = loaded.map(|checkpoint| checkpoint.head.serial);
        assert_eq!(loaded, Some(serial), "seed {seed}");
    }
}

/// One of the two files always holds a whole checkpoint: the first one is not
/// begun before there is room for both.
#[test]
fn a_first_checkpoint_waits_for_room_for_both_files() {
    let disk = SimDisk::new(Random::new(0));
    let log_id = LogId(7);
    let head = CheckpointHead {
        log_id,
        serial: 1,
        anchor: Default::default(),
        durable_next: LogPosition(9),
        keep_from: LogPosition(5),
        next_pack: 1,
    };
    let publish = || store::publish(&disk, &head, &[vec![0; 9_000]], &mut |_, _| {});
    disk.set_free_bytes(Some(100_000));
    assert!(publish().is_err());
    assert_eq!(store::load(&disk, log_id).unwrap(), None);
    disk.set_free_bytes(None);
    assert_eq!(publish(), Ok(true));
    let loaded = store::load(&disk, log_id).unwrap();
    assert_eq!(loaded.map(|checkpoint| checkpoint.head), Some(head));
}
