//! What a data directory is, as its file `identity` says: written once.
//!
//! A node that is alone has format 1; one of a cluster format 2, which has two
//! lines more: a program that knows nothing of clusters must not take the
//! directory for one that is alone. A directory that was made to join its cluster
//! has format 3 and one line more: it must not be taken for a founder's.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

use super::data_directory::DirectoryError;
use crate::{engine::ShardPlace, log::OtherFormat};

/// Formats of the file, and with it of the directory's layout.
const ALONE: u32 = 1;
const OF_CLUSTER: u32 = 2;
const JOINED: u32 = 3;
/// Longest identity file that is read.
const MAX_BYTES: u64 = 64 << 10;
const FILE: &str = "identity";

/// What a data directory is; fixed at its creation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub node: u32,
    /// Random, tells directories apart.
    pub cookie: u64,
    pub place: ShardPlace,
    /// `None`: the node is alone.
    pub cluster: Option<Membership>,
}

/// The cluster that a node is one of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Membership {
    pub cluster: String,
    /// Founding members, ascending, the node included.
    pub members: Vec<u32>,
    /// It was made to join: group 0 names its replicas.
    pub joins: bool,
}

impl Identity {
    /// It was made to join its cluster.
    pub fn joins(&self) -> bool {
        self.cluster.as_ref().is_some_and(|of| of.joins)
    }

    /// The file's text.
    pub(super) fn text(&self) -> String {
        let format = match &self.cluster {
            None => ALONE,
            Some(of) if of.joins => JOINED,
            Some(_) => OF_CLUSTER,
        };
        let mut text = format!(
            "tidegate {format}\nnode {}\ncookie {:016x}\nlogs {}\ngroups {}\n",
            self.node,
            self.cookie,
            self.place.shards,
            spaced(&self.place.shard_of_group)
        );
        if let Some(of) = &self.cluster {
            let (cluster, members) = (&of.cluster, spaced(&of.members));
            text.push_str(&format!("cluster {cluster}\nnodes {members}\n"));
            if of.joins {
                text.push_str("joins\n");
            }
        }
        text
    }

    /// Compares what a start asks for; the file is left alone.
    ///
    /// # Errors
    /// The directory is another node's or another cluster's.
    pub(super) fn check(
        &self,
        node: u32,
        cluster: Option<&Membership>,
    ) -> Result<(), DirectoryError> {
        if self.node != node {
            return Err(DirectoryError::Node {
                stored: self.node,
                asked: node,
            });
        }
        let named = |membership: Option<&Membership>| {
            membership.map_or_else(
                || "no cluster".to_owned(),
                |of| format!("cluster {:?}", of.cluster),
            )
        };
        let stored = self.cluster.as_ref();
        let (ours, theirs) = (named(stored), named(cluster));
        if ours != theirs {
            return Err(DirectoryError::Cluster {
                stored: ours,
                asked: theirs,
            });
        }
        match (stored, cluster) {
            (Some(stored), Some(asked)) if asked.joins && !stored.joins => {
                Err(DirectoryError::NotMadeToJoin { node })
            }
            // One that joined lists whom it asks first: that may change.
            (Some(stored), Some(asked)) if stored.members != asked.members && !stored.joins => {
                Err(DirectoryError::Members {
                    stored: stored.members.clone(),
                    asked: asked.members.clone(),
                })
            }
            _ => Ok(()),
        }
    }
}

fn spaced(numbers: &[impl ToString]) -> String {
    let words: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    words.join(" ")
}

/// The identity of a directory; `None` if it has none yet.
///
/// # Errors
/// The file cannot be read or understood.
pub(super) fn read(path: &Path) -> Result<Option<Identity>, DirectoryError> {
    let refuse = |reason: String| DirectoryError::Identity {
        path: path.to_owned(),
        reason,
    };
    let file = match File::open(path.join(FILE)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(refuse(error.to_string())),
    };
    let mut text = String::new();
    file.take(MAX_BYTES)
        .read_to_string(&mut text)
        .map_err(|error| refuse(error.to_string()))?;
    parse(&text).map(Some).map_err(refuse)
}

/// How many shards the directory has, if it is made and can be read.
pub fn stored_shards(path: &Path) -> Option<u16> {
    let identity = read(path).ok().flatten();
    identity.map(|identity| identity.place.shards)
}

/// The other format that the directory's identity states, if it does.
pub(super) fn other_format(path: &Path) -> Option<OtherFormat> {
    let text = fs::read_to_string(path.join(FILE)).ok()?;
    let number = text.lines().next()?.strip_prefix("tidegate ")?;
    let format = number.parse().ok()?;
    (!(ALONE..=JOINED).contains(&format)).then(|| OtherFormat {
        what: "the file `identity`".to_owned(),
        format,
        reads: JOINED,
    })
}

