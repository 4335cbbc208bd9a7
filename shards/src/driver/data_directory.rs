//! The data directory around the logs: lock, identity, file system.
//!
//! ```text
//! DIR/lock       held by the running server; its text is that process's id
//! DIR/identity   what the directory is; written once
//! DIR/heard      of a cluster's node: what group 0 recorded of its starts
//! DIR/creating   present until every log was made for the first time
//! DIR/clean      present only after a clean stop
//! DIR/shard-NN/  one log each
//! ```

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    thread,
    time::Duration,
};

use rustix::fs::{flock, statfs, FlockOperation};
use thiserror::Error;

use super::identity::{self, Identity, Membership};
use crate::engine::ShardPlace;

/// While it is there, logs that are missing are made; later they are missed.
const CREATING: &str = "creating";
/// A look from outside holds the lock for a moment ([`running_server`]): that is
/// waited out, this often and this long.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: Duration = Duration::from_millis(10);
/// File systems that write in place, by `statfs` type.
const IN_PLACE: [(u64, &str); 2] = [(0xEF53, "ext4"), (0x5846_5342, "XFS")];

/// Why a data directory cannot be used. Each is one sentence for the user.
#[derive(Debug, Error)]
pub enum DirectoryError {
    #[error("cannot create the data directory {path}: {source}; choose another with --data or fix its permissions")]
    Create { path: PathBuf, source: io::Error },
    #[error(
        "cannot write in the data directory {path}: {source}; check its permissions and free space"
    )]
    Write { path: PathBuf, source: io::Error },
    #[error("another server{} uses the data directory {path}; stop it, or choose another directory with --data", RunningServer { process: *process }.named())]
    InUse {
        path: PathBuf,
        /// As the lock file says; `None` when it does not.
        process: Option<u32>,
    },
    #[error("{path} holds files but no Tidegate identity; choose an empty directory, or the one this server created")]
    Foreign { path: PathBuf },
    #[error("{path}/identity cannot be understood ({reason}); this directory belongs to another version or is damaged")]
    Identity { path: PathBuf, reason: String },
    #[error("{path}/heard cannot be understood ({reason}); this directory belongs to another version or is damaged: replace what it has from the other nodes, do not delete the file")]
    Heard { path: PathBuf, reason: String },
    #[error("the directory was created with {stored} shards and --shards asks for {asked}; the number of logs is fixed at creation: leave --shards away, or use a new directory")]
    Shards { stored: u16, asked: u16 },
    #[error("the directory belongs to node {stored} and this server is configured as node {asked}; use the directory of this node")]
    Node { stored: u32, asked: u32 },
    #[error("the directory belongs to {stored} and this server is configured for {asked}; nothing in it was changed: use the directory of this node, or a new one with --data")]
    Cluster { stored: String, asked: String },
    #[error("the directory belongs to a cluster of the nodes {stored:?} and nodes has {asked:?}; nothing in it was changed: members are fixed when the directory is made, so list the same ones")]
    Members { stored: Vec<u32>, asked: Vec<u32> },
    #[error("the directory is one that node {node} already had, and --join is for a new one that takes its place; nothing in it was changed: leave --join away, or if what was in node {node}'s directory is lost, use an empty directory")]
    NotMadeToJoin { node: u32 },
    #[error("the file system of {path} (type {kind:#x}) is neither ext4 nor XFS, so \"written\" cannot be promised on it; move the directory, or set allow_any_file_system = true for tests")]
    FileSystem { path: PathBuf, kind: u64 },
}

/// A locked data directory.
pub struct DataDirectory {
    path: PathBuf,
    pub identity: Identity,
    /// True when this start created it.
    pub created: bool,
    /// Held until dropped.
    _lock: Lock,
}

/// The lock file, locked, with this process's id in it.
struct Lock(File);

impl Drop for Lock {
    fn drop(&mut self) {
        // Nobody should take the id of a process that ended for a server's.
        let _ = self.0.set_len(0);
    }
}

/// What a directory is created with.
#[derive(Debug, Clone)]
pub struct NewDirectory {
    pub node: u32,
    pub shards: u16,
    pub data_groups: u32,
    /// `None`: the node is alone.
    pub cluster: Option<Membership>,
}

