//! Feature levels: which version knows which commands.
//!
//! | level | brought |
//! |---|---|
//! | 1 | everything that nodes of protocol 6 know: all commands that are not named below |
//! | 2 | group 0's *Readmit*: the number of a removed node is given again |
//!
//! A cluster is at the level that every member's version was known to know, as group 0
//! recorded it ([`super::meta`]); it never goes down. Nobody proposes a command before its
//! cluster is at the level that brought it, and no node of a lower one takes part: so no
//! log ever holds what a member cannot apply.
//!
//! A new command, or a new meaning of an old one, raises [`OWN_LEVEL`], gets a line above
//! and its number below. Numbers never change meaning.

use super::{
    command::Command,
    meta::{MemberCommand, MetaCommand},
};

/// Of a cluster that recorded none.
pub const FIRST_LEVEL: u16 = 1;
/// What this version knows.
pub const OWN_LEVEL: u16 = 2;

/// Why a version that knows `known` cannot go on where the cluster is at `level`.
pub fn why_outdated(level: u16, known: u16) -> Option<String> {
    (level > known).then(|| {
        format!(
            "the cluster of this directory is at feature level {level}, and this version of tidegate knows {known}: start it with a version that knows {level}, such as the one that ran here before"
        )
    })
}

impl MetaCommand {
    /// The level that brought the command.
    pub fn level(&self) -> u16 {
        match self {
            MetaCommand::Members(MemberCommand::Readmit { .. }) => 2,
            MetaCommand::Declare(_)
            | MetaCommand::Delete { .. }
            | MetaCommand::Opened { .. }
            | MetaCommand::Recovered { .. }
            | MetaCommand::Rejoin { .. }
            | MetaCommand::Promoting { .. }
            | MetaCommand::Collect { .. }
            | MetaCommand::Answered { .. }
            | MetaCommand::Forget { .. }
            | MetaCommand::Replace { .. }
            | MetaCommand::Members(_)
            | MetaCommand::Change { .. }
            | MetaCommand::Level { .. } => FIRST_LEVEL,
        }
    }
}

impl Command<'_> {
    /// The level that brought the command.
    pub fn level(&self) -> u16 {
        match self {
            Command::Create(_)
            | Command::Drop { .. }
            | Command::Append { .. }
            | Command::Settle { .. }
            | Command::LeaseEnded { .. }
            | Command::DispatchMark { .. }
            | Command::Purge { .. }
            | Command::Weaken
            | Command::NewGeneration { .. }
            | Command::Change { .. } => FIRST_LEVEL,
        }
    }
}
