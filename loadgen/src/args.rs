//! The command line.

use std::{path::PathBuf, time::Duration};

use argh::FromArgs;
use wire::vocabulary::Mode;

use crate::{
    plan::{Drive, Settings},
    units::{
        parse_bursts, parse_duration, parse_modes, parse_rate, parse_size, Bursts, Modes, SizeRange,
    },
};

/// Open-loop load generator for Tidegate. Latency counts from the time a record
/// was due, whenever it left.
#[derive(FromArgs)]
pub struct Arguments {
    #[argh(subcommand)]
    pub command: Command,
}

#[derive(FromArgs)]
#[argh(subcommand)]
pub enum Command {
    Run(RunArguments),
    Saturate(SaturateArguments),
    Abba(AbbaArguments),
    Limits(LimitsArguments),
    Failover(FailoverArguments),
    Selftest(SelftestArguments),
}

/// Defines a subcommand that drives load: its own options, then the common ones.
macro_rules! load_command {
    (
        $(#[$outer:meta])* $name:ident {
            defaults: $batch:literal, $warmup:literal, $duration:literal;
            $($(#[$inner:meta])* $field:ident: [$($type:tt)*],)*
        }
    ) => {
        #[derive(FromArgs)]
        $(#[$outer])*
        pub struct $name {
            $($(#[$inner])* pub $field: $($type)*,)*
            /// server address (default 127.0.0.1:7420); several nodes of a cluster as A,B,C: whoever is gone, the run goes on with the others
            #[argh(option, default = "\"127.0.0.1:7420\".into()")]
            pub server: String,
            /// queue name (default: loadgen-MODE); -0, -1... appended with several queues
            #[argh(option)]
            pub queue: Option<String>,
            /// durable, buffered or speculative; several, comma-separated, are taken in turn by the queues (default durable)
            #[argh(option, from_str_fn(parse_modes), default = "Modes(vec![Mode::Durable])")]
            pub mode: Modes,
            /// payload bytes, N or A-B (default 1024)
            #[argh(option, from_str_fn(parse_size), default = "SizeRange { min: 1024, max: 1024 }")]
            pub size: SizeRange,
            /// records per publish, due together (default 1; saturate 64)
            #[argh(option, default = $batch)]
            pub batch: u32,
            /// producer connections, sharing the rate (default 1)
            #[argh(option, default = "1")]
            pub producers: u32,
            /// consumer connections (default 1; 0 = publish only)
            #[argh(option, default = "1")]
            pub consumers: u32,
            /// queues, sharing the rate (default 1)
            #[argh(option, default = "1")]
            pub queues: u32,
            /// partitions per queue (default: as declared, or 1)
            #[argh(option, default = "0")]
            pub partitions: u16,
            /// time before measuring (default 2s; saturate 1s)
            #[argh(option, from_str_fn(parse_duration), default = $warmup)]
            pub warmup: Duration,
            /// measured time (default 10s; saturate 5s)
            #[argh(option, from_str_fn(parse_duration), default = $duration)]
            pub duration: Duration,
            /// most time to wait for confirms and arrivals at the end (default 10s)
            #[argh(option, from_str_fn(parse_duration), default = "Duration::from_secs(10)")]
            pub drain: Duration,
            /// publish deadline in ms (default: the server's)
            #[argh(option, default = "0")]
            pub deadline_ms: u32,
            /// credit per subscription in records (default: by their number)
            #[argh(option, default = "0")]
            pub credit_records: u32,
            /// credit per subscription in bytes (default: by their number)
            #[argh(option, default = "0")]
            pub credit_bytes: u64,
            /// ask for a confirm on every Nth settle frame (default 16; 0 = never)
            #[argh(option, default = "16")]
            pub settle_sample: u64,
            /// poll without sleeping for this long before a due time: takes the machine's wake-up time out of the generator's lateness, and costs its core (default 0us)
            #[argh(option, from_str_fn(parse_duration), default = "Duration::ZERO")]
            pub spin: Duration,
            /// also show each second: latencies, backlog, the server's memory and writes; asks the server for its queues once a second
            #[argh(switch)]
            pub series: bool,
            /// run the generator on this core only
            #[argh(option)]
            pub pin_core: Option<usize>,
            /// process to take CPU and memory from (default: who listens on the port)
            #[argh(option)]
            pub server_pid: Option<u32>,
            /// measure this directory's disk and the loopback before and after, and print ratios
            #[argh(option)]
            pub limits_dir: Option<PathBuf>,
            /// write the result here as JSON
            #[argh(option)]
            pub json: Option<PathBuf>,
        }

        impl $name {
            /// The settings of a run driven by `drive`.
            pub fn settings(&self, drive: Drive) -> Settings {
                let modes: Vec<_> = self.mode.0.iter().map(|mode| mode.name()).collect();
                Settings {
                    server: self.server.clone(),
                    queue: self
                        .queue
                        .clone()
                        .unwrap_or_else(|| format!("loadgen-{}", modes.join("-"))),
                    modes: self.mode.0.clone(),
                    queues: self.queues,
                    partitions: self.partitions,
                    producers: self.producers,
                    consumers: self.consumers,
                    size: self.size,
                    batch: self.batch,
                    drive,
                    warmup: self.warmup,
                    duration: self.duration,
                    drain: self.drain,
                    deadline_ms: self.deadline_ms,
                    credit_records: self.credit_records,
                    credit_bytes: self.credit_bytes,
                    settle_sample: self.settle_sample,
                    spin: self.spin,
                    series: self.series,
                    pin_core: self.pin_core,
                    server_pid: self.server_pid,
                }
            }

            /// Where results go.
            pub fn output(&self) -> Output {
                Output {
                    limits_dir: self.limits_dir.clone(),
                    json: self.json.clone(),
                    pin_core: self.pin_core,
                }
            }
        }
    };
}

/// What goes around the runs.
#[derive(Debug, Clone)]
pub struct Output {
    pub limits_dir: Option<PathBuf>,
    pub json: Option<PathBuf>,
    pub pin_core: Option<usize>,
}

load_command! {
    /// One run at a steady rate, in bursts, or both.
    #[argh(subcommand, name = "run")]
    RunArguments {
        defaults: "1", "Duration::from_secs(2)", "Duration::from_secs(10)";
        /// records per second over all producers, such as 10k (default 1000, or none with --bursts)
        #[argh(option, from_str_fn(parse_rate))]
        rate: [Option<f64>],
        /// records that are due at once, taken in turn, such as 200,100
        #[argh(option, from_str_fn(parse_bursts), default = "Bursts::default()")]
        bursts: [Bursts],
        /// time between bursts (default 3s)
        #[argh(option, from_str_fn(parse_duration), default = "Duration::from_secs(3)")]
        every: [Duration],
    }
}

load_command! {
    /// Find the highest rate: by raising an open-loop rate until the server falls behind, or with --inflight by a closed window.
    #[argh(subcommand, name = "saturate")]
    SaturateArguments {
        defaults: "64", "Duration::from_secs(1)", "Duration::from_secs(5)";
        /// rate to start the search at (default 10k)
        #[argh(option, from_str_fn(parse_rate), default = "10_000.0")]
        rate: [f64],
        /// closed window instead of a search: publishes in flight per producer, 0 = as many as the server's window holds
        #[argh(option)]
        inflight: [Option<usize>],
        /// with --inflight: records sent and not yet received (default 32768)
        #[argh(option, default = "32_768")]
        max_lag: [u64],
    }
}

load_command! {
    /// Runs A, B, B, A: two modes on one server, so that drift shows.
    #[argh(subcommand, name = "abba")]
    AbbaArguments {
        defaults: "1", "Duration::from_secs(2)", "Duration::from_secs(10)";
        /// mode of the B runs (default buffered); A is --mode
        #[argh(option, from_str_fn(parse_modes), default = "Modes(vec![Mode::Buffered])")]
        mode_b: [Modes],
        /// records per second over all producers (default 10k)
        #[argh(option, from_str_fn(parse_rate), default = "10_000.0")]
        rate: [f64],
        /// closed window instead of a rate; see saturate
        #[argh(option)]
        inflight: [Option<usize>],
        /// with --inflight: records sent and not yet received (default 32768)
        #[argh(option, default = "32_768")]
        max_lag: [u64],
    }
}

/// Measure the disk and the loopback by plain system calls and threads.
#[derive(FromArgs)]
#[argh(subcommand, name = "limits")]
pub struct LimitsArguments {
    /// directory on the disk to measure (default .)
    #[argh(option, default = "\".\".into()")]
    pub dir: PathBuf,
    /// rounds of each (default 2000)
    #[argh(option, default = "2000")]
    pub rounds: u32,
    /// core of the near end of the round trip; the far end runs on the others
    #[argh(option)]
    pub pin_core: Option<usize>,
    /// write the result here as JSON
    #[argh(option)]
    pub json: Option<PathBuf>,
}

/// Kill the leader of a cluster of its own again and again, and measure how long writes stand still.
#[derive(FromArgs)]
#[argh(subcommand, name = "failover")]
pub struct FailoverArguments {
    /// server program to start three times
    #[argh(option)]
    pub server_bin: PathBuf,
    /// how many leaders are killed, one after the other (default 5)
    #[argh(option, default = "5")]
    pub kills: u32,
    /// time between kills, in which the node has to come back (default 6s)
    #[argh(
        option,
        from_str_fn(parse_duration),
        default = "Duration::from_secs(6)"
    )]
    pub every: Duration,
    /// records per second over a durable and a buffered queue (default 500)
    #[argh(option, from_str_fn(parse_rate), default = "500.0")]
    pub rate: f64,
    /// payload bytes, N or A-B (default 1024)
    #[argh(
        option,
        from_str_fn(parse_size),
        default = "SizeRange { min: 1024, max: 1024 }"
    )]
    pub size: SizeRange,
    /// where the nodes' data goes while it runs (default .)
    #[argh(option, default = "\".\".into()")]
    pub dir: PathBuf,
    /// node N listens for clients on this port plus N, for nodes 100 above (default 7520)
    #[argh(option, default = "7520")]
    pub base_port: u16,
    /// write the result here as JSON
    #[argh(option)]
    pub json: Option<PathBuf>,
}

/// Freeze the server for 100 ms in mid-run and check that the percentiles show it.
#[derive(FromArgs)]
#[argh(subcommand, name = "selftest")]
pub struct SelftestArguments {
    /// server program to start in a temporary directory
    #[argh(option)]
    pub server_bin: Option<PathBuf>,
    /// address of a running server on this machine (with --server-bin: where to listen)
    #[argh(option, default = "\"127.0.0.1:7420\".into()")]
    pub server: String,
    /// its process (default: who listens on the port)
    #[argh(option)]
    pub server_pid: Option<u32>,
}

/// Parses a command line without the program's name.
///
/// # Errors
/// What to print, and the exit code: 0 for help, 2 for wrong usage.
pub fn parse(words: &[&str]) -> Result<Arguments, (String, u8)> {
    Arguments::from_args(&["loadgen"], words)
        .map_err(|exit| (exit.output, if exit.status.is_ok() { 0 } else { 2 }))
}

/// A rate, or with `inflight` a closed window.
pub fn drive(rate: f64, inflight: Option<usize>, max_lag: u64) -> Drive {
    match inflight {
        Some(batches) => Drive::Closed { batches, max_lag },
        None => Drive::Open {
            rate,
            bursts: vec![],
            every: Duration::ZERO,
        },
    }
}

impl RunArguments {
    /// Rate and bursts; without either, 1000 records per second.
    pub fn drive(&self) -> Drive {
        let default = if self.bursts.0.is_empty() {
            1000.0
        } else {
            0.0
        };
        Drive::Open {
            rate: self.rate.unwrap_or(default),
            bursts: self.bursts.0.clone(),
            every: self.every,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str) -> Result<RunArguments, (String, u8)> {
        let words: Vec<_> = line.split_whitespace().collect();
        match parse(&words)?.command {
            Command::Run(arguments) => Ok(arguments),
            _ => panic!("another command"),
        }
    }

    #[test]
    fn the_issue_s_command_lines_are_understood() {
        let arguments = run(
            "run --server 127.0.0.1:7420 --queue q --mode buffered --bursts 200,100 --every 3s \
             --size 100-4000 --batch 8 --producers 2 --consumers 3 --queues 4 --partitions 2 \
             --warmup 1s --duration 30s --json out.json --pin-core 1 --limits-dir .",
        )
        .ok()
        .unwrap();
        let settings = arguments.settings(arguments.drive());
        assert_eq!(settings.check(), Ok(()));
        assert_eq!(settings.modes, [Mode::Buffered]);
        assert_eq!(
            settings.drive,
            Drive::Open {
                rate: 0.0,
                bursts: vec![200, 100],
                every: Duration::from_secs(3)
            }
        );
    }

    #[test]
    fn wrong_usage_is_2_and_help_is_0() {
        for line in [
            "",
            "run --rate fast",
            "run --mode quick",
            "run --size 3",
            "frobnicate",
        ] {
            let words: Vec<_> = line.split_whitespace().collect();
            assert_eq!(parse(&words).err().unwrap().1, 2, "{line}");
        }
        let (help, code) = parse(&["run", "--help"]).err().unwrap();
        assert_eq!(code, 0);
        assert!(help.contains("--pin-core"));
    }

    #[test]
    fn a_default_queue_is_named_after_its_mode() {
        let arguments = run("run --mode buffered").ok().unwrap();
        let settings = arguments.settings(arguments.drive());
        assert_eq!(settings.queue, "loadgen-buffered");
        assert!(matches!(settings.drive, Drive::Open { rate, .. } if rate == 1000.0));
    }
}
