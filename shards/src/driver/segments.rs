//! The open descriptors of a shard's segments: a plain and an `O_DSYNC` one.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    path::{Path, PathBuf},
    rc::Rc,
};

use glommio::io::{DmaBuffer, DmaFile, OpenOptions};

use super::{fd, fs_disk};
use crate::{
    engine::ReadFile,
    log::{segment_name, IoFailure},
    store::pack_name,
};

struct Files {
    plain: Rc<DmaFile>,
    dsync: Rc<DmaFile>,
}

/// Packed files kept open: a consumer far behind reads through one at a time.
const OPEN_PACKS: usize = 16;

/// Segment files of one shard, opened once each, and packed files.
pub(super) struct Segments {
    directory: PathBuf,
    open: RefCell<BTreeMap<u64, Rc<Files>>>,
    packs: RefCell<BTreeMap<u32, Rc<DmaFile>>>,
}

impl Segments {
    pub(super) fn new(directory: PathBuf) -> Self {
        Segments {
            directory,
            open: RefCell::new(BTreeMap::new()),
            packs: RefCell::new(BTreeMap::new()),
        }
    }

    /// Forgets the descriptors of segments whose files are recycled or removed.
    pub(super) fn forget(&self, sequences: &[u64]) {
        let mut open = self.open.borrow_mut();
        for sequence in sequences {
            open.remove(sequence);
        }
    }

    /// Forgets every descriptor: the log was reopened.
    pub(super) fn clear(&self) {
        self.open.borrow_mut().clear();
        self.packs.borrow_mut().clear();
    }

    /// A packed file; the one with the lowest number gives way to others.
    async fn pack(&self, file: u32) -> Result<Rc<DmaFile>, IoFailure> {
        if let Some(open) = self.packs.borrow().get(&file) {
            return Ok(open.clone());
        }
        let path = self.directory.join(pack_name(file));
        let opened = OpenOptions::new().read(true).dma_open(path).await;
        let opened = Rc::new(opened.map_err(failure)?);
        let mut packs = self.packs.borrow_mut();
        while packs.len() >= OPEN_PACKS {
            packs.pop_first();
        }
        packs.insert(file, opened.clone());
        Ok(opened)
    }

    async fn files(&self, sequence: u64) -> Result<Rc<Files>, IoFailure> {
        if let Some(files) = self.open.borrow().get(&sequence) {
            return Ok(files.clone());
        }
        let path = self.directory.join(segment_name(sequence));
        let plain = open(&path, 0).await?;
        let dsync = open(&path, libc::O_DSYNC).await?;
        let files = Rc::new(Files {
            plain: Rc::new(plain),
            dsync: Rc::new(dsync),
        });
        self.open.borrow_mut().insert(sequence, files.clone());
        Ok(files)
    }

    /// Opens a segment's descriptors before they are needed.
    pub(super) async fn warm(&self, sequence: u64) -> Result<(), IoFailure> {
        self.files(sequence).await.map(|_| ())
    }

    /// Writes the whole buffer.
    pub(super) async fn write(
        &self,
        sequence: u64,
        offset: u64,
        buffer: Rc<DmaBuffer>,
        dsync: bool,
    ) -> Result<(), IoFailure> {
        let files = self.files(sequence).await?;
        let file = if dsync { &files.dsync } else { &files.plain };
        let len = buffer.len();
        match file.write_rc_at(buffer, offset).await {
            Ok(written) if written == len => Ok(()),
            Ok(written) => Err(IoFailure {
                message: format!("short write: {written} of {len} bytes"),
                out_of_space: false,
            }),
            Err(error) => Err(failure(error)),
        }
    }

    /// `fdatasync` of each segment, in order.
    pub(super) async fn sync(&self, sequences: &[u64]) -> Result<(), IoFailure> {
        for sequence in sequences {
            let files = self.files(*sequence).await?;
            files.plain.fdatasync().await.map_err(failure)?;
        }
        Ok(())
    }

    /// Reads aligned bytes.
    pub(super) async fn read(
        &self,
        file: ReadFile,
        offset: u64,
        len: u32,
    ) -> Result<Vec<u8>, IoFailure> {
        let open = match file {
            ReadFile::Segment(sequence) => self.files(sequence).await?.plain.clone(),
            ReadFile::Pack(file) => self.pack(file).await?,
        };
        let read = open
            .read_at_aligned(offset, len as usize)
            .await
            .map_err(failure)?;
        if read.len() < len as usize {
            return Err(IoFailure {
                message: format!("short read: {} of {len} bytes", read.len()),
                out_of_space: false,
            });
        }
        Ok(read.to_vec())
    }
}

async fn open(path: &Path, flags: i32) -> Result<DmaFile, IoFailure> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(flags)
        .dma_open(path)
        .await
        .map_err(failure)?;
    fs_disk::lock_shared(fd::borrow(&file)).map_err(|error| IoFailure {
        message: format!("locking {}: {error}", path.display()),
        out_of_space: false,
    })?;
    Ok(file)
}

fn failure<T>(error: glommio::GlommioError<T>) -> IoFailure {
    let error = std::io::Error::from(error);
    IoFailure {
        out_of_space: error.kind() == std::io::ErrorKind::StorageFull,
        message: error.to_string(),
    }
}
