//! Queue names: what is accepted, decided once.
//!
//! Owns: the rule. Whatever takes a name from outside (frames, HTTP, command
//! line, configuration) asks here, so that a queue that one of them can create
//! every other can reach. Names are never changed, folded or normalized.

use crate::{error::WireError, limits::MAX_NAME_BYTES};

/// Accepts a queue name: 1 to 255 bytes of UTF-8 without control characters
/// (C0, DEL and C1). Names are compared byte for byte: a composed and a
/// decomposed accent are two names. `/`, `.` and `%` have no meaning.
///
/// # Errors
/// [`WireError::BadName`] with the reason.
pub fn check_name(name: &str) -> Result<&str, WireError> {
    if name.is_empty() {
        return Err(WireError::BadName {
            reason: "a queue name has at least 1 byte",
        });
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(WireError::BadName {
            reason: "a queue name has at most 255 bytes",
        });
    }
    if name.chars().any(char::is_control) {
        return Err(WireError::BadName {
            reason: "a queue name has no control characters",
        });
    }
    Ok(name)
}
