//! Files and names on a disk whose cache is volatile.
//!
//! 1. A reader sees every change at once.
//! 2. A name (created, renamed over, removed) is durable only when its
//!    directory was synced; a sync of the file does not do it. This is what
//!    POSIX promises, and less than ext4 does.
//! 3. A rename is one change: it survives whole or not at all.
//!
//! After [`Disk::cut`] the disk holds what survived, all of it durable.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::{OsStr, OsString},
};

use crate::{
    cut::{CutReport, Style},
    file::{File, Tick},
    random::Random,
};

pub type Inode = u64;

/// The root directory, as FUSE numbers it.
pub const ROOT: Inode = 1;

/// An error number of `libc`.
pub type Errno = i32;

#[derive(Debug)]
pub enum Node {
    File(File),
    Directory(Directory),
}

#[derive(Debug, Default)]
pub struct Directory {
    current: BTreeMap<OsString, Inode>,
    durable: BTreeMap<OsString, Inode>,
    /// Since the directory was last synced, oldest first.
    changes: Vec<Change>,
}

/// Names that change together; `None` takes a name away.
#[derive(Debug)]
struct Change {
    tick: Tick,
    names: Vec<(OsString, Option<Inode>)>,
}

impl Directory {
    fn change(&mut self, change: Change) {
        apply(&mut self.current, &change);
        self.changes.push(change);
    }

    fn sync(&mut self, upto: Tick) {
        let covered = self.changes.partition_point(|change| change.tick <= upto);
        for change in self.changes.drain(..covered) {
            apply(&mut self.durable, &change);
        }
    }
}

fn apply(names: &mut BTreeMap<OsString, Inode>, change: &Change) {
    for (name, inode) in &change.names {
        match inode {
            Some(inode) => names.insert(name.clone(), *inode),
            None => names.remove(name),
        };
    }
}

#[derive(Debug)]
pub struct Disk {
    nodes: BTreeMap<Inode, Node>,
    next_inode: Inode,
    now: Tick,
    /// Bytes that files may hold together.
    capacity: usize,
}

impl Disk {
    /// An empty root directory.
    pub fn new(capacity: usize) -> Self {
        Disk {
            nodes: BTreeMap::from([(ROOT, Node::Directory(Directory::default()))]),
            next_inode: ROOT + 1,
            now: 0,
            capacity,
        }
    }

    pub fn set_capacity(&mut self, bytes: usize) {
        self.capacity = bytes;
    }

    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Bytes of all files that have a name.
    pub fn used(&self) -> usize {
        let named = self.nodes.values().filter_map(|node| match node {
            Node::Directory(directory) => Some(directory.current.values()),
            Node::File(_) => None,
        });
        named
            .flatten()
            .filter_map(|inode| match self.nodes.get(inode) {
                Some(Node::File(file)) => Some(file.len()),
                _ => None,
            })
            .sum()
    }

    /// The newest thing that happened: a sync issued now covers it.
    pub fn now(&self) -> Tick {
        self.now
    }

    pub fn node(&self, inode: Inode) -> Result<&Node, Errno> {
        self.nodes.get(&inode).ok_or(libc::ENOENT)
    }

    pub fn file(&self, inode: Inode) -> Result<&File, Errno> {
        match self.node(inode)? {
            Node::File(file) => Ok(file),
            Node::Directory(_) => Err(libc::EISDIR),
        }
    }

    fn file_mut(&mut self, inode: Inode) -> Result<&mut File, Errno> {
        match self.nodes.get_mut(&inode).ok_or(libc::ENOENT)? {
            Node::File(file) => Ok(file),
            Node::Directory(_) => Err(libc::EISDIR),
        }
    }

    fn directory(&self, inode: Inode) -> Result<&Directory, Errno> {
        match self.node(inode)? {
            Node::Directory(directory) => Ok(directory),
            Node::File(_) => Err(libc::ENOTDIR),
        }
    }

    fn directory_mut(&mut self, inode: Inode) -> Result<&mut Directory, Errno> {
        match self.nodes.get_mut(&inode).ok_or(libc::ENOENT)? {
            Node::Directory(directory) => Ok(directory),
            Node::File(_) => Err(libc::ENOTDIR),
        }
    }

    pub fn lookup(&self, parent: Inode, name: &OsStr) -> Result<Inode, Errno> {
        let names = &self.directory(parent)?.current;
        names.get(name).copied().ok_or(libc::ENOENT)
    }

