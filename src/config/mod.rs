//! How a server runs: defaults, configuration file, command line, in that order.
//!
//! Owns: the keys of the configuration file, their defaults and their bounds.
//! Everything is checked before anything is opened; unknown keys and values
//! without a unit are refused with the place in the file.

mod cluster;
mod units;

use std::{
    fs, io,
    net::{SocketAddr, ToSocketAddrs},
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Deserialize;
use shards::driver::ClusterOptions;
use thiserror::Error;

pub use cluster::ClusterError;
use cluster::ClusterKeys;
pub use units::{parse_duration, parse_size, show_duration};
use units::{Interval, Size};

/// Which way durable batches go to the disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SyncChoice {
    /// The device probe at start-up chooses.
    Auto,
    Dsync,
    Fdatasync,
}

/// What the server writes to its standard error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    Error,
    Warn,
    Info,
    Debug,
}

/// How a server runs, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServeOptions {
    /// Data directory, made when missing.
    pub data: PathBuf,
    /// Address of the one port for all shards.
    pub listen: SocketAddr,
    /// Where clients of other nodes are told to reach this one, `HOST:PORT`;
    /// `None`: the address of `listen`.
    pub advertise: Option<String>,
    /// 1 to 64; `None`: as the directory says, one per core for a new one.
    pub shards: Option<u16>,
    /// Bytes of a log segment: a multiple of 4 KiB, 1 MiB to 1 GiB.
    pub segment_bytes: u64,
    /// Pace of syncs nobody demanded; zero = off.
    pub background_sync_interval: Duration,
    pub sync_method: SyncChoice,
    /// Tail cache per shard, bytes.
    pub cache_bytes: u64,
    /// Appended but unwritten bytes per log; above it publishes are refused.
    pub backlog_bytes: u64,
    /// Ready spare segments per log.
    pub spare_segments: u32,
    /// Free bytes of the data directory's file system below which publishes are
    /// refused; `None`: a twentieth of it, at most 1 GiB. 0 = only when full.
    pub disk_low_water: Option<u64>,
    /// Memory per shard for knowing what is unsettled; at it publishes are
    /// refused. `None`: half of the machine's over all shards.
    pub index_memory: Option<u64>,
    /// From the start of one scrub to the next; zero = off.
    pub scrub_interval: Duration,
    /// How long a replica waits for a leader before its group may begin a new
    /// generation, and such a recovery for stragglers.
    pub recovery_grace: Duration,
    /// Bytes a second and shard that a replica which is behind is brought up with, at
    /// least.
    pub catch_up_rate: u64,
    /// How long a node leads a group, all well, before it hands it to the node whose turn
    /// it is; zero = never.
    pub spread_leaders: Duration,
    /// Below 2^24.
    pub node_id: u32,
    /// Data groups of a new directory.
    pub data_groups: u32,
    /// Publish bytes that a connection may have unanswered.
    pub window_bytes: u32,
    /// `None`: as many as descriptors allow.
    pub max_connections: Option<u64>,
    /// Silence after which a peer is asked whether it is there.
    pub heartbeat: Duration,
    /// A begun frame that gets no byte for so long ends its connection.
    pub frame_deadline: Duration,
    pub log_level: LogLevel,
    /// Memory registered with io_uring per shard, bytes.
    pub io_memory_bytes: u64,
    /// Pin shard N to core N.
    pub pin_cores: bool,
    /// Run on file systems that do not write in place; for tests.
    pub allow_any_file_system: bool,
    /// The cluster this node is one of; `None`: alone.
    pub cluster: Option<ClusterOptions>,
    /// A new directory joins the cluster in the place of one that was given up.
    pub join: bool,
    /// Group 0 ends this generation and goes on from what this node holds, alone.
    pub force_group_0: Option<u32>,
    /// What the user should know of what was configured, in sentences.
    pub remarks: Vec<String>,
}

