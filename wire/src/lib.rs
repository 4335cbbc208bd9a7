//! The Tidegate protocol: frames, bodies, records, limits and error codes.
//!
//! Owns: every byte that crosses a client connection, and the record format
//! that the log shares with it. Does no I/O and allocates only what a caller
//! hands in.
//!
//! Invariants:
//! 1. A body is validated before any field is read.
//! 2. A length is checked against its limit before anything is allocated.
//! 3. No input makes a decoder panic.
//! 4. A record's bytes never change between socket, log and consumer.

pub mod codec;
pub mod error;
pub mod frame;
pub mod limits;
pub mod message;
pub mod name;
pub mod node;
pub mod record;
pub mod setting;
pub mod vocabulary;
