//! How much room the data directory's file system has.

use std::{path::Path, time::Duration};

/// Pause between two looks.
pub(super) const LOOK: Duration = Duration::from_secs(1);

/// The low-water mark by default: a part of the file system, and at most so
/// many bytes.
const LOW_PART: u64 = 20;
const LOW_MOST_BYTES: u64 = 1 << 30;

/// Whether the file system of `directory` has fewer free bytes than
/// `low_water`, by default a twentieth of it and at most 1 GiB. `None` when it
/// cannot be asked. Blocking; not on a shard thread.
pub(super) fn is_low(directory: &Path, low_water: Option<u64>) -> Option<bool> {
    let (free, all) = space_of(directory)?;
    Some(free < low_water.unwrap_or(low_water_of(all)))
}

/// Free bytes of the file system of `directory`, if they are fewer than
/// `bytes`: filling a file until it fails would leave none to anybody meanwhile.
/// Blocking; not on a shard thread.
pub(super) fn too_few(directory: &Path, bytes: u64) -> Option<u64> {
    let (free, _) = space_of(directory)?;
    (free < bytes).then_some(free)
}

/// Bytes free to everybody, and all; `None` when it cannot be asked.
fn space_of(directory: &Path) -> Option<(u64, u64)> {
    let stat = rustix::fs::statvfs(directory).ok()?;
    let bytes = |blocks: u64| blocks.saturating_mul(stat.f_frsize);
    Some((bytes(stat.f_bavail), bytes(stat.f_blocks)))
}

fn low_water_of(bytes: u64) -> u64 {
    (bytes / LOW_PART).min(LOW_MOST_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_a_twentieth_and_at_most_a_gibibyte() {
        assert_eq!(low_water_of(2 << 30), (2 << 30) / 20);
        assert_eq!(low_water_of(1 << 40), 1 << 30);
        assert_eq!(low_water_of(0), 0);
        assert_eq!(is_low(Path::new("/"), Some(0)), Some(false));
        assert_eq!(is_low(Path::new("/"), Some(u64::MAX)), Some(true));
        assert_eq!(is_low(Path::new("/no/such/place"), None), None);
        assert_eq!(too_few(Path::new("/"), 0), None);
        assert!(too_few(Path::new("/"), u64::MAX).is_some());
    }
}
