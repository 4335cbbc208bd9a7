//! Bodies to bytes and back: validated before access, read in place.

use rkyv::{
    api::high::{HighSerializer, HighValidator},
    bytecheck::CheckBytes,
    rancor::Error as RkyvError,
    ser::allocator::ArenaHandle,
    vec::ArchivedVec,
    Archive, Portable, Serialize,
};

use crate::{
    error::WireError,
    frame::{FrameHeader, Kind, HEADER_BYTES},
    message::{ArchivedDeliver, ArchivedExtension, ArchivedPublish, Deliver, Extension, Publish},
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

pub(crate) fn refuse_critical(list: &ArchivedVec<ArchivedExtension>) -> Result<(), WireError> {
    match list
        .iter()
        .find(|extension| extension.kind >= Extension::CRITICAL)
    {
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
        rkyv::access::<T::Archived, RkyvError>(body).map_err(|error| WireError::BadBody {
            kind: T::KIND.name(),
            reason: error.to_string(),
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
    T: Body + for<'a> Serialize<HighSerializer<Vec<u8>, ArenaHandle<'a>, RkyvError>>,
{
    with_frame(out, T::KIND, correlation, |out| append_body(out, body))
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
    let field = std::mem::offset_of!(ArchivedPublish, records);
    let root = size_of::<ArchivedPublish>();
    with_frame(out, Kind::Publish, correlation, |out| {
        append_with_range(out, body, |out| out.extend_from_slice(records), root, field)
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
    let field = std::mem::offset_of!(ArchivedDeliver, records);
    let root = size_of::<ArchivedDeliver>();
    with_frame(out, Kind::Deliver, 0, |out| {
        append_with_range(out, body, fill, root, field)
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
        let limit = crate::limits::MAX_FRAME_BYTES;
        let length = u32::try_from(out.len() - start - HEADER_BYTES).unwrap_or(u32::MAX);
        if length > limit {
            return Err(WireError::FrameTooLong { len: length, limit });
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

fn append_body<T>(out: &mut Vec<u8>, body: &T) -> Result<(), WireError>
where
    T: Body + for<'a> Serialize<HighSerializer<Vec<u8>, ArenaHandle<'a>, RkyvError>>,
{
    let taken = std::mem::take(out);
    match rkyv::api::high::to_bytes_in::<_, RkyvError>(body, taken) {
        Ok(bytes) => {
            *out = bytes;
            Ok(())
        }
        Err(error) => Err(WireError::BadBody {
            kind: T::KIND.name(),
            reason: error.to_string(),
        }),
    }
}

/// Appends the range's bytes first and the archived body behind them, then
/// points the body's empty byte range at them. The layout equals what rkyv
/// writes for an owned range (a golden vector holds the two together).
fn append_with_range<T>(
    out: &mut Vec<u8>,
    body: &T,
    fill: impl FnOnce(&mut Vec<u8>),
    root_bytes: usize,
    field: usize,
) -> Result<(), WireError>
where
    T: Body + for<'a> Serialize<HighSerializer<Vec<u8>, ArenaHandle<'a>, RkyvError>>,
{
    let range_at = out.len();
    fill(out);
    let range_len = out.len() - range_at;
    append_body(out, body)?;
    let pointer_at = out.len() - root_bytes + field;
    let too_long = WireError::FrameTooLong {
        len: u32::MAX,
        limit: crate::limits::MAX_FRAME_BYTES,
    };
    let offset =
        i32::try_from(range_at as i64 - pointer_at as i64).map_err(|_| too_long.clone())?;
    let len = u32::try_from(range_len).map_err(|_| too_long)?;
    out[pointer_at..pointer_at + 4].copy_from_slice(&offset.to_le_bytes());
    out[pointer_at + 4..pointer_at + 8].copy_from_slice(&len.to_le_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Confirm, ConfirmItem};

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
}
