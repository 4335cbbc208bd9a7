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
    let stat = rustix::fs::statvfs(directory).ok()?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let all = stat.f_blocks.saturating_mul(stat.f_frsize);
    Some(free < low_water.unwrap_or(low_water_of(all)))
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
    }
}
