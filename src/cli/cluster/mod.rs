//! `tidegate cluster`: status, losses, and what an operator orders.

mod gather;
mod losses;
mod members;
mod orders;
mod show;
mod summary;

use std::{net::SocketAddr, process::ExitCode, time::Duration};

use argh::FromArgs;

use super::{queue::parse_positive, session};

/// See how a cluster is, change who belongs to it, and act where it needs a decision.
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
    Add(Add),
    Move(Move),
    Remove(Remove),
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

/// Let a node belong to the cluster, which has at most 5. Start it afterwards on an empty
/// directory with `tidegate serve --join`, and a configuration whose nodes list it and one
/// other member at least. It gets replicas of groups by `cluster move`, and slowly by
/// itself. Of a node that belongs to it, address and zone change.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "add", help_triggers("-h", "--help"))]
struct Add {
    /// its number, and where the others call it: 4=10.0.0.4:7501
    #[argh(positional, from_str_fn(parse_node))]
    node: NodeAt,

    /// where it stands, in a word: replicas of a group are kept in different zones as far
    /// as there are any
    #[argh(option, arg_name = "name")]
    zone: Option<String>,

    /// server to ask (default: 127.0.0.1:7420); several, as A,B,C or one after
    /// the other, are nodes of one cluster: any that answers
    #[argh(option, arg_name = "addr")]
    server: Vec<String>,

    /// print one JSON object
    #[argh(switch)]
    json: bool,
}

/// Move a group's replica, or those of all groups, from one node to another, under load: the
/// new one catches up first, then it votes in the place of the old one, whose data is
/// deleted. Exit code 1 where that takes longer than --wait; it goes on by itself. A move
/// that cannot go on, as the new node is away, is called back by the opposite one.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "move", help_triggers("-h", "--help"))]
struct Move {
    /// number of the group, or all
    #[argh(positional, from_str_fn(parse_group))]
    group: Groups,

    /// node that it is on
    #[argh(option, arg_name = "node")]
    from: u32,

    /// node that it goes to
    #[argh(option, arg_name = "node")]
    to: u32,

    /// also into a zone that holds the group already
    #[argh(switch)]
    force: bool,

    /// how long to wait until it is there (default: 5m)
    #[argh(
        option,
        arg_name = "dur",
        default = "LONGEST_MOVE",
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

/// Remove a node: its replicas go to the other nodes, under load, then it belongs to the
/// cluster no more and its process ends. Its directory can never come back. Exit code 1
/// where that takes longer than --wait; it goes on by itself. `cluster add` calls it back.
#[derive(Debug, FromArgs)]
#[argh(subcommand, name = "remove", help_triggers("-h", "--help"))]
struct Remove {
    /// number of the node
    #[argh(positional)]
    node: u32,

    /// for good: do it
    #[argh(switch)]
    yes: bool,

    /// how long to wait until it is removed (default: 5m)
    #[argh(
        option,
        arg_name = "dur",
        default = "LONGEST_MOVE",
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

/// `NUMBER=ADDRESS:PORT`
#[derive(Debug)]
struct NodeAt {
    number: u32,
    address: String,
}

fn parse_node(text: &str) -> Result<NodeAt, String> {
    let wrong =
        || format!("{text:?} is not a node; write NUMBER=ADDRESS:PORT like 4=10.0.0.4:7501");
    let (number, address) = text.split_once('=').ok_or_else(wrong)?;
    let address: SocketAddr = address.trim().parse().map_err(|_| wrong())?;
    if address.port() == 0 || address.ip().is_unspecified() {
        return Err(format!(
            "{text:?}: other nodes cannot reach {address}; write the address and port that the node listens on for nodes"
        ));
    }
    Ok(NodeAt {
        number: number.trim().parse().map_err(|_| wrong())?,
        address: address.to_string(),
    })
}

/// One group, or all.
#[derive(Debug)]
struct Groups(Option<u32>);

fn parse_group(text: &str) -> Result<Groups, String> {
    match text {
        "all" => Ok(Groups(None)),
        number => {
            let group = number.parse();
            let wrong = |_| format!("{text:?} is neither a group's number nor \"all\"");
            group.map(|group| Groups(Some(group))).map_err(wrong)
        }
    }
}

const LONGEST: Duration = Duration::from_secs(30);
const LONGEST_MOVE: Duration = Duration::from_secs(300);

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
            Action::Add(args) => {
                let server = args.server.clone();
                session::run(&server, args.json, |client, out| {
                    members::add(client, out, args)
                })
            }
            Action::Move(args) => {
                let server = args.server.clone();
                session::run(&server, args.json, |client, out| {
                    members::move_groups(client, out, args)
                })
            }
            Action::Remove(args) => {
                let server = args.server.clone();
                session::run(&server, args.json, |client, out| {
                    members::remove(client, out, args)
                })
            }
            Action::Losses(args) => session::run(&args.server, args.json, losses::losses),
        }
    }
}
