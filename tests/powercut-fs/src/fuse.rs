//! Requests of the kernel, answered from the shared state.
//!
//! Files are opened with `FOPEN_DIRECT_IO`: no page cache between the process
//! and this disk, so a write arrives here before it is answered, and with its
//! `O_DSYNC`, which the kernel then leaves to this file system.

use std::{
    collections::HashMap,
    ffi::{OsStr, OsString},
    io,
    sync::{Arc, Mutex},
    time::{Duration, SystemTime},
};

use fuser::{
    BsdFileFlags, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation,
    INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate,
    ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen, ReplyStatfs, ReplyWrite, Request,
    TimeOrNow, WriteFlags,
};

use crate::{
    disk::{Directory, Inode, Node},
    file::File,
    state::{Job, Refuse, Shared, State},
};

/// The kernel is the only one that changes anything.
const VALID: Duration = Duration::from_secs(3600);
const BLOCK_BYTES: u32 = 4096;
const OPENED: FopenFlags =
    FopenFlags::FOPEN_DIRECT_IO.union(FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES);

macro_rules! refusable {
    ($($reply:ty),*) => {$(
        impl Refuse for $reply {
            fn refuse(self: Box<Self>) {
                self.error(Errno::EIO);
            }
        }
    )*};
}

refusable!(
    ReplyAttr,
    ReplyCreate,
    ReplyData,
    ReplyDirectory,
    ReplyEmpty,
    ReplyEntry,
    ReplyOpen,
    ReplyStatfs,
    ReplyWrite
);

/// One mount.
pub struct Mounted {
    pub shared: Arc<Shared>,
    /// The mount that the state serves while this one is it.
    pub life: u64,
    /// Open directories as they were when opened.
    pub listings: Mutex<HashMap<u64, Vec<(Inode, OsString)>>>,
}

impl Mounted {
    fn sync(&self, inode: INodeNo, reply: ReplyEmpty) {
        if let Some((state, reply)) = self.shared.admit_change(self.life, reply) {
            let upto = state.disk.now();
            let inode = inode.0;
            self.shared.submit(state, Job::Sync { inode, upto, reply });
        }
    }

    fn remove(&self, parent: INodeNo, name: &OsStr, directory: bool, reply: ReplyEmpty) {
        if let Some((mut state, reply)) = self.shared.admit_change(self.life, reply) {
            match state.disk.remove(parent.0, name, directory) {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(Errno::from_i32(errno)),
            }
        }
    }
}

fn attributes(state: &State, inode: Inode) -> Result<FileAttr, i32> {
    let (kind, size, perm) = match state.disk.node(inode)? {
        Node::File(file) => (FileType::RegularFile, file.len() as u64, 0o644),
        Node::Directory(_) => (FileType::Directory, 0, 0o755),
    };
    let time = SystemTime::UNIX_EPOCH;
    Ok(FileAttr {
        ino: INodeNo(inode),
        size,
        blocks: size.div_ceil(512),
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_BYTES,
        flags: 0,
    })
}

fn answer_entry(reply: ReplyEntry, result: Result<FileAttr, i32>) {
    match result {
        Ok(attributes) => reply.entry(&VALID, &attributes, Generation(0)),
        Err(errno) => reply.error(Errno::from_i32(errno)),
    }
}

