//! `tidegate serve`.

use std::{path::PathBuf, process::ExitCode};

use argh::FromArgs;

use crate::config::{parse_size, Overrides, ServeOptions};

/// Run the server in the foreground until SIGTERM or SIGINT, which drain it:
/// it stops accepting, finishes what is under way, syncs, and marks its data
/// directory as cleanly closed.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "serve", help_triggers("-h", "--help"))]
pub struct Serve {
    /// data directory, made when missing (default: ./tidegate-data)
    #[argh(option, arg_name = "dir")]
    data: Option<PathBuf>,

    /// address to listen on; port 0 takes a free one (default: 127.0.0.1:7420)
    #[argh(option, arg_name = "addr")]
    listen: Option<String>,

    /// where clients reach this node of a cluster, HOST:PORT (default: the
    /// address that it listens on)
    #[argh(option, arg_name = "addr")]
    advertise: Option<String>,

    /// number of shards, 1 to 64; fixed when the data directory is made
    /// (default: one per core)
    #[argh(option, arg_name = "n")]
    shards: Option<u16>,

    /// configuration file (TOML); options given here win over it (default: none)
    #[argh(option, arg_name = "file")]
    config: Option<PathBuf>,

    /// number of this node in its cluster (default: node_id of the
    /// configuration file, else 1)
    #[argh(option, arg_name = "n")]
    node: Option<u32>,

    /// make a new data directory that joins its cluster: of a node that was added
    /// (`tidegate cluster add`), or in the place of one that was given up (`tidegate
    /// cluster replace`). Later starts of it need not say so
    #[argh(switch)]
    join: bool,

    /// the way out where a majority of the nodes is lost for good: group 0, in
    /// the generation N that ends (1, or what a forced start said last), goes on
    /// from what this node holds, alone, and the other nodes' directories are
    /// given up. Never while one of them may come back: see docs/operations.md
    #[argh(option, arg_name = "n")]
    force_group_0: Option<u32>,

    /// size of a log segment, in bytes or like 64MiB (default: 64MiB)
    #[argh(option, arg_name = "size", from_str_fn(parse_size))]
    segment_size: Option<u64>,
}

impl Serve {
    pub fn run(self) -> ExitCode {
        let overrides = Overrides {
            data: self.data,
            listen: self.listen,
            advertise: self.advertise,
            shards: self.shards,
            segment_bytes: self.segment_size,
            node_id: self.node,
            force_group_0: self.force_group_0,
            join: self.join,
        };
        match ServeOptions::load(self.config.as_deref(), overrides) {
            Ok(options) => crate::serve::run(options),
            Err(error) => {
                eprintln!("tidegate: {error}");
                ExitCode::FAILURE
            }
        }
    }
}
