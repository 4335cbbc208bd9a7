//! Bodies to bytes and back: validated before access, read in place.
//!
//! Owns: the only ways in and out of a body. It never does I/O, never trusts a
//! length before it is checked, and keeps nothing between calls; a crash leaves
//! nothing behind.
//!
//! Invariants:
//! 1. [`decode`] returns only what validated whole: every list, text and byte
//!    range lies inside the body, and no two overlap.
//! 2. An unknown critical extension is refused in every kind.
//! 3. A failed encode leaves the output as it was.
//! 4. No encode makes a frame that [`FrameHeader::decode`] would refuse.

use rkyv::{
    api::{high::HighValidator, serialize_using},
    bytecheck::CheckBytes,
    rancor::Error as RkyvError,
    ser::{sharing::Share, Serializer},
    util::with_arena,
    vec::ArchivedVec,
    Archive, Portable, Serialize,
};

use crate::{
    error::WireError,
    frame::{FrameHeader, Kind, HEADER_BYTES},
    limits::MAX_FRAME_BYTES,
    message::{
        with_records::{BodySerializer, DeliverWith, PublishWith},
        ArchivedExtension, Deliver, Extension, Publish,
    },
};

/// A body that can travel in a frame of its kind.
pub trait Body: Archive {
    /// The frame kind that carries it.
    const KIND: Kind;

    /// Refuses extensions that this version must understand and does not.
    ///
    /// # Errors
    /// [`WireError::CriticalExtension`] naming the first one.
    fn check_extensions(archived: &Self::Archived) -> Result<(), WireError>;
}

pub(crate) fn refuse_critical(
    kind: Kind,
    list: &ArchivedVec<ArchivedExtension>,
) -> Result<(), WireError> {
    const ON_TOTAL_LOSS: u16 = Extension::CRITICAL | Extension::ON_TOTAL_LOSS;
    let is_known = |extension: u16| (kind, extension) == (Kind::Declare, ON_TOTAL_LOSS);
    match list.iter().find(|extension| {
        extension.kind >= Extension::CRITICAL && !is_known(extension.kind.to_native())
    }) {
        Some(extension) => Err(WireError::CriticalExtension {
            kind: extension.kind.to_native(),
        }),
        None => Ok(()),
    }
}

/// Validates `body` as a `T` and reads it in place.
///
/// # Errors
/// [`WireError::BadBody`], or an unknown critical extension.
pub fn decode<T>(body: &[u8]) -> Result<&T::Archived, WireError>
where
    T: Body,
    T::Archived: Portable + for<'a> CheckBytes<HighValidator<'a, RkyvError>>,
{
    let archived =
        // What rkyv says of it is for its developers, and nothing in a release build.
        rkyv::access::<T::Archived, RkyvError>(body).map_err(|_| WireError::BadBody {
            kind: T::KIND.name(),
            reason: "a length, a place or a value in it is out of range".to_owned(),
        })?;
    T::check_extensions(archived)?;
    Ok(archived)
}

/// Appends a whole frame, header included, to `out`.
///
/// # Errors
/// [`WireError::FrameTooLong`] when the body is above the limit; `out` is then unchanged.
pub fn encode<T>(out: &mut Vec<u8>, correlation: u64, body: &T) -> Result<(), WireError>
where
    T: Body + for<'a> Serialize<BodySerializer<'a>>,
{
    with_frame(out, T::KIND, correlation, |out| {
        append_body(out, T::KIND, body)
    })
}

/// Appends a publish frame whose record bytes are `records`, copied once.
/// `body.records` must be empty.
///
/// # Errors
/// [`WireError::FrameTooLong`]; `out` is then unchanged.
pub fn encode_publish(
    out: &mut Vec<u8>,
    correlation: u64,
    body: &Publish,
    records: &[u8],
) -> Result<(), WireError> {
    if records.len() > MAX_FRAME_BYTES as usize {
        return Err(too_long(records.len()));
    }
    with_frame(out, Kind::Publish, correlation, |out| {
        let body = PublishWith::new(body, |out| out.extend_from_slice(records));
        append_body(out, Kind::Publish, &body)?;
        body.patch_len(out)
    })
}

/// Appends a deliver frame; `fill` appends the record bytes, copied once.
/// `body.records` must be empty.
///
/// # Errors
/// [`WireError::FrameTooLong`]; `out` is then unchanged.
pub fn encode_deliver(
    out: &mut Vec<u8>,
    body: &Deliver,
    fill: impl FnOnce(&mut Vec<u8>),
) -> Result<(), WireError> {
    with_frame(out, Kind::Deliver, 0, |out| {
        let body = DeliverWith::new(body, fill);
        append_body(out, Kind::Deliver, &body)?;
        body.patch_len(out)
    })
}

