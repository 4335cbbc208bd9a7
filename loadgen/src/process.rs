//! What `/proc` says about the server under test.
//!
//! Units as the kernel gives them are converted here and nowhere else.

use std::{collections::BTreeMap, fs, net::SocketAddr, path::PathBuf};

use serde::Serialize;

use crate::{error::LoadError, sys};

/// The counters of one process at one moment. Times in seconds.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    pub cpu_user_s: f64,
    pub cpu_system_s: f64,
    pub rss_bytes: u64,
    pub rss_peak_bytes: u64,
    /// `syscw`: write system calls (writes through io_uring are not in it).
    pub write_syscalls: u64,
    /// `write_bytes`: bytes handed to the block layer, io_uring included.
    pub disk_write_bytes: u64,
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
    threads: BTreeMap<u32, ThreadSample>,
}

#[derive(Debug, Clone, Default)]
struct ThreadSample {
    name: String,
    cpu_s: f64,
}

/// What a process did between two samples.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Usage {
    pub pid: u32,
    pub seconds: f64,
    pub cpu_user_s: f64,
    pub cpu_system_s: f64,
    /// CPU seconds, user and system, per second.
    pub cores: f64,
    /// CPU seconds per million confirmed records; absent without any.
    pub cpu_s_per_million: Option<f64>,
    pub rss_bytes: u64,
    pub rss_peak_bytes: u64,
    pub write_syscalls: u64,
    pub disk_write_bytes: u64,
    pub voluntary_switches: u64,
    pub involuntary_switches: u64,
    pub threads: Vec<ThreadUsage>,
}

/// CPU of one thread between two samples.
#[derive(Debug, Clone, Serialize)]
pub struct ThreadUsage {
    pub name: String,
    pub cpu_s: f64,
}

impl Sample {
    /// Reads `/proc/PID`. Files this user may not read leave their fields zero.
    ///
    /// # Errors
    /// No such process.
    pub fn take(pid: u32) -> Result<Sample, LoadError> {
        let tick = 1.0 / sys::clock_ticks_per_second() as f64;
        let path = format!("/proc/{pid}/stat");
        let stat =
            fs::read_to_string(&path).map_err(|source| LoadError::Procfs { path, source })?;
        let (user, system) = cpu_ticks(&stat).unwrap_or_default();
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let io = fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default();
        let mut sample = Sample {
            cpu_user_s: user as f64 * tick,
            cpu_system_s: system as f64 * tick,
            rss_bytes: field(&status, "VmRSS:") * 1024,
            rss_peak_bytes: field(&status, "VmHWM:") * 1024,
            write_syscalls: field(&io, "syscw:"),
            disk_write_bytes: field(&io, "write_bytes:"),
            ..Default::default()
        };
        let tasks = fs::read_dir(format!("/proc/{pid}/task"))
            .into_iter()
            .flatten();
        for task in tasks.flatten() {
            let Some(id) = task.file_name().to_str().and_then(|id| id.parse().ok()) else {
                continue;
            };
            let read = |file| fs::read_to_string(task.path().join(file)).unwrap_or_default();
            let status = read("status");
            sample.voluntary_switches += field(&status, "voluntary_ctxt_switches:");
            sample.involuntary_switches += field(&status, "nonvoluntary_ctxt_switches:");
            // schedstat counts nanoseconds; stat only ticks of 10 ms.
            let ran_ns: Option<u64> = read("schedstat")
                .split_whitespace()
                .next()
                .and_then(|word| word.parse().ok());
            let ticks = cpu_ticks(&read("stat")).map_or(0, |(user, system)| user + system);
            let thread = ThreadSample {
                name: read("comm").trim().to_owned(),
                cpu_s: ran_ns.map_or(ticks as f64 * tick, |ns| ns as f64 / 1e9),
            };
            sample.threads.insert(id, thread);
        }
        Ok(sample)
    }

    /// CPU seconds so far, user and system.
    pub fn cpu_s(&self) -> f64 {
        self.cpu_user_s + self.cpu_system_s
    }

    /// What happened from `self` to `later`, `seconds` apart.
    pub fn until(&self, later: &Sample, pid: u32, seconds: f64, confirmed: u64) -> Usage {
        let cpu_user_s = later.cpu_user_s - self.cpu_user_s;
        let cpu_system_s = later.cpu_system_s - self.cpu_system_s;
        let cpu_s = cpu_user_s + cpu_system_s;
        let mut threads: Vec<_> = later
            .threads
            .iter()
            .map(|(id, thread)| ThreadUsage {
                name: thread.name.clone(),
                cpu_s: thread.cpu_s - self.threads.get(id).map_or(0.0, |before| before.cpu_s),
            })
            .filter(|thread| thread.cpu_s > 0.0)
            .collect();
        threads.sort_by(|a, b| b.cpu_s.total_cmp(&a.cpu_s));
        Usage {
            pid,
            seconds,
            cpu_user_s,
            cpu_system_s,
            cores: cpu_s / seconds.max(1e-9),
            cpu_s_per_million: (confirmed > 0).then(|| cpu_s * 1e6 / confirmed as f64),
            rss_bytes: later.rss_bytes,
            rss_peak_bytes: later.rss_peak_bytes,
            write_syscalls: later.write_syscalls.saturating_sub(self.write_syscalls),
            disk_write_bytes: later.disk_write_bytes.saturating_sub(self.disk_write_bytes),
            voluntary_switches: later
                .voluntary_switches
                .saturating_sub(self.voluntary_switches),
            involuntary_switches: later
                .involuntary_switches
                .saturating_sub(self.involuntary_switches),
            threads,
        }
    }
}