impl Default for ServeOptions {
    fn default() -> Self {
        ServeOptions {
            data: PathBuf::from("tidegate-data"),
            listen: SocketAddr::from(([127, 0, 0, 1], 7420)),
            advertise: None,
            shards: None,
            segment_bytes: 64 << 20,
            background_sync_interval: Duration::from_millis(100),
            sync_method: SyncChoice::Auto,
            cache_bytes: 32 << 20,
            backlog_bytes: 32 << 20,
            spare_segments: 2,
            disk_low_water: None,
            index_memory: None,
            scrub_interval: Duration::from_secs(24 * 3600),
            recovery_grace: Duration::from_secs(10),
            catch_up_rate: 16 << 20,
            spread_leaders: Duration::from_secs(10),
            node_id: 1,
            data_groups: 32,
            window_bytes: 16 << 20,
            max_connections: None,
            heartbeat: Duration::from_secs(10),
            frame_deadline: Duration::from_secs(60),
            log_level: LogLevel::Info,
            io_memory_bytes: 4 << 20,
            pin_cores: true,
            allow_any_file_system: false,
            cluster: None,
            join: false,
            force_group_0: None,
            remarks: Vec::new(),
        }
    }
}

/// Why the configuration was not accepted. Each is one sentence for the user.
#[derive(Debug, Error)]
pub enum ConfigError {
    #[error("cannot read the configuration file {}: {source}; check the path given to --config", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("configuration file {}, line {line}: {problem}", path.display())]
    Parse {
        path: PathBuf,
        line: usize,
        problem: String,
    },
    #[error("{key} is {value}, which is outside its range; choose {range}")]
    Range {
        key: &'static str,
        value: String,
        range: &'static str,
    },
    #[error("{text:?} is not an address to listen on ({problem}); write one like 127.0.0.1:7420")]
    Address { text: String, problem: String },
    #[error(transparent)]
    Cluster(#[from] ClusterError),
}

/// The keys of a configuration file, as text has them.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    data: Option<PathBuf>,
    listen: Option<String>,
    advertise: Option<String>,
    shards: Option<u16>,
    segment_size: Option<Size>,
    background_sync_interval: Option<Interval>,
    sync_method: Option<SyncChoice>,
    cache_size: Option<Size>,
    backlog_limit: Option<Size>,
    spare_segments: Option<u32>,
    disk_low_water: Option<Size>,
    index_memory: Option<Size>,
    scrub_interval: Option<Interval>,
    recovery_grace: Option<Interval>,
    catch_up_rate: Option<Size>,
    spread_leaders: Option<Interval>,
    node_id: Option<u32>,
    data_groups: Option<u32>,
    window_size: Option<Size>,
    max_connections: Option<u64>,
    heartbeat: Option<Interval>,
    frame_deadline: Option<Interval>,
    log_level: Option<LogLevel>,
    io_memory: Option<Size>,
    pin_cores: Option<bool>,
    allow_any_file_system: Option<bool>,
    cluster: Option<String>,
    nodes: Option<Vec<String>>,
    node_listen: Option<String>,
    cluster_secret: Option<PathBuf>,
}

/// What the command line says; it wins over the file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overrides {
    pub data: Option<PathBuf>,
    pub listen: Option<String>,
    pub advertise: Option<String>,
    pub shards: Option<u16>,
    pub segment_bytes: Option<u64>,
    pub node_id: Option<u32>,
    /// A new directory joins the cluster.
    pub join: bool,
    /// See [`ServeOptions::force_group_0`].
    pub force_group_0: Option<u32>,
}

impl ServeOptions {
    /// Reads `file`, if any, and puts defaults below and `overrides` above it.
    ///
    /// # Errors
    /// [`ConfigError`]: unreadable, unknown key, wrong type or unit, out of range.
    pub fn load(file: Option<&Path>, overrides: Overrides) -> Result<Self, ConfigError> {
        let parsed = match file {
            Some(path) => read_file(path)?,
            None => File::default(),
        };
        ServeOptions::combine(parsed, overrides)
    }

