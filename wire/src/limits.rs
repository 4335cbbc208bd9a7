//! Every size limit of the protocol, in one place. The server sends them in
//! its hello reply, so a client never has to guess.

/// Largest frame body in bytes (16 MiB). A longer length field closes the
/// connection before anything is allocated.
pub const MAX_FRAME_BYTES: u32 = 16 * 1024 * 1024;
/// Largest payload of one record in bytes (8 MiB).
pub const MAX_RECORD_BYTES: u32 = 8 * 1024 * 1024;
/// Longest queue name in bytes of UTF-8.
pub const MAX_NAME_BYTES: usize = 255;
/// Most header bytes of one record (64 KiB).
pub const MAX_HEADERS_BYTES: u32 = 64 * 1024;
/// Longest key of one record in bytes.
pub const MAX_KEY_BYTES: u16 = 1024;
/// Most records in one publish batch.
pub const MAX_BATCH_RECORDS: u32 = 4096;
/// Most deliveries one settle frame may name.
pub const MAX_SETTLE_ITEMS: u32 = 65_536;
/// Most queues one list reply carries.
pub const MAX_LIST_QUEUES: u32 = 1024;
/// Most records one peek reply carries.
pub const MAX_PEEK_RECORDS: u32 = 1024;
/// Most partitions of one queue.
pub const MAX_PARTITIONS: u16 = 1024;
/// Longest hello body in bytes: what an unauthenticated peer may make us hold.
pub const MAX_HELLO_BYTES: u32 = 4096;
