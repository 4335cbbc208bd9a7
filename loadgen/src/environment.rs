//! Where a result was made: machine, disk, file system, code. Paths are left
//! out on purpose: results are published.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::Command,
    time::{SystemTime, UNIX_EPOCH},
};

use serde::Serialize;

#[derive(Debug, Clone, Serialize)]
pub struct Environment {
    pub kernel: String,
    pub cpu_model: String,
    pub cores: usize,
    /// Of the directory under test; absent when it is not known.
    pub disk: Option<Disk>,
    /// Commit of the tree this program was built from (or, without it, of the
    /// working directory), `-dirty` when it has changes.
    pub commit: String,
    pub loadgen_version: &'static str,
    /// Seconds since 1970, UTC.
    pub unix_time_s: u64,
}

/// The device and file system below a directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Disk {
    pub device: String,
    /// `write back` (a volatile cache), `write through`, or `unknown`.
    pub write_cache: String,
    pub rotational: String,
    pub scheduler: String,
    pub file_system: String,
    pub mount_options: String,
}

impl Environment {
    /// Reads what this machine tells; what it does not tell is `unknown`.
    pub fn capture(dir: Option<&Path>) -> Environment {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map(|(_, model)| model.trim().to_owned());
        Environment {
            kernel: word_of("/proc/sys/kernel/osrelease"),
            cpu_model: model.unwrap_or_else(unknown),
            cores: cpuinfo
                .lines()
                .filter(|line| line.starts_with("processor"))
                .count(),
            disk: dir.and_then(disk_of),
            commit: commit(),
            loadgen_version: env!("CARGO_PKG_VERSION"),
            unix_time_s: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |time| time.as_secs()),
        }
    }
}

/// The device and file system that hold `dir`.
pub fn disk_of(dir: &Path) -> Option<Disk> {
    let device = fs::metadata(dir).ok()?.dev();
    let number = format!("{}:{}", libc::major(device), libc::minor(device));
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mount_of(&mounts, &number)?;
    let node = PathBuf::from(format!("/sys/dev/block/{number}"));
    let node = fs::canonicalize(node).ok();
    // A partition has no queue of its own; its parent has.
    let queue = node.as_ref().and_then(|node| {
        let own = node.join("queue");
        let parents = node.parent().map(|parent| parent.join("queue"));
        [Some(own), parents]
            .into_iter()
            .flatten()
            .find(|dir| dir.is_dir())
    });
    let setting = |name: &str| {
        queue
            .as_ref()
            .map_or_else(unknown, |queue| word_of(queue.join(name)))
    };
    let name = node.as_ref().and_then(|node| node.file_name()?.to_str());
    Some(Disk {
        device: name.unwrap_or(&number).to_owned(),
        write_cache: setting("write_cache"),
        rotational: setting("rotational"),
        scheduler: setting("scheduler"),
        file_system: mount.0,
        mount_options: mount.1,
    })
}

/// File system and options of the first mount of device `number`.
fn mount_of(mountinfo: &str, number: &str) -> Option<(String, String)> {
    let line = mountinfo
        .lines()
        .find(|line| line.split_whitespace().nth(2) == Some(number))?;
    let (front, back) = line.split_once(" - ")?;
    let options = front.split_whitespace().nth(5)?;
    let mut back = back.split_whitespace();
    let file_system = back.next()?.to_owned();
    let of_device = back.nth(1).unwrap_or_default();
    Some((file_system, format!("{options}; {of_device}")))
}

fn commit() -> String {
    let built_from = Path::new(env!("CARGO_MANIFEST_DIR"));
    let dir = if built_from.is_dir() {
        built_from
    } else {
        Path::new(".")
    };
    let git = |arguments: &[&str]| {
        let output = Command::new("git")
            .current_dir(dir)
            .args(arguments)
            .output()
            .ok()?;
        output
            .status
            .success()
            .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Some(head) = git(&["rev-parse", "HEAD"]) else {
        return unknown();
    };
    match git(&["status", "--porcelain", "--untracked-files=no"]) {
        Some(changes) if changes.is_empty() => head,
        _ => format!("{head}-dirty"),
    }
}

fn word_of(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).map_or_else(|_| unknown(), |text| text.trim().to_owned())
}

fn unknown() -> String {
    "unknown".to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_of_a_device_gives_file_system_and_options() {
        let mounts = "22 1 253:1 / / rw,noatime shared:1 - ext4 /dev/vda1 rw,errors=remount-ro\n\
            23 22 0:20 / /proc rw,nosuid - proc proc rw\n";
        assert_eq!(
            mount_of(mounts, "253:1"),
            Some(("ext4".into(), "rw,noatime; rw,errors=remount-ro".into()))
        );
        assert_eq!(mount_of(mounts, "8:1"), None);
    }

    #[test]
    fn this_machine_is_described_and_shows_no_paths() {
        let environment = Environment::capture(Some(Path::new(env!("CARGO_MANIFEST_DIR"))));
        assert!(environment.cores > 0 && environment.unix_time_s > 1_600_000_000);
        let text = serde_json::to_string(&environment).unwrap();
        assert!(!text.contains(env!("CARGO_MANIFEST_DIR")));
    }
}