/// The process that listens on `address` on this machine, or `None` when it is
/// elsewhere or belongs to somebody else.
pub fn listener_pid(address: &SocketAddr) -> Option<u32> {
    let mut inodes: Vec<String> = vec![];
    for table in ["/proc/net/tcp", "/proc/net/tcp6"] {
        let text = fs::read_to_string(table).unwrap_or_default();
        inodes.extend(listening_inodes(&text, address.port()));
    }
    let wanted: Vec<PathBuf> = inodes
        .iter()
        .map(|inode| format!("socket:[{inode}]").into())
        .collect();
    let processes = fs::read_dir("/proc").ok()?.flatten();
    processes
        .filter_map(|process| process.file_name().to_str()?.parse::<u32>().ok())
        .find(|pid| {
            let open = fs::read_dir(format!("/proc/{pid}/fd"))
                .into_iter()
                .flatten();
            open.flatten()
                .filter_map(|file| fs::read_link(file.path()).ok())
                .any(|link| wanted.contains(&link))
        })
}

/// The data directory of a running `serve`: its `--data`, or the default.
pub fn data_dir(pid: u32) -> Option<PathBuf> {
    let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
    let words: Vec<_> = line
        .split(|byte| *byte == 0)
        .map(String::from_utf8_lossy)
        .collect();
    let given = words
        .iter()
        .enumerate()
        .find_map(|(at, word)| match word.strip_prefix("--data") {
            Some("") => words.get(at + 1).map(|next| next.to_string()),
            Some(rest) => rest.strip_prefix('=').map(str::to_owned),
            None => None,
        });
    let dir = fs::read_link(format!("/proc/{pid}/cwd"))
        .ok()?
        .join(given.as_deref().unwrap_or("tidegate-data"));
    dir.is_dir().then_some(dir)
}

/// User and system ticks from a `stat` line; the name in it may hold anything.
fn cpu_ticks(stat: &str) -> Option<(u64, u64)> {
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_whitespace().skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

/// The number behind `name` at the start of a line; 0 when absent.
fn field(text: &str, name: &str) -> u64 {
    text.lines()
        .find_map(|line| line.strip_prefix(name))
        .and_then(|rest| rest.split_whitespace().next()?.parse().ok())
        .unwrap_or(0)
}

fn listening_inodes(table: &str, port: u16) -> Vec<String> {
    const LISTEN: &str = "0A";
    let port = format!(":{port:04X}");
    table
        .lines()
        .skip(1)
        .filter_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let listens = fields.get(1)?.ends_with(&port) && *fields.get(3)? == LISTEN;
            listens.then(|| fields.get(9).map(|inode| inode.to_string()))?
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_listening_process_is_found_by_its_port() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        assert_eq!(listener_pid(&address), Some(std::process::id()));
    }

    #[test]
    fn a_sample_of_this_process_shows_its_work() {
        let pid = std::process::id();
        let before = Sample::take(pid).unwrap();
        let mut word = 1;
        let mut after = before.clone();
        while after.cpu_user_s + after.cpu_system_s <= before.cpu_user_s + before.cpu_system_s {
            for _ in 0..1_000_000 {
                word = crate::payload::mix(word);
            }
            assert_ne!(word, 0);
            after = Sample::take(pid).unwrap();
        }
        let usage = before.until(&after, pid, 1.0, 1_000_000);
        assert!(usage.cpu_s_per_million.unwrap() > 0.0);
        assert!(usage.rss_bytes > 0 && usage.rss_peak_bytes >= usage.rss_bytes);
        assert!(!usage.threads.is_empty());
        assert!(Sample::take(u32::MAX).is_err());
    }

    #[test]
    fn a_process_name_with_spaces_and_brackets_does_not_confuse_the_ticks() {
        let stat = "7 (a) b (c)) S 1 7 7 0 -1 4194560 100 0 0 0 42 17 0 0 20 0 1 0 5 6";
        assert_eq!(cpu_ticks(stat), Some((42, 17)));
        assert_eq!(cpu_ticks("nonsense"), None);
    }

    #[test]
    fn only_listening_sockets_of_the_port_count() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n\
            0: 0100007F:1CFC 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 111 1\n\
            1: 0100007F:1CFC 0100007F:9999 01 00000000:00000000 00:00000000 00000000 0 0 222 1\n\
            2: 0100007F:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000 0 0 333 1\n";
        assert_eq!(listening_inodes(table, 7420), ["111"]);
    }
}
