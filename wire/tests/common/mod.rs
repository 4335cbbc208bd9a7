//! What the tests of this crate share.
#![allow(dead_code, reason = "each test binary uses its own part")]

pub mod draw;
pub mod examples;
pub mod fields;

use rkyv::{
    api::high::{HighDeserializer, HighValidator},
    bytecheck::CheckBytes,
    rancor::Error as RkyvError,
    Deserialize, Portable,
};
use tidegate_wire::{
    codec::{decode, Body},
    error::WireError,
    frame::{FrameHeader, HEADER_BYTES},
    limits::MAX_FRAME_BYTES,
};

/// Header and body of a whole frame; the length must fit exactly.
pub fn split_frame(frame: &[u8]) -> (FrameHeader, &[u8]) {
    let (header, body) = frame
        .split_first_chunk::<HEADER_BYTES>()
        .expect("a whole header");
    let header = FrameHeader::decode(header, MAX_FRAME_BYTES).expect("a valid header");
    assert_eq!(header.length as usize, body.len());
    (header, body)
}

/// Decodes `body` and copies every field of it out.
pub fn decode_owned<T>(body: &[u8]) -> Result<T, WireError>
where
    T: Body,
    T::Archived: Portable
        + for<'a> CheckBytes<HighValidator<'a, RkyvError>>
        + Deserialize<T, HighDeserializer<RkyvError>>,
{
    let archived = decode::<T>(body)?;
    Ok(rkyv::deserialize::<T, RkyvError>(archived).expect("a validated body is readable"))
}
