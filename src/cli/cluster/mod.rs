//! `tidegate cluster`: status, losses, and what an operator orders.

mod gather;
mod losses;
mod orders;
mod show;
mod summary;

use std::{process::ExitCode, time::Duration};

use argh::FromArgs;

use super::{queue::parse_positive, session};

/// See how a cluster is, and act where it needs a decision. Adding, removing and
/// moving nodes is not possible in this version: a cluster keeps its founding nodes,
/// each on a new directory where the one it had is lost.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "cluster", help_triggers("-h", "--help"))]
pub struct Cluster {
    #[argh(subcommand)]
    action: Action,
}

#[derive(Debug, FromArgs)]
#[argh(subcommand)]
enum Action {
    Status(Status),
    Forget(Forget),
    Replace(Replace),
    Recover(Recover),
    Drain(Drain),
    Undrain(Undrain),
    Losses(Losses),
}

/// Show every node, who is linked, what is wrong, and how many more failures are
/// tolerated. Nodes that are linked to one that was named are asked through it.
/// Exit code 1 where a named or linked node did not answer.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "status", help_triggers("-h", "--help"))]
struct Status {
    /// server to ask (default: 127.0.0.1:7420); several, as A,B,C or one after the
    /// other: each is asked
    #[argh(option, arg_name = "addr")]
    server: Vec<String>,

    /// show every group and replica, not only where something is wrong
    #[argh(switch)]
    groups: bool,

    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Give a node up that is gone for good, so that recoveries do not wait for what it
/// holds. Its directory can never come back: the others refuse its links. What only it
/// held is lost. Groups keep counting it as a missing replica until the node is replaced.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "forget", help_triggers("-h", "--help"))]
struct Forget {
    /// number of the node
    #[argh(positional)]
    node: u32,

    /// it is gone for good: do it
    #[argh(switch)]
    yes: bool,

    /// also while it is linked
    #[argh(switch)]
    force: bool,

    /// server to ask (default: 127.0.0.1:7420); several, as A,B,C or one after
    /// the other, are nodes of one cluster: any that answers
    #[argh(option, arg_name = "addr")]
    server: Vec<String>,

    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Say that the data directory of a node is lost for good, so that a new one may take its
/// place: start the node on an empty directory with `tidegate serve --join` afterwards,
/// and it is brought up in every group. What only the lost one held is lost, and it can
/// never come back.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "replace", help_triggers("-h", "--help"))]
struct Replace {
    /// number of the node
    #[argh(positional)]
    node: u32,

    /// its directory is lost for good: do it
    #[argh(switch)]
    confirm: bool,

    /// server to ask (default: 127.0.0.1:7420); several, as A,B,C or one after
    /// the other, are nodes of one cluster: any that answers
    #[argh(option, arg_name = "addr")]
    server: Vec<String>,

    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Let a group without a leader go on as a new generation from what is left, where it
/// does not by itself. What was confirmed may be lost. It waits for every replica that
/// voted and remembers: forget nodes that are gone for good first. Exit code 1 where
/// the group does not go on within --wait.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "recover", help_triggers("-h", "--help"))]
struct Recover {
    /// number of the group
    #[argh(positional)]
    group: u32,

    /// confirmed records may be lost by it: do it
    #[argh(switch)]
    accept_loss: bool,

    /// how long to wait for the new generation (default: 30s)
    #[argh(
        option,
        arg_name = "dur",
        default = "LONGEST",
        from_str_fn(parse_positive)
    )]
    wait: Duration,

    /// server to ask (default: 127.0.0.1:7420); several, as A,B,C or one after
    /// the other, are nodes of one cluster: any that answers
    #[argh(option, arg_name = "addr")]
    server: Vec<String>,

    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Ask a node to hand over everything it leads, before it is stopped for a while. It
/// leads nothing until it is undrained or started again. Exit code 1 where it still
/// leads something after --wait; it goes on handing over then.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "drain", help_triggers("-h", "--help"))]
struct Drain {
    /// number of the node
    #[argh(positional)]
    node: u32,

    /// how long to wait until it leads nothing (default: 30s)
    #[argh(
        option,
        arg_name = "dur",
        default = "LONGEST",
        from_str_fn(parse_positive)
    )]
    wait: Duration,

    /// server to ask (default: 127.0.0.1:7420); several, as A,B,C or one after
    /// the other, are nodes of one cluster: any that answers
    #[argh(option, arg_name = "addr")]
    server: Vec<String>,

    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Let a node lead again that was drained.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "undrain", help_triggers("-h", "--help"))]
struct Undrain {
    /// number of the node
    #[argh(positional)]
    node: u32,

    /// server to ask (default: 127.0.0.1:7420); several, as A,B,C or one after
    /// the other, are nodes of one cluster: any that answers
    #[argh(option, arg_name = "addr")]
    server: Vec<String>,

    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Show what every partition of every queue has lost, one loss per line.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "losses", help_triggers("-h", "--help"))]
struct Losses {
    /// server to ask (default: 127.0.0.1:7420); several, as A,B,C or one after
    /// the other, are nodes of one cluster: any that answers
    #[argh(option, arg_name = "addr")]
    server: Vec<String>,

    /// print one JSON object per loss
    #[argh(switch)]
    json: bool,
}

const LONGEST: Duration = Duration::from_secs(30);

impl Cluster {
    pub fn run(self) -> ExitCode {
        match self.action {
            Action::Status(args) => {
                session::run_alone(args.json, |out| show::status(args.server, args.groups, out))
            }
            Action::Forget(args) => {
                let server = args.server.clone();
                session::run(&server, args.json, |client, out| {
                    orders::forget(client, out, args)
                })
            }
            Action::Replace(args) => {
                let server = args.server.clone();
                session::run(&server, args.json, |client, out| {
                    orders::replace(client, out, args)
                })
            }
            Action::Recover(args) => {
                let server = args.server.clone();
                session::run(&server, args.json, |client, out| {
                    orders::recover(client, out, args)
                })
            }
            Action::Drain(args) => {
                let server = args.server.clone();
                session::run(&server, args.json, |client, out| {
                    orders::drain(client, out, args)
                })
            }
            Action::Undrain(args) => session::run(&args.server, args.json, |client, out| {
                orders::undrain(client, out, args.node)
            }),
            Action::Losses(args) => session::run(&args.server, args.json, losses::losses),
        }
    }
}