fn parse(text: &str) -> Result<Identity, String> {
    let field = |name: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
            .ok_or_else(|| format!("the line {name:?} is missing"))
    };
    let format: u32 = field("tidegate")?.parse().map_err(bad("tidegate"))?;
    if !(ALONE..=JOINED).contains(&format) {
        return Err(format!(
            "format {format}, and this build reads formats {ALONE} to {JOINED}"
        ));
    }
    let shards: u16 = field("logs")?.parse().map_err(bad("logs"))?;
    let table: Result<Vec<u16>, _> = field("groups")?.split(' ').map(str::parse).collect();
    let shard_of_group = table.map_err(bad("groups"))?;
    let placed = shard_of_group.iter().all(|shard| *shard < shards);
    if !placed || shard_of_group.len() < 2 || shards == 0 || shards > 64 {
        return Err("the table of groups does not fit the number of logs".to_owned());
    }
    let node = field("node")?.parse().map_err(bad("node"))?;
    let cluster = match format {
        ALONE => None,
        _ => {
            let joins = format == JOINED;
            if joins != text.lines().any(|line| line == "joins") {
                return Err("the line \"joins\" does not go with the format".to_owned());
            }
            let mut of = membership(field("cluster")?, field("nodes")?, node)?;
            of.joins = joins;
            Some(of)
        }
    };
    Ok(Identity {
        node,
        cookie: u64::from_str_radix(field("cookie")?, 16).map_err(bad("cookie"))?,
        place: ShardPlace {
            shard_of_group,
            shards,
        },
        cluster,
    })
}

fn membership(cluster: &str, nodes: &str, own: u32) -> Result<Membership, String> {
    let members: Result<Vec<u32>, _> = nodes.split(' ').map(str::parse).collect();
    let members = members.map_err(bad("nodes"))?;
    if !members.is_sorted_by(|one, next| one < next) || !members.contains(&own) {
        return Err("the line \"nodes\" is not a list of members with this one".to_owned());
    }
    Ok(Membership {
        cluster: cluster.to_owned(),
        members,
        joins: false,
    })
}

fn bad<E>(name: &str) -> impl FnOnce(E) -> String + '_ {
    move |_| format!("the line {name:?} is not a number")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(cluster: Option<(&str, &[u32])>) -> Identity {
        Identity {
            node: 2,
            cookie: 0xfeed,
            place: ShardPlace::spread(4, 2),
            cluster: cluster.map(|(name, members)| Membership {
                cluster: name.to_owned(),
                members: members.to_vec(),
                joins: false,
            }),
        }
    }

    #[test]
    fn a_node_alone_has_the_text_it_always_had_and_one_of_a_cluster_another_format() {
        let alone = identity(None);
        let text = "tidegate 1\nnode 2\ncookie 000000000000feed\nlogs 2\ngroups 0 0 1 0 1\n";
        assert_eq!(alone.text(), text);
        assert_eq!(parse(text), Ok(alone));
        let one = identity(Some(("orders", &[1, 2, 9])));
        let expected = text.replace("tidegate 1", "tidegate 2") + "cluster orders\nnodes 1 2 9\n";
        assert_eq!(one.text(), expected);
        assert_eq!(parse(&expected), Ok(one));
        for (line, wrong) in [
            ("cluster orders\n", ""),
            ("nodes 1 2 9\n", ""),
            ("nodes 1 2 9", "nodes 1 9"),
            ("nodes 1 2 9", "nodes 2 1"),
            ("nodes 1 2 9", "nodes 1 two"),
            ("tidegate 2", "tidegate 3"),
            ("tidegate 2", "tidegate 4"),
        ] {
            assert!(
                parse(&expected.replace(line, wrong)).is_err(),
                "{line:?} {wrong:?}"
            );
        }
    }

    #[test]
    fn a_directory_that_was_made_to_join_says_so_and_no_founders_can_be_told_to() {
        let mut founder = identity(Some(("orders", &[1, 2, 3])));
        let mut joined = founder.clone();
        joined.cluster.as_mut().unwrap().joins = true;
        let text = joined.text();
        assert!(text.starts_with("tidegate 3\n") && text.ends_with("nodes 1 2 3\njoins\n"));
        assert_eq!(parse(&text), Ok(joined.clone()));
        assert!(parse(&text.replace("joins\n", "")).is_err());
        assert!(parse(&text.replace("tidegate 3", "tidegate 2")).is_err());
        // Later starts need not say it again.
        assert!(joined.check(2, founder.cluster.as_ref()).is_ok());
        assert!(joined.check(2, joined.cluster.as_ref()).is_ok());
        let error = founder.check(2, joined.cluster.as_ref()).unwrap_err();
        assert!(error.to_string().contains("--join"), "{error}");
        founder.cluster = None;
        assert!(founder.check(2, joined.cluster.as_ref()).is_err());
    }

    #[test]
    fn another_cluster_other_members_and_being_alone_are_told_apart() {
        let one = identity(Some(("orders", &[1, 2, 3])));
        let asked = |name: &str, members: &[u32]| identity(Some((name, members))).cluster;
        let check = |membership: Option<Membership>| one.check(2, membership.as_ref());
        assert!(check(asked("orders", &[1, 2, 3])).is_ok());
        let error = check(asked("other", &[1, 2, 3])).unwrap_err();
        assert!(matches!(error, DirectoryError::Cluster { .. }), "{error}");
        let error = check(asked("orders", &[1, 2])).unwrap_err();
        assert!(matches!(error, DirectoryError::Members { .. }), "{error}");
        let error = check(None).unwrap_err().to_string();
        assert!(error.contains("belongs to cluster \"orders\""), "{error}");
        assert!(error.contains("no cluster"), "{error}");
        let alone = identity(None);
        assert!(alone.check(2, None).is_ok());
        let error = alone.check(2, asked("orders", &[1, 2]).as_ref());
        assert!(matches!(error, Err(DirectoryError::Cluster { .. })));
    }
}