    /// The entries of a directory by name.
    pub fn list(&self, inode: Inode) -> Result<Vec<(Inode, OsString)>, Errno> {
        let names = &self.directory(inode)?.current;
        Ok(names
            .iter()
            .map(|(name, inode)| (*inode, name.clone()))
            .collect())
    }

    /// A name that leads to it, if one does.
    pub fn name_of(&self, inode: Inode) -> Option<String> {
        let directories = self.nodes.values().filter_map(|node| match node {
            Node::Directory(directory) => Some(&directory.current),
            Node::File(_) => None,
        });
        let mut names = directories.flatten();
        let (name, _) = names.find(|(_, known)| **known == inode)?;
        Some(name.to_string_lossy().into_owned())
    }

    fn change(
        &mut self,
        parent: Inode,
        names: Vec<(OsString, Option<Inode>)>,
    ) -> Result<(), Errno> {
        self.now += 1;
        let tick = self.now;
        self.directory_mut(parent)?.change(Change { tick, names });
        Ok(())
    }

    pub fn create(&mut self, parent: Inode, name: &OsStr, node: Node) -> Result<Inode, Errno> {
        match self.lookup(parent, name) {
            Ok(_) => return Err(libc::EEXIST),
            Err(libc::ENOENT) => {}
            Err(errno) => return Err(errno),
        }
        let inode = self.next_inode;
        self.next_inode += 1;
        self.nodes.insert(inode, node);
        self.change(parent, vec![(name.to_owned(), Some(inode))])?;
        Ok(inode)
    }

    /// Takes a name away: of a file, or of an empty directory.
    pub fn remove(&mut self, parent: Inode, name: &OsStr, directory: bool) -> Result<(), Errno> {
        let inode = self.lookup(parent, name)?;
        match (self.node(inode)?, directory) {
            (Node::File(_), true) => return Err(libc::ENOTDIR),
            (Node::Directory(_), false) => return Err(libc::EISDIR),
            (Node::Directory(there), true) if !there.current.is_empty() => {
                return Err(libc::ENOTEMPTY);
            }
            _ => {}
        }
        self.change(parent, vec![(name.to_owned(), None)])
    }

    /// Within one directory; a file may be replaced.
    pub fn rename(&mut self, parent: Inode, name: &OsStr, to: &OsStr) -> Result<(), Errno> {
        let inode = self.lookup(parent, name)?;
        if name == to {
            return Ok(());
        }
        if let Ok(replaced) = self.lookup(parent, to) {
            self.file(replaced)?;
            self.file(inode).map_err(|_| libc::ENOTDIR)?;
        }
        let names = vec![(name.to_owned(), None), (to.to_owned(), Some(inode))];
        self.change(parent, names)
    }

    /// Fails with `ENOSPC` if a file would grow beyond the capacity.
    fn check_room(&self, inode: Inode, len: usize) -> Result<(), Errno> {
        let grows = len.saturating_sub(self.file(inode)?.len());
        if grows > 0 && self.used() + grows > self.capacity {
            return Err(libc::ENOSPC);
        }
        Ok(())
    }

    pub fn write(
        &mut self,
        inode: Inode,
        offset: usize,
        data: &[u8],
        through: bool,
    ) -> Result<(), Errno> {
        self.check_room(inode, offset + data.len())?;
        self.now += 1;
        let tick = self.now;
        let file = self.file_mut(inode)?;
        file.write(tick, offset, data);
        if through {
            file.make_durable(offset, data.len());
        }
        Ok(())
    }

    pub fn set_len(&mut self, inode: Inode, len: usize) -> Result<(), Errno> {
        self.check_room(inode, len)?;
        self.now += 1;
        let tick = self.now;
        self.file_mut(inode)?.set_len(tick, len);
        Ok(())
    }

    /// Of a file its bytes and length, of a directory its names.
    pub fn sync(&mut self, inode: Inode, upto: Tick) -> Result<(), Errno> {
        match self.nodes.get_mut(&inode).ok_or(libc::ENOENT)? {
            Node::File(file) => file.sync(upto),
            Node::Directory(directory) => directory.sync(upto),
        }
        Ok(())
    }

    /// A sync of this file failed; see [`File::forget`].
    pub fn forget(&mut self, inode: Inode, upto: Tick) -> u64 {
        self.file_mut(inode).map_or(0, |file| file.forget(upto))
    }