impl DataDirectory {
    /// Opens or creates and locks the directory. `asked_shards` is what the
    /// user asked for, if anything.
    ///
    /// # Errors
    /// See [`DirectoryError`]; nothing was changed, but for a created empty directory.
    pub fn open(
        path: &Path,
        new: NewDirectory,
        asked_shards: Option<u16>,
        any_file_system: bool,
    ) -> Result<Self, DirectoryError> {
        let at = || path.to_owned();
        fs::create_dir_all(path).map_err(|source| DirectoryError::Create { path: at(), source })?;
        let write = |source| DirectoryError::Write { path: at(), source };
        if !any_file_system {
            check_file_system(path)?;
        }
        let begun = path.join("identity").exists() || path.join(CREATING).exists();
        let foreign = !begun && has_other_files(path).map_err(write)?;
        if foreign {
            return Err(DirectoryError::Foreign { path: at() });
        }
        let lock = take_lock(path)?;
        let (node, cluster) = (new.node, new.cluster.clone());
        let stored = identity::read(path)?;
        let created = stored.is_none();
        let identity = match stored {
            Some(identity) => identity,
            None => create_identity(path, new).map_err(write)?,
        };
        if let Some(asked) = asked_shards.filter(|asked| *asked != identity.place.shards) {
            return Err(DirectoryError::Shards {
                stored: identity.place.shards,
                asked,
            });
        }
        identity.check(node, cluster.as_ref())?;
        Ok(DataDirectory {
            path: path.to_owned(),
            identity,
            created,
            _lock: lock,
        })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The creation of this directory was never finished: a log may be missing.
    pub fn may_create_logs(&self) -> bool {
        self.path.join(CREATING).exists()
    }

    /// Every log is made. From now on one that is missing was lost.
    ///
    /// # Errors
    /// The directory cannot be written.
    pub fn finish_creation(&self) -> io::Result<()> {
        if !self.may_create_logs() {
            return Ok(());
        }
        fs::remove_file(self.path.join(CREATING))?;
        sync_directory(&self.path)
    }

    /// The directory of a shard's log.
    pub fn shard(&self, shard: u16) -> PathBuf {
        shard_directory(&self.path, shard)
    }
}

/// Locks the directory for this process, whose id the lock file then says.
fn take_lock(path: &Path) -> Result<Lock, DirectoryError> {
    let lock = OpenOptions::new()
        .create(true)
        .truncate(false)
        .read(true)
        .write(true)
        .open(path.join("lock"))
        .map_err(|source| DirectoryError::Write {
            path: path.to_owned(),
            source,
        })?;
    let mut tries = 0;
    while flock(&lock, FlockOperation::NonBlockingLockExclusive).is_err() {
        tries += 1;
        if tries == LOCK_TRIES {
            return Err(DirectoryError::InUse {
                path: path.to_owned(),
                process: process_in(&lock),
            });
        }
        thread::sleep(LOCK_PAUSE);
    }
    // For people and scripts; a full disk is no reason not to start.
    let text = format!("{}\n", std::process::id());
    let _ = lock
        .write_all_at(text.as_bytes(), 0)
        .and_then(|()| lock.set_len(text.len() as u64));
    Ok(Lock(lock))
}

/// A server that runs on a data directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunningServer {
    /// As the lock file says; `None` when it does not.
    pub process: Option<u32>,
}