impl Filesystem for Mounted {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // Two writes of one file can be here together.
        config
            .add_capabilities(InitFlags::FUSE_ASYNC_DIO)
            .map_err(|_| io::Error::other("the kernel's FUSE has no asynchronous direct I/O"))
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if let Some((state, reply)) = self.shared.admit(self.life, reply) {
            let found = state.disk.lookup(parent.0, name);
            answer_entry(reply, found.and_then(|inode| attributes(&state, inode)));
        }
    }

    fn getattr(&self, _: &Request, inode: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        if let Some((state, reply)) = self.shared.admit(self.life, reply) {
            match attributes(&state, inode.0) {
                Ok(attributes) => reply.attr(&VALID, &attributes),
                Err(errno) => reply.error(Errno::from_i32(errno)),
            }
        }
    }

    /// Lengths count; modes, owners and times are not kept.
    fn setattr(
        &self,
        _: &Request,
        inode: INodeNo,
        _: Option<u32>,
        _: Option<u32>,
        _: Option<u32>,
        size: Option<u64>,
        _: Option<TimeOrNow>,
        _: Option<TimeOrNow>,
        _: Option<SystemTime>,
        _: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        if let Some((mut state, reply)) = self.shared.admit_change(self.life, reply) {
            let set = match size {
                Some(size) => state.disk.set_len(inode.0, size as usize),
                None => Ok(()),
            };
            match set.and_then(|()| attributes(&state, inode.0)) {
                Ok(attributes) => reply.attr(&VALID, &attributes),
                Err(errno) => reply.error(Errno::from_i32(errno)),
            }
        }
    }

    fn mkdir(&self, _: &Request, parent: INodeNo, name: &OsStr, _: u32, _: u32, reply: ReplyEntry) {
        if let Some((mut state, reply)) = self.shared.admit_change(self.life, reply) {
            let node = Node::Directory(Directory::default());
            let made = state.disk.create(parent.0, name, node);
            answer_entry(reply, made.and_then(|inode| attributes(&state, inode)));
        }
    }

    fn create(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        _: u32,
        _: u32,
        _: i32,
        reply: ReplyCreate,
    ) {
        if let Some((mut state, reply)) = self.shared.admit_change(self.life, reply) {
            let node = Node::File(File::default());
            let made = state.disk.create(parent.0, name, node);
            match made.and_then(|inode| attributes(&state, inode)) {
                Ok(attributes) => {
                    reply.created(&VALID, &attributes, Generation(0), FileHandle(0), OPENED);
                }
                Err(errno) => reply.error(Errno::from_i32(errno)),
            }
        }
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, false, reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        self.remove(parent, name, true, reply);
    }

    /// Within a directory only: what a cut may leave of more is a question of
    /// its own, and nobody here asks it.
    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        if let Some((mut state, reply)) = self.shared.admit_change(self.life, reply) {
            if parent != new_parent {
                return reply.error(Errno::EXDEV);
            }
            if !flags.is_empty() {
                return reply.error(Errno::EINVAL);
            }
            match state.disk.rename(parent.0, name, new_name) {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(Errno::from_i32(errno)),
            }
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if let Some((_, reply)) = self.shared.admit(self.life, reply) {
            reply.opened(FileHandle(0), OPENED);
        }
    }

    fn read(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if let Some((state, reply)) = self.shared.admit(self.life, reply) {
            match state.disk.file(inode.0) {
                Ok(file) => reply.data(file.read(offset as usize, size as usize)),
                Err(errno) => reply.error(Errno::from_i32(errno)),
            }
        }
    }

    fn write(
        &self,
        _: &Request,
        inode: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        if let Some((state, reply)) = self.shared.admit_change(self.life, reply) {
            let job = Job::Write {
                inode: inode.0,
                offset: offset as usize,
                data: data.to_vec(),
                // `O_SYNC` contains it.
                through: flags.0 & libc::O_DSYNC != 0,
                reply,
            };
            self.shared.submit(state, job);
        }
    }

    /// At a close; promises nothing, so it is answered also without power.
    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.ok();
    }

    fn fsync(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.sync(inode, reply);
    }

    fn fsyncdir(&self, _: &Request, inode: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.sync(inode, reply);
    }

    fn opendir(&self, _: &Request, inode: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if let Some((state, reply)) = self.shared.admit(self.life, reply) {
            match state.disk.list(inode.0) {
                Ok(list) => {
                    let mut listings = self.listings.lock().expect("no thread panicked with it");
                    let handle = listings.keys().max().map_or(1, |handle| handle + 1);
                    listings.insert(handle, list);
                    reply.opened(FileHandle(handle), FopenFlags::empty());
                }
                Err(errno) => reply.error(Errno::from_i32(errno)),
            }
        }
    }

    fn readdir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        offset: u64,
        reply: ReplyDirectory,
    ) {
        let Some((state, mut reply)) = self.shared.admit(self.life, reply) else {
            return;
        };
        let listings = self.listings.lock().expect("no thread panicked with it");
        let list = listings.get(&handle.0).map_or(&[][..], Vec::as_slice);
        for (at, (inode, name)) in list.iter().enumerate().skip(offset as usize) {
            let kind = match state.disk.node(*inode) {
                Ok(Node::Directory(_)) => FileType::Directory,
                _ => FileType::RegularFile,
            };
            if reply.add(INodeNo(*inode), at as u64 + 1, kind, name) {
                break;
            }
        }
        reply.ok();
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        let mut listings = self.listings.lock().expect("no thread panicked with it");
        listings.remove(&handle.0);
        reply.ok();
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        if let Some((state, reply)) = self.shared.admit(self.life, reply) {
            let blocks = |bytes: usize| bytes as u64 / u64::from(BLOCK_BYTES);
            let (all, used) = (state.disk.capacity(), state.disk.used());
            let free = blocks(all.saturating_sub(used));
            let files = 1 << 20;
            reply.statfs(
                blocks(all),
                free,
                free,
                files,
                files,
                BLOCK_BYTES,
                255,
                BLOCK_BYTES,
            );
        }
    }
}