    /// The power is gone. What was not durable survives as `style` and the
    /// random numbers have it.
    pub fn cut(&mut self, style: Style, random: &mut Random) -> CutReport {
        let mut report = CutReport::new(style);
        for node in self.nodes.values_mut() {
            match node {
                Node::File(file) => style.cut_file(file, random, &mut report),
                Node::Directory(directory) => {
                    let keep = style.kept_changes(directory.changes.len(), random);
                    for (change, keep) in directory.changes.drain(..).zip(keep) {
                        if keep {
                            apply(&mut directory.durable, &change);
                            report.names_kept += 1;
                        } else {
                            report.names_undone += 1;
                        }
                    }
                    directory.current.clone_from(&directory.durable);
                }
            }
        }
        self.drop_unreachable();
        report
    }

    fn drop_unreachable(&mut self) {
        let mut reached = BTreeSet::from([ROOT]);
        let mut left = vec![ROOT];
        while let Some(inode) = left.pop() {
            if let Some(Node::Directory(directory)) = self.nodes.get(&inode) {
                for child in directory.current.values() {
                    if reached.insert(*child) {
                        left.push(*child);
                    }
                }
            }
        }
        self.nodes.retain(|inode, _| reached.contains(inode));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn disk() -> Disk {
        Disk::new(1 << 20)
    }

    fn file() -> Node {
        Node::File(File::default())
    }

    fn names(disk: &Disk) -> Vec<String> {
        let list = disk.list(ROOT).unwrap().into_iter();
        list.map(|(_, name)| name.into_string().unwrap()).collect()
    }

    /// Makes `name` with these bytes, synced; the name is not.
    fn synced_file(disk: &mut Disk, name: &str, bytes: &[u8]) -> Inode {
        let inode = disk.create(ROOT, name.as_ref(), file()).unwrap();
        disk.write(inode, 0, bytes, false).unwrap();
        disk.sync(inode, disk.now()).unwrap();
        inode
    }

    #[test]
    fn a_name_needs_a_sync_of_its_directory() {
        let mut disk = disk();
        synced_file(&mut disk, "a", b"a");
        disk.sync(ROOT, disk.now()).unwrap();
        synced_file(&mut disk, "b", b"b");
        disk.remove(ROOT, "a".as_ref(), false).unwrap();
        assert_eq!(names(&disk), ["b"]);
        let report = disk.cut(Style::DropAll, &mut Random::new(1));
        assert_eq!(names(&disk), ["a"]);
        assert_eq!((report.names_kept, report.names_undone), (0, 2));
    }

    #[test]
    fn a_rename_is_whole_whatever_survives() {
        for seed in 0..200 {
            let mut disk = disk();
            let old = synced_file(&mut disk, "a", b"old");
            disk.sync(ROOT, disk.now()).unwrap();
            let new = synced_file(&mut disk, "a.tmp", b"new");
            disk.rename(ROOT, "a.tmp".as_ref(), "a".as_ref()).unwrap();
            let mut random = Random::new(seed);
            let style = Style::any(&mut random);
            disk.cut(style, &mut random);
            let a = disk.lookup(ROOT, "a".as_ref()).unwrap();
            assert!(a == old || a == new);
            let expected: &[u8] = if a == old { b"old" } else { b"new" };
            assert_eq!(disk.file(a).unwrap().read(0, 9), expected, "{seed}");
        }
    }

    #[test]
    fn what_grows_beyond_the_capacity_is_refused_and_overwriting_is_not() {
        let mut disk = Disk::new(1000);
        let inode = synced_file(&mut disk, "a", &[1; 600]);
        assert_eq!(disk.write(inode, 500, &[2; 501], false), Err(libc::ENOSPC));
        assert_eq!(disk.set_len(inode, 1001), Err(libc::ENOSPC));
        disk.write(inode, 0, &[2; 600], false).unwrap();
        disk.remove(ROOT, "a".as_ref(), false).unwrap();
        synced_file(&mut disk, "b", &[1; 1000]);
    }

    #[test]
    fn directories_lost_with_their_names_take_their_files_along() {
        let mut disk = disk();
        let made = disk
            .create(ROOT, "d".as_ref(), Node::Directory(Directory::default()))
            .unwrap();
        let inside = disk.create(made, "f".as_ref(), file()).unwrap();
        disk.sync(made, disk.now()).unwrap();
        disk.cut(Style::DropAll, &mut Random::new(1));
        assert!(names(&disk).is_empty());
        assert!(disk.node(inside).is_err());
    }
}
