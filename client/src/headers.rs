//! Record headers: names with byte values, in the encoding of the wire crate.
//!
//! ```text
//! name_len u16 LE, value_len u32 LE, name, value   (repeated)
//! ```

use thiserror::Error;
use wire::limits::MAX_HEADERS_BYTES;

const LENGTHS_BYTES: usize = 6;

/// Headers to publish. Order is kept, names may repeat; together at most
/// 64 KiB encoded, which is checked when the record is sent.
///
/// ```
/// use tidegate_client::Headers;
/// let headers = Headers::new().with("trace", "a1").with("retries", [3u8]);
/// assert_eq!(headers.view().get("trace"), Some(&b"a1"[..]));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Headers {
    bytes: Vec<u8>,
}

impl Headers {
    /// No headers.
    pub fn new() -> Self {
        Headers::default()
    }

    /// Adds one and returns itself; see [`Headers::push`].
    pub fn with(mut self, name: &str, value: impl AsRef<[u8]>) -> Self {
        self.push(name, value);
        self
    }

    /// Adds one header. A name or value too long to be encoded makes the
    /// headers exceed their limit, so the publish is refused.
    pub fn push(&mut self, name: &str, value: impl AsRef<[u8]>) {
        let value = value.as_ref();
        let (name_len, value_len) = match (u16::try_from(name.len()), u32::try_from(value.len())) {
            (Ok(name_len), Ok(value_len)) if value_len <= MAX_HEADERS_BYTES => {
                (name_len, value_len)
            }
            _ => {
                self.bytes.resize(MAX_HEADERS_BYTES as usize + 1, 0);
                return;
            }
        };
        self.bytes.extend_from_slice(&name_len.to_le_bytes());
        self.bytes.extend_from_slice(&value_len.to_le_bytes());
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.extend_from_slice(value);
    }

    /// The encoded bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads them back.
    pub fn view(&self) -> HeadersView<'_> {
        HeadersView { bytes: &self.bytes }
    }
}

/// Headers of a received record, read in place. The server does not look
/// inside headers, so another publisher may have sent bytes that are none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadersView<'a> {
    bytes: &'a [u8],
}

/// The header bytes of a record are not headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("the record's headers do not decode at byte {at}: {reason}")]
pub struct HeadersError {
    /// Byte offset of the header that does not decode.
    pub at: usize,
    pub reason: &'static str,
}

impl<'a> HeadersView<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        HeadersView { bytes }
    }

    /// The encoded bytes.
    pub fn as_bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// True when there are none.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Value of the first header called `name`, if the headers decode up to it.
    pub fn get(&self, name: &str) -> Option<&'a [u8]> {
        self.iter()
            .map_while(Result::ok)
            .find(|(found, _)| *found == name)
            .map(|(_, value)| value)
    }

    /// Names and values in order; ends after the first error.
    pub fn iter(&self) -> HeadersIter<'a> {
        HeadersIter {
            bytes: self.bytes,
            at: 0,
        }
    }
}

impl<'a> IntoIterator for HeadersView<'a> {
    type Item = Result<(&'a str, &'a [u8]), HeadersError>;
    type IntoIter = HeadersIter<'a>;

    fn into_iter(self) -> HeadersIter<'a> {
        self.iter()
    }
}

/// Walks headers; made by [`HeadersView::iter`].
#[derive(Debug, Clone)]
pub struct HeadersIter<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Iterator for HeadersIter<'a> {
    type Item = Result<(&'a str, &'a [u8]), HeadersError>;

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.at..).filter(|rest| !rest.is_empty())?;
        let at = self.at;
        let parsed = parse_one(rest).map_err(|reason| HeadersError { at, reason });
        match parsed {
            Ok((name, value, len)) => {
                self.at += len;
                Some(Ok((name, value)))
            }
            Err(error) => {
                self.at = self.bytes.len();
                Some(Err(error))
            }
        }
    }
}

fn parse_one(bytes: &[u8]) -> Result<(&str, &[u8], usize), &'static str> {
    let (lengths, rest) = bytes
        .split_first_chunk::<LENGTHS_BYTES>()
        .ok_or("truncated lengths")?;
    let name_len = usize::from(u16::from_le_bytes([lengths[0], lengths[1]]));
    let value_len = u32::from_le_bytes([lengths[2], lengths[3], lengths[4], lengths[5]]) as usize;
    let name = rest.get(..name_len).ok_or("truncated name")?;
    let value = rest
        .get(name_len..)
        .and_then(|rest| rest.get(..value_len))
        .ok_or("truncated value")?;
    let name = std::str::from_utf8(name).map_err(|_| "the name is not UTF-8")?;
    Ok((name, value, LENGTHS_BYTES + name_len + value_len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_read_back_in_order_with_repeated_and_empty_names() {
        let headers = Headers::new()
            .with("a", "1")
            .with("", [])
            .with("a", [0, 255]);
        let read: Vec<_> = headers.view().iter().map(Result::unwrap).collect();
        assert_eq!(read, [("a", &b"1"[..]), ("", &[]), ("a", &[0, 255])]);
        assert_eq!(headers.view().get("a"), Some(&b"1"[..]));
        assert_eq!(headers.view().get("b"), None);
    }

    #[test]
    fn every_truncation_of_headers_is_an_error_or_a_clean_end_and_never_a_panic() {
        let headers = Headers::new().with("name", "value").with("second", "x");
        let first_len = LENGTHS_BYTES + 4 + 5;
        for cut in 0..headers.as_bytes().len() {
            let view = HeadersView::new(&headers.as_bytes()[..cut]);
            let failed = view.iter().any(|item| item.is_err());
            assert_eq!(failed, cut != 0 && cut != first_len, "cut at {cut}");
            assert!(view.iter().count() <= 2);
        }
    }

    #[test]
    fn an_oversized_header_makes_the_record_refused() {
        let headers = Headers::new().with(&"n".repeat(70_000), "");
        let record = crate::Record::new("x").headers(&headers);
        assert!(record.encode(&mut Vec::new()).is_err());
    }
}