/// Reserves the header, lets `append` add the body, then fills the header in.
fn with_frame(
    out: &mut Vec<u8>,
    kind: Kind,
    correlation: u64,
    append: impl FnOnce(&mut Vec<u8>) -> Result<(), WireError>,
) -> Result<(), WireError> {
    let start = out.len();
    out.extend_from_slice(&[0; HEADER_BYTES]);
    let appended = append(out).and_then(|()| {
        let body_bytes = out.len() - start - HEADER_BYTES;
        let length = u32::try_from(body_bytes).unwrap_or(u32::MAX);
        if length > MAX_FRAME_BYTES {
            return Err(too_long(body_bytes));
        }
        let header = FrameHeader {
            kind: kind as u8,
            length,
            correlation,
        };
        out[start..start + HEADER_BYTES].copy_from_slice(&header.encode());
        Ok(())
    });
    if appended.is_err() {
        out.truncate(start);
    }
    appended
}

pub(crate) fn too_long(body_bytes: usize) -> WireError {
    WireError::FrameTooLong {
        len: u32::try_from(body_bytes).unwrap_or(u32::MAX),
        limit: MAX_FRAME_BYTES,
    }
}

/// Appends the archived body. What was in `out` before stays, also on an error.
fn append_body<T>(out: &mut Vec<u8>, kind: Kind, body: &T) -> Result<(), WireError>
where
    T: for<'a> Serialize<BodySerializer<'a>>,
{
    let taken = std::mem::take(out);
    let done = with_arena(|arena| {
        let mut serializer = Serializer::new(taken, arena.acquire(), Share::new());
        let done = serialize_using::<_, RkyvError>(body, &mut serializer);
        *out = serializer.into_writer();
        done
    });
    match done {
        Ok(_) => Ok(()),
        Err(error) => Err(WireError::BadBody {
            kind: kind.name(),
            reason: error.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Confirm, ConfirmItem, Delivery};

    #[test]
    fn a_body_reads_back_in_place() {
        let body = Confirm {
            items: vec![ConfirmItem {
                correlation: 7,
                first_offset: 9,
                ..Default::default()
            }],
            extensions: vec![],
        };
        let mut out = vec![1, 2, 3];
        encode(&mut out, 5, &body).unwrap();
        let header: [u8; HEADER_BYTES] = out[3..27].try_into().unwrap();
        let header = FrameHeader::decode(&header, u32::MAX).unwrap();
        assert_eq!((header.kind, header.correlation), (Kind::Confirm as u8, 5));
        assert_eq!(header.length as usize, out.len() - 27);
        let read = decode::<Confirm>(&out[27..]).unwrap();
        assert_eq!(read.items[0].first_offset, 9);
    }

    #[test]
    fn a_publish_with_borrowed_records_equals_the_owned_layout() {
        let owned = Publish {
            queue_id: 1,
            count: 2,
            records: b"abcdef".to_vec(),
            ..Default::default()
        };
        let mut expected = Vec::new();
        encode(&mut expected, 3, &owned).unwrap();
        let body = Publish {
            records: vec![],
            ..owned.clone()
        };
        let mut out = Vec::new();
        encode_publish(&mut out, 3, &body, b"abcdef").unwrap();
        assert_eq!(out, expected);
    }

    #[test]
    fn a_deliver_with_borrowed_records_equals_the_owned_layout_and_reads_back() {
        let owned = Deliver {
            subscription: 4,
            queue_id: 1,
            deliveries: vec![Delivery::default(), Delivery::default()],
            records: b"abcdef".to_vec(),
            extensions: vec![Extension {
                kind: 1,
                bytes: vec![7; 9],
            }],
            ..Default::default()
        };
        let mut expected = Vec::new();
        encode(&mut expected, 0, &owned).unwrap();
        let body = Deliver {
            records: vec![],
            ..owned.clone()
        };
        let mut out = Vec::new();
        encode_deliver(&mut out, &body, |out| out.extend_from_slice(b"abcdef")).unwrap();
        assert_eq!(out, expected);
        let read = decode::<Deliver>(&out[HEADER_BYTES..]).unwrap();
        assert_eq!(&read.records[..], b"abcdef");
        assert_eq!(read.deliveries.len(), 2);
    }
}
