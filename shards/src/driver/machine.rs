//! What the machine must offer, checked before anything is touched.

use std::io;

use rustix::process::{getrlimit, Resource};
use thiserror::Error;

/// glommio's rings need this much locked memory per executor.
const LOCKED_MEMORY_BYTES: u64 = 512 << 10;

/// Fewer descriptors than this leave no room for the logs of a few shards.
const FEWEST_DESCRIPTORS: u64 = 128;

/// What the machine lacks. Each is one sentence for the user.
#[derive(Debug, Error)]
pub enum MachineError {
    #[error("this kernel does not offer io_uring ({0}); Tidegate needs Linux 5.8 or later with io_uring allowed (see kernel.io_uring_disabled and the container's seccomp profile)")]
    IoUring(io::Error),
    #[error("only {have} bytes of memory may be locked and io_uring needs {LOCKED_MEMORY_BYTES}; raise it with `ulimit -l 512` or LimitMEMLOCK=512K")]
    LockedMemory { have: u64 },
    #[error("only {have} files may be open and a server needs {FEWEST_DESCRIPTORS}; raise it with `ulimit -n 1024` or LimitNOFILE=1024")]
    Descriptors { have: u64 },
    #[error("io_memory of {} for each of {shards} shards is {}, and this machine gives the server {} of memory; lower io_memory, or make a directory with fewer shards", mebibytes(*.each), mebibytes(*.need), mebibytes(*.have))]
    Memory {
        each: u64,
        shards: u16,
        need: u64,
        have: u64,
    },
}

fn mebibytes(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}

/// Checks the memory that the executors register at their start. A warning
/// when it is more than half of what there is.
///
/// # Errors
/// More than there is.
pub(super) fn check_memory(each: u64, shards: u16) -> Result<Option<String>, MachineError> {
    match memory() {
        Some(have) => judge_memory(each, shards, have),
        None => Ok(None),
    }
}

fn judge_memory(each: u64, shards: u16, have: u64) -> Result<Option<String>, MachineError> {
    let need = each.saturating_mul(shards.into());
    if need > have {
        return Err(MachineError::Memory {
            each,
            shards,
            need,
            have,
        });
    }
    Ok((need > have / 2).then(|| {
        format!(
            "io_memory of {} for each of {shards} shards is {}, more than half of the {} that this machine gives the server; little is left for caches",
            mebibytes(each),
            mebibytes(need),
            mebibytes(have)
        )
    }))
}

/// Bytes of memory that this process may use: the machine's, or less where a
/// control group limits it. `None` where `/proc` does not say.
fn memory() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    let total = kibibytes.saturating_mul(1024);
    Some(group_limits().fold(total, u64::min))
}

/// Memory for a shard's index of unsettled records: half of what this process
/// may use, over all shards. No bound where `/proc` does not say.
pub(super) fn index_memory(shards: u16) -> u64 {
    memory().map_or(u64::MAX, |have| have / 2 / u64::from(shards.max(1)))
}

/// Limits of the control groups (version 2) around this process.
fn group_limits() -> impl Iterator<Item = u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let path = groups.lines().find_map(|line| line.strip_prefix("0::/"));
    let path = std::path::PathBuf::from(path.unwrap_or_default());
    let root = std::path::Path::new("/sys/fs/cgroup");
    let files: Vec<_> = path
        .ancestors()
        .map(|group| root.join(group).join("memory.max"))
        .collect();
    files
        .into_iter()
        .filter_map(|file| std::fs::read_to_string(file).ok()?.trim().parse().ok())
}

/// Checks io_uring and locked memory: glommio panics where they lack.
///
/// # Errors
/// What lacks, and how to give it.
pub(super) fn check() -> Result<(), MachineError> {
    if let Some(have) = getrlimit(Resource::Memlock).current {
        if have < LOCKED_MEMORY_BYTES {
            return Err(MachineError::LockedMemory { have });
        }
    }
    let have = descriptors();
    if have < FEWEST_DESCRIPTORS {
        return Err(MachineError::Descriptors { have });
    }
    io_uring().map_err(MachineError::IoUring)
}

/// Sets up the smallest ring and closes it again.
fn io_uring() -> io::Result<()> {
    // `struct io_uring_params` is 120 bytes; all zero asks for defaults.
    let mut params = [0_u64; 15];
    // SAFETY: the kernel reads and writes 120 bytes behind the pointer, which
    // is what the array holds, suitably aligned, and alive over the call.
    let fd = unsafe { libc::syscall(libc::SYS_io_uring_setup, 1_u32, params.as_mut_ptr()) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call just returned this descriptor and nothing else knows it.
    unsafe { libc::close(fd as libc::c_int) };
    Ok(())
}

/// Cores of the machine that this process may use, 1 to 64.
pub(super) fn cores() -> u16 {
    std::thread::available_parallelism().map_or(1, |cores| cores.get().min(64) as u16)
}

/// The number of the `nth` core that this process may use.
pub(super) fn allowed_core(nth: u16) -> Option<usize> {
    let set = rustix::thread::sched_getaffinity(None).ok()?;
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|core| set.is_set(*core))
        .nth(usize::from(nth))
}

/// Descriptors the process may open.
pub(super) fn descriptors() -> u64 {
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

/// Identity of this boot of the host; what an earlier one had in memory is gone.
///
/// # Errors
/// `/proc` is not mounted.
pub(super) fn boot_id() -> io::Result<u128> {
    // Tests stand in for a reboot by another id.
    let text = match std::env::var("TIDEGATE_TEST_BOOT_ID") {
        Ok(text) => text,
        Err(_) => std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?,
    };
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    u128::from_str_radix(&digits, 16).map_err(io::Error::other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registered_memory_is_warned_of_above_half_and_refused_above_all() {
        let have = 1000 << 20;
        assert!(matches!(judge_memory(50 << 20, 10, have), Ok(None)));
        let warning = judge_memory(51 << 20, 10, have).unwrap().unwrap();
        assert!(
            warning.contains("10 shards is 510 MiB, more than half of the 1000 MiB"),
            "{warning}"
        );
        assert!(matches!(judge_memory(100 << 20, 10, have), Ok(Some(_))));
        let error = judge_memory(101 << 20, 10, have).unwrap_err().to_string();
        assert!(
            error.contains("101 MiB for each of 10 shards is 1010 MiB"),
            "{error}"
        );
        assert!(judge_memory(u64::MAX, 64, have).is_err());
    }

    #[test]
    fn the_machines_memory_is_known() {
        let memory = memory().unwrap();
        assert!((1 << 20..1 << 50).contains(&memory), "{memory}");
    }
}
