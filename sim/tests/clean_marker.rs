//! The clean marker's file on a disk that stops, tears, forgets and is full.

use shards::log::{put_clean_markers, take_clean_markers, CleanMarker, LogId, LogPosition};
use tidegate_sim::{Random, SimDisk};

/// As many as there can be.
fn markers(open_counter: u64) -> Vec<CleanMarker> {
    let marker = |log| CleanMarker {
        log_id: LogId(log),
        open_counter,
        end: LogPosition(4096 * open_counter),
        checksum: 5,
    };
    (0..64).map(marker).collect()
}

/// A disk on which one clean stop was followed by a start.
fn started(seed: u64) -> SimDisk {
    let disk = SimDisk::new(Random::new(seed));
    disk.set_physical_bytes(4096);
    assert_eq!(take_clean_markers(&disk), Ok(vec![]));
    put_clean_markers(&disk, &markers(1)).unwrap();
    assert_eq!(take_clean_markers(&disk), Ok(markers(1)));
    disk
}

fn fall(disk: &SimDisk, power: bool) {
    match power {
        true => disk.power_cut(),
        false => disk.process_crash(),
    }
}

#[test]
fn a_stop_that_a_crash_cuts_short_is_clean_or_not_and_never_an_older_one() {
    let mut left = 0;
    for seed in 0..400 {
        let disk = started(seed);
        disk.crash_after(Some(seed % 8));
        let put = put_clean_markers(&disk, &markers(2));
        fall(&disk, seed % 3 != 0);
        let found = take_clean_markers(&disk).unwrap();
        assert!(found.is_empty() || found == markers(2), "seed {seed}");
        assert!(put.is_err() || !found.is_empty(), "seed {seed}");
        left += u64::from(put.is_err() && !found.is_empty());
        // It names a stop before this start, whatever becomes of the start.
        fall(&disk, true);
        assert_eq!(take_clean_markers(&disk), Ok(vec![]), "seed {seed}");
    }
    assert!(left > 0, "no crash struck behind the renaming");
}

#[test]
fn a_start_that_a_crash_cuts_short_shows_the_marker_again_or_has_taken_it() {
    for seed in 0..400 {
        let disk = started(seed);
        put_clean_markers(&disk, &markers(2)).unwrap();
        disk.crash_after(Some(seed % 4));
        let taken = take_clean_markers(&disk);
        fall(&disk, seed % 3 != 0);
        let again = take_clean_markers(&disk).unwrap();
        assert!(again.is_empty() || again == markers(2), "seed {seed}");
        assert!(taken.is_err() || again.is_empty(), "seed {seed}");
    }
}

/// F27: the file has its room from the start on.
#[test]
fn a_stop_on_a_full_disk_is_clean() {
    for first in [true, false] {
        let disk = match first {
            true => SimDisk::new(Random::new(0)),
            false => started(0),
        };
        take_clean_markers(&disk).unwrap();
        disk.set_free_bytes(Some(0));
        for open_counter in 7..10 {
            put_clean_markers(&disk, &markers(open_counter)).unwrap();
            disk.power_cut();
            let found = take_clean_markers(&disk);
            assert_eq!(found, Ok(markers(open_counter)));
        }
    }
}
