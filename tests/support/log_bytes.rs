//! The log of a stopped server as bytes: where its batches stand.

use std::{fs, os::unix::fs::FileExt, path::Path, path::PathBuf};

use super::server::segments;

pub const BLOCK: usize = 4096;
pub const BATCH_HEADER: usize = 96;
const MAGIC: &[u8] = b"TIDEGATB";

/// One batch on disk.
#[derive(Debug, Clone)]
pub struct Batch {
    pub file: PathBuf,
    /// Of its header in the file.
    pub at: u64,
    pub sequence: u64,
    pub body_bytes: u32,
    /// 0 for a frontier-only batch.
    pub fragments: u32,
}

impl Batch {
    pub fn overwrite(&self, offset: u64, bytes: &[u8]) {
        let file = fs::OpenOptions::new().write(true).open(&self.file).unwrap();
        file.write_all_at(bytes, self.at + offset).unwrap();
        file.sync_all().unwrap();
    }

    /// As if it had never reached the disk.
    pub fn erase(&self) {
        let bytes = (BATCH_HEADER + self.body_bytes as usize).next_multiple_of(BLOCK);
        self.overwrite(0, &vec![0; bytes]);
    }
}

/// Of what was written behind the first `synced` batches only the first half reached the
/// disk.
pub fn lose_half_behind(data: &Path, shard: u16, synced: usize) {
    let unsynced = batches(data, shard).split_off(synced);
    assert!(unsynced.len() >= 10, "each publish is a batch");
    for batch in &unsynced[unsynced.len() / 2..] {
        batch.erase();
    }
}

/// All batches of a shard's log in the order of their sequence numbers.
pub fn batches(data: &Path, shard: u16) -> Vec<Batch> {
    let mut found = Vec::new();
    for file in segments(data, shard) {
        let bytes = fs::read(&file).unwrap();
        for (block, content) in bytes.chunks(BLOCK).enumerate() {
            if !content.starts_with(MAGIC) {
                continue;
            }
            let number = |at: usize| u32::from_le_bytes(content[at..at + 4].try_into().unwrap());
            found.push(Batch {
                file: file.clone(),
                at: (block * BLOCK) as u64,
                sequence: u64::from_le_bytes(content[48..56].try_into().unwrap()),
                body_bytes: number(12),
                fragments: number(72),
            });
        }
    }
    found.sort_by_key(|batch| batch.sequence);
    found
}