    fn combine(file: File, overrides: Overrides) -> Result<Self, ConfigError> {
        let default = ServeOptions::default();
        let listen = overrides.listen.or(file.listen);
        let mut options = ServeOptions {
            data: overrides.data.or(file.data).unwrap_or(default.data),
            listen: listen.map_or(Ok(default.listen), |text| address(&text))?,
            advertise: overrides
                .advertise
                .or(file.advertise)
                .map(cluster::reachable)
                .transpose()?,
            shards: overrides.shards.or(file.shards),
            segment_bytes: overrides
                .segment_bytes
                .or(file.segment_size.map(|size| size.0))
                .unwrap_or(default.segment_bytes),
            background_sync_interval: file
                .background_sync_interval
                .map_or(default.background_sync_interval, |interval| interval.0),
            sync_method: file.sync_method.unwrap_or(default.sync_method),
            cache_bytes: file.cache_size.map_or(default.cache_bytes, |size| size.0),
            backlog_bytes: file
                .backlog_limit
                .map_or(default.backlog_bytes, |size| size.0),
            spare_segments: file.spare_segments.unwrap_or(default.spare_segments),
            disk_low_water: file.disk_low_water.map(|size| size.0),
            index_memory: file.index_memory.map(|size| size.0),
            scrub_interval: file
                .scrub_interval
                .map_or(default.scrub_interval, |interval| interval.0),
            spread_leaders: file
                .spread_leaders
                .map_or(default.spread_leaders, |interval| interval.0),
            recovery_grace: file
                .recovery_grace
                .map_or(default.recovery_grace, |interval| interval.0),
            catch_up_rate: file
                .catch_up_rate
                .map_or(default.catch_up_rate, |size| size.0),
            node_id: overrides
                .node_id
                .or(file.node_id)
                .unwrap_or(default.node_id),
            data_groups: file.data_groups.unwrap_or(default.data_groups),
            window_bytes: file.window_size.map_or(default.window_bytes, |size| {
                u32::try_from(size.0).unwrap_or(u32::MAX)
            }),
            max_connections: file.max_connections,
            heartbeat: file.heartbeat.map_or(default.heartbeat, |time| time.0),
            frame_deadline: file
                .frame_deadline
                .map_or(default.frame_deadline, |time| time.0),
            log_level: file.log_level.unwrap_or(default.log_level),
            io_memory_bytes: file
                .io_memory
                .map_or(default.io_memory_bytes, |size| size.0),
            pin_cores: file.pin_cores.unwrap_or(default.pin_cores),
            allow_any_file_system: file
                .allow_any_file_system
                .unwrap_or(default.allow_any_file_system),
            cluster: None,
            join: overrides.join,
            force_group_0: overrides.force_group_0,
            remarks: Vec::new(),
        };
        options.check()?;
        let keys = ClusterKeys {
            cluster: file.cluster,
            nodes: file.nodes,
            node_listen: file.node_listen,
            cluster_secret: file.cluster_secret,
            join: options.join,
        };
        options.cluster = keys.check(options.node_id, options.listen, &mut options.remarks)?;
        if options.force_group_0.is_some() && options.cluster.is_none() {
            return Err(ConfigError::Cluster(ClusterError::ForcesNothing));
        }
        if options.join && options.cluster.is_none() {
            return Err(ClusterError::JoinsNothing.into());
        }
        let told = options.advertise.is_some() || !options.listen.ip().is_unspecified();
        if options.cluster.is_some() && !told {
            let remark = "listen is every address of this machine, so clients of other nodes cannot be told where this one is and go through those; set advertise = \"HOST:PORT\"";
            options.remarks.push(remark.to_owned());
        }
        Ok(options)
    }