/// The server that uses the directory now, if one does. Takes the lock for a
/// moment, shared, which a server that starts meanwhile waits out.
///
/// # Errors
/// The lock file cannot be read.
pub fn running_server(path: &Path) -> io::Result<Option<RunningServer>> {
    let lock = match File::open(path.join("lock")) {
        Ok(lock) => lock,
        Err(error) if is_absent(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    match flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(None),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(Some(RunningServer {
            process: process_in(&lock),
        })),
        Err(error) => Err(error.into()),
    }
}

fn is_absent(error: &io::Error) -> bool {
    use io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

/// The process that the text of a lock file names.
fn process_in(lock: &File) -> Option<u32> {
    let mut text = String::new();
    lock.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

impl RunningServer {
    /// For behind the word "server": empty if its process is not known.
    pub fn named(&self) -> String {
        let process = self.process;
        process.map_or_else(String::new, |process| format!(" (process {process})"))
    }
}

/// `DIR/shard-NN`.
pub fn shard_directory(data: &Path, shard: u16) -> PathBuf {
    data.join(format!("shard-{shard:02}"))
}

fn check_file_system(path: &Path) -> Result<(), DirectoryError> {
    let kind = statfs(path)
        .map_err(|error| DirectoryError::Create {
            path: path.to_owned(),
            source: error.into(),
        })?
        .f_type as u64;
    if IN_PLACE.iter().any(|(known, _)| *known == kind) {
        Ok(())
    } else {
        Err(DirectoryError::FileSystem {
            path: path.to_owned(),
            kind,
        })
    }
}

fn has_other_files(path: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(path)? {
        let name = entry?.file_name();
        let ours = ["lock", "identity.tmp", "lost+found"];
        if !ours.iter().any(|known| name == *known) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn create_identity(path: &Path, new: NewDirectory) -> io::Result<Identity> {
    let identity = Identity {
        node: new.node,
        cookie: random_u64()?,
        place: ShardPlace::spread(new.data_groups, new.shards),
        cluster: new.cluster,
    };
    File::create(path.join(CREATING))?;
    sync_directory(path)?;
    sync_names_of(path)?;
    for shard in 0..new.shards {
        fs::create_dir_all(shard_directory(path, shard))?;
    }
    let temporary = path.join("identity.tmp");
    let mut file = File::create(&temporary)?;
    file.write_all(identity.text().as_bytes())?;
    file.sync_all()?;
    fs::rename(&temporary, path.join("identity"))?;
    sync_directory(path)?;
    Ok(identity)
}

/// Makes the names that lead to a directory durable, up to the root of its
/// file system: whoever made them, this process or another just before, need
/// not have synced them, and without them nothing in it survives.
fn sync_names_of(path: &Path) -> io::Result<()> {
    let path = path.canonicalize()?;
    let device = fs::metadata(&path)?.dev();
    for above in path.ancestors().skip(1) {
        if fs::metadata(above)?.dev() != device {
            return Ok(());
        }
        match File::open(above) {
            Ok(directory) => directory.sync_all()?,
            // Only its owner can have made what is in it.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => return Ok(()),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes created and renamed names in a directory durable.
pub fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// A random number of the system.
pub fn random_u64() -> io::Result<u64> {
    random_bytes().map(u64::from_le_bytes)
}

/// Random bytes of the system.
pub fn random_bytes<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEW: NewDirectory = NewDirectory {
        node: 1,
        shards: 2,
        data_groups: 4,
        cluster: None,
    };

    fn open(path: &Path) -> Result<DataDirectory, DirectoryError> {
        DataDirectory::open(path, NEW, None, true)
    }

    #[test]
    fn a_created_directory_opens_again_as_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let first = open(&path).unwrap();
        assert!(first.created);
        let identity = first.identity.clone();
        drop(first);
        let second = open(&path).unwrap();
        assert!(!second.created);
        assert_eq!(second.identity, identity);
    }

    #[test]
    fn a_second_server_on_the_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let held = open(dir.path()).unwrap();
        let ours = std::process::id();
        match open(dir.path()).map(drop) {
            Err(error @ DirectoryError::InUse { process, .. }) => {
                assert_eq!(process, Some(ours));
                assert!(error.to_string().contains(&format!("process {ours}")));
            }
            other => panic!("{other:?}"),
        }
        let process = Some(ours);
        let running = running_server(dir.path()).unwrap();
        assert_eq!(running, Some(RunningServer { process }));
        drop(held);
        assert_eq!(running_server(dir.path()).unwrap(), None);
        let left = fs::read_to_string(dir.path().join("lock")).unwrap();
        assert_eq!(left, "", "a server that ended names no process");
    }

    #[test]
    fn a_foreign_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("thesis.txt"), "years of work").unwrap();
        assert!(matches!(
            open(dir.path()),
            Err(DirectoryError::Foreign { .. })
        ));
    }

    #[test]
    fn a_creation_that_a_crash_cut_short_goes_on() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()).unwrap());
        fs::remove_file(dir.path().join("identity")).unwrap();
        let again = open(dir.path()).unwrap();
        assert!(again.created && again.may_create_logs());
        again.finish_creation().unwrap();
        again.finish_creation().unwrap();
        drop(again);
        assert!(!open(dir.path()).unwrap().may_create_logs());
        fs::remove_file(dir.path().join("identity")).unwrap();
        assert!(matches!(
            open(dir.path()),
            Err(DirectoryError::Foreign { .. })
        ));
    }

    #[test]
    fn another_number_of_shards_or_another_node_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        drop(open(dir.path()).unwrap());
        let other = DataDirectory::open(dir.path(), NEW, Some(3), true);
        assert!(matches!(
            other,
            Err(DirectoryError::Shards {
                stored: 2,
                asked: 3
            })
        ));
        let node = NewDirectory { node: 2, ..NEW };
        let other = DataDirectory::open(dir.path(), node, None, true);
        assert!(matches!(
            other,
            Err(DirectoryError::Node {
                stored: 1,
                asked: 2
            })
        ));
    }

    #[test]
    fn a_damaged_identity_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for text in [
            "",
            "tidegate 2\n",
            "tidegate 3\n",
            "tidegate 4\n",
            "tidegate 1\nnode 1\ncookie 0\nlogs 1\ngroups 0 7\n",
        ] {
            fs::write(dir.path().join("identity"), text).unwrap();
            assert!(matches!(
                open(dir.path()),
                Err(DirectoryError::Identity { .. })
            ));
        }
    }
}