    fn check(&self) -> Result<(), ConfigError> {
        let in_range = |key, value: u64, good: bool, range| {
            let value = value.to_string();
            if good {
                Ok(())
            } else {
                Err(ConfigError::Range { key, value, range })
            }
        };
        let within = |key, value: u64, low: u64, high: u64, range| {
            in_range(key, value, (low..=high).contains(&value), range)
        };
        if let Some(shards) = self.shards {
            within("shards", shards.into(), 1, 64, "1 to 64")?;
        }
        let segment = self.segment_bytes;
        in_range(
            "segment_size",
            segment,
            (1 << 20..=1 << 30).contains(&segment) && segment.is_multiple_of(4096),
            "a multiple of 4KiB from 1MiB to 1GiB",
        )?;
        within(
            "background_sync_interval (in ms)",
            millis(self.background_sync_interval),
            0,
            3_600_000,
            "0 (off) to 1h",
        )?;
        within(
            "cache_size",
            self.cache_bytes,
            1 << 20,
            1 << 40,
            "1MiB to 1024GiB",
        )?;
        within(
            "backlog_limit",
            self.backlog_bytes,
            1 << 20,
            1 << 40,
            "1MiB to 1024GiB",
        )?;
        within(
            "spare_segments",
            self.spare_segments.into(),
            1,
            64,
            "1 to 64",
        )?;
        if let Some(bytes) = self.index_memory {
            let range = "1MiB to 1024GiB";
            within("index_memory", bytes, 1 << 20, 1 << 40, range)?;
        }
        in_range(
            "scrub_interval (in ms)",
            millis(self.scrub_interval),
            self.scrub_interval.is_zero()
                || (100..=365 * 86_400_000).contains(&millis(self.scrub_interval)),
            "0 (off), or 100ms to 8760h",
        )?;
        in_range(
            "recovery_grace (in ms)",
            millis(self.recovery_grace),
            (1_000..=86_400_000).contains(&millis(self.recovery_grace)),
            "1s to 24h",
        )?;
        within(
            "catch_up_rate",
            self.catch_up_rate,
            1 << 20,
            1 << 40,
            "1MiB to 1024GiB",
        )?;
        in_range(
            "spread_leaders (in ms)",
            millis(self.spread_leaders),
            self.spread_leaders.is_zero()
                || (100..=86_400_000).contains(&millis(self.spread_leaders)),
            "0 (never), or 100ms to 24h",
        )?;
        within(
            "node_id",
            self.node_id.into(),
            1,
            (1 << 24) - 1,
            "1 to 16777215",
        )?;
        within("data_groups", self.data_groups.into(), 2, 1024, "2 to 1024")?;
        within(
            "window_size",
            self.window_bytes.into(),
            64 << 10,
            1 << 30,
            "64KiB to 1GiB",
        )?;
        if let Some(connections) = self.max_connections {
            within("max_connections", connections, 1, 1 << 20, "1 to 1048576")?;
        }
        in_range(
            "heartbeat (in ms)",
            millis(self.heartbeat),
            (4_000..=600_000).contains(&millis(self.heartbeat))
                && self.heartbeat.subsec_nanos() == 0,
            "whole seconds from 4s to 10m",
        )?;
        within(
            "frame_deadline (in ms)",
            millis(self.frame_deadline),
            100,
            3_600_000,
            "100ms to 1h",
        )?;
        within(
            "io_memory",
            self.io_memory_bytes,
            64 << 10,
            64 << 20,
            "64KiB to 64MiB",
        )
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn read_file(path: &Path) -> Result<File, ConfigError> {
    let text = fs::read_to_string(path).map_err(|source| ConfigError::Read {
        path: path.to_owned(),
        source,
    })?;
    toml::from_str(&text).map_err(|error| {
        let at = error.span().map_or(0, |span| span.start).min(text.len());
        ConfigError::Parse {
            path: path.to_owned(),
            line: 1 + text.as_bytes()[..at]
                .iter()
                .filter(|b| **b == b'\n')
                .count(),
            problem: error.message().replace('\n', " "),
        }
    })
}

/// An address, or a name with a port that resolves to one.
fn address(text: &str) -> Result<SocketAddr, ConfigError> {
    let problem = |problem: String| ConfigError::Address {
        text: text.to_owned(),
        problem,
    };
    let mut found = text
        .to_socket_addrs()
        .map_err(|error| problem(error.to_string()))?;
    found
        .next()
        .ok_or_else(|| problem("the name has no address".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<ServeOptions, ConfigError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("tidegate.toml");
        fs::write(&path, text).unwrap();
        ServeOptions::load(Some(&path), Overrides::default())
    }

    #[test]
    fn without_a_file_everything_has_its_default() {
        let options = ServeOptions::load(None, Overrides::default()).unwrap();
        assert_eq!(options, ServeOptions::default());
        assert_eq!(options.listen.to_string(), "127.0.0.1:7420");
        assert_eq!(load("").unwrap(), options);
    }

    #[test]
    fn every_key_is_read() {
        let options = load(
            r#"
            data = "/srv/tidegate"
            listen = "0.0.0.0:1234"
            advertise = "db-9.example:7420"
            shards = 3
            segment_size = "16MiB"
            background_sync_interval = "0"
            sync_method = "fdatasync"
            cache_size = "1GiB"
            backlog_limit = "8MiB"
            spare_segments = 2
            disk_low_water = "3GiB"
            index_memory = "512MiB"
            scrub_interval = "168h"
            recovery_grace = "30s"
            catch_up_rate = "8MiB"
            spread_leaders = "2m"
            node_id = 9
            data_groups = 8
            window_size = "128KiB"
            max_connections = 500
            heartbeat = "5s"
            frame_deadline = "2s"
            log_level = "debug"
            io_memory = "1MiB"
            pin_cores = false
            allow_any_file_system = true
            cluster = "orders"
            nodes = ["9=127.0.0.1:7509", "2=127.0.0.1:7502", "4=localhost:7504"]
            node_listen = "127.0.0.2:7509"
            "#,
        )
        .unwrap();
        let expected = ServeOptions {
            data: "/srv/tidegate".into(),
            listen: "0.0.0.0:1234".parse().unwrap(),
            advertise: Some("db-9.example:7420".to_owned()),
            shards: Some(3),
            segment_bytes: 16 << 20,
            background_sync_interval: Duration::ZERO,
            sync_method: SyncChoice::Fdatasync,
            cache_bytes: 1 << 30,
            backlog_bytes: 8 << 20,
            spare_segments: 2,
            disk_low_water: Some(3 << 30),
            index_memory: Some(512 << 20),
            scrub_interval: Duration::from_secs(7 * 24 * 3600),
            recovery_grace: Duration::from_secs(30),
            catch_up_rate: 8 << 20,
            spread_leaders: Duration::from_secs(120),
            node_id: 9,
            data_groups: 8,
            window_bytes: 128 << 10,
            max_connections: Some(500),
            heartbeat: Duration::from_secs(5),
            frame_deadline: Duration::from_secs(2),
            log_level: LogLevel::Debug,
            io_memory_bytes: 1 << 20,
            pin_cores: false,
            allow_any_file_system: true,
            cluster: Some(ClusterOptions {
                name: "orders".to_owned(),
                nodes: vec![
                    (2, "127.0.0.1:7502".parse().unwrap()),
                    (4, "127.0.0.1:7504".parse().unwrap()),
                    (9, "127.0.0.1:7509".parse().unwrap()),
                ],
                listen: "127.0.0.2:7509".parse().unwrap(),
                secret: None,
            }),
            join: false,
            force_group_0: None,
            remarks: Vec::new(),
        };
        assert_eq!(options, expected);
    }

    #[test]
    fn the_command_line_wins_over_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("c.toml");
        fs::write(&path, "shards = 3\ndata = \"x\"\nsegment_size = \"2MiB\"").unwrap();
        let overrides = Overrides {
            data: Some("y".into()),
            listen: Some("localhost:0".into()),
            advertise: Some("localhost:7".into()),
            shards: Some(1),
            segment_bytes: Some(4 << 20),
            node_id: Some(7),
            ..Overrides::default()
        };
        let options = ServeOptions::load(Some(&path), overrides).unwrap();
        assert_eq!(options.data, Path::new("y"));
        assert!(options.listen.ip().is_loopback());
        assert_eq!(options.advertise.as_deref(), Some("localhost:7"));
        assert_eq!((options.shards, options.segment_bytes), (Some(1), 4 << 20));
        assert_eq!(options.node_id, 7);
    }

    #[test]
    fn a_node_of_no_cluster_cannot_join_one() {
        let overrides = Overrides {
            join: true,
            ..Overrides::default()
        };
        let error = ServeOptions::load(None, overrides).unwrap_err().to_string();
        assert!(error.contains("--join makes a directory"), "{error}");
    }

    #[test]
    fn unknown_keys_are_named_with_their_line() {
        let error = load("shards = 1\nsegmentsize = \"1MiB\"")
            .unwrap_err()
            .to_string();
        assert!(error.contains("line 2"), "{error}");
        assert!(error.contains("unknown field `segmentsize`"), "{error}");
        assert!(error.contains("segment_size"), "{error}");
        assert!(!error.contains('\n'), "one sentence: {error}");
    }

    #[test]
    fn wrong_units_and_types_are_refused_with_the_right_form() {
        let cases = [
            ("segment_size = \"64MB\"", "like 64MiB"),
            ("segment_size = 64", "like \"64MiB\""),
            ("segment_size = \"67108864\"", "has no unit"),
            ("background_sync_interval = 100", "like \"100ms\""),
            ("background_sync_interval = \"100\"", "like 100ms"),
            ("background_sync_interval = \"0.1s\"", "like 100ms"),
            ("sync_method = \"sometimes\"", "fdatasync"),
            ("log_level = \"loud\"", "debug"),
            ("shards = \"two\"", "invalid type"),
            ("shards = -1", "-1"),
            ("pin_cores = 1", "boolean"),
            ("listen = \"7420\"", "like 127.0.0.1:7420"),
            ("advertise = \"7420\"", "write HOST:PORT"),
            ("advertise = \"0.0.0.0:7420\"", "write HOST:PORT"),
            ("advertise = \"host:0\"", "write HOST:PORT"),
            ("advertise = \"a:1,b:2\"", "write HOST:PORT"),
            ("shards = ", "line 1"),
            ("[log]\nlevel = 1", "unknown field `log`"),
        ];
        for (text, expected) in cases {
            let error = load(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
            assert!(!error.contains('\n'), "one sentence: {error}");
        }
    }

    #[test]
    fn values_out_of_range_are_refused_with_the_range() {
        let cases = [
            "shards = 0",
            "shards = 65",
            "segment_size = \"1MiB1\"",
            "segment_size = \"1KiB\"",
            "segment_size = \"1048577B\"",
            "background_sync_interval = \"2h\"",
            "cache_size = \"0\"",
            "backlog_limit = \"1B\"",
            "spare_segments = 0",
            "node_id = 0",
            "node_id = 16777216",
            "data_groups = 1",
            "window_size = \"8GiB\"",
            "max_connections = 0",
            "heartbeat = \"3s\"",
            "heartbeat = \"4500ms\"",
            "frame_deadline = \"0\"",
            "io_memory = \"1KiB\"",
        ];
        for text in cases {
            assert!(load(text).is_err(), "{text}");
        }
        let error = load("shards = 65").unwrap_err().to_string();
        assert_eq!(
            error,
            "shards is 65, which is outside its range; choose 1 to 64"
        );
    }

    #[test]
    fn a_missing_file_is_named() {
        let error = ServeOptions::load(Some(Path::new("/no/such.toml")), Overrides::default());
        assert!(error.unwrap_err().to_string().contains("/no/such.toml"));
    }
}
