//! The handshake: pure, so that the driver only moves bytes.

use wire::{
    codec,
    error::{ErrorCode, Outcome},
    frame::{FrameHeader, Kind, VERSION},
    limits,
    message::{Error, Hello, HelloReply, Limits, ANY_SHARD},
};

/// What the server says of itself in hello.
#[derive(Debug, Clone)]
pub struct HelloFacts {
    pub node: u32,
    pub shards: u16,
    pub window_bytes: u32,
    pub server: String,
}

/// What becomes of a first frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HelloAnswer {
    /// Serve it on `shard` (`None` = wherever it is).
    Accept {
        shard: Option<u16>,
        window_bytes: u32,
        correlation: u64,
    },
    /// Send these bytes and close.
    Refuse(Vec<u8>),
}

impl HelloFacts {
    /// Judges the first frame of a connection.
    pub fn judge(&self, header: &FrameHeader, body: &[u8]) -> HelloAnswer {
        let refuse = |code, message: &str| refusal(header.correlation, code, message);
        if header.kind != Kind::Hello as u8 {
            return refuse(ErrorCode::Protocol, "the first frame must be hello");
        }
        let hello = match codec::decode::<Hello>(body) {
            Ok(hello) => hello,
            Err(error) => return refuse(ErrorCode::Invalid, &error.to_string()),
        };
        if hello.version_min > VERSION || hello.version_max < VERSION {
            let message = format!(
                "this server speaks protocol version {VERSION}, the client {} to {}; use a client that matches",
                hello.version_min, hello.version_max
            );
            return refuse(ErrorCode::Version, &message);
        }
        if !hello.authentication.is_empty() {
            let message = "authentication is not supported yet; send none";
            return refuse(ErrorCode::Unsupported, message);
        }
        let wished = hello.wished_shard.to_native();
        if wished != ANY_SHARD && wished >= self.shards {
            let message = format!("shard {wished} does not exist; there are {}", self.shards);
            return refuse(ErrorCode::Invalid, &message);
        }
        HelloAnswer::Accept {
            shard: (wished != ANY_SHARD).then_some(wished),
            window_bytes: hello.window_bytes.to_native(),
            correlation: header.correlation,
        }
    }

    /// The reply of the shard that serves the connection from now on.
    pub fn reply(&self, shard: u16, correlation: u64) -> Vec<u8> {
        let body = HelloReply {
            version: VERSION,
            node: self.node,
            shard,
            shards: self.shards,
            window_bytes: self.window_bytes,
            limits: Limits {
                frame_bytes: limits::MAX_FRAME_BYTES,
                record_bytes: limits::MAX_RECORD_BYTES,
                name_bytes: limits::MAX_NAME_BYTES as u32,
                headers_bytes: limits::MAX_HEADERS_BYTES,
                batch_records: limits::MAX_BATCH_RECORDS,
            },
            server: self.server.clone(),
            extensions: Vec::new(),
        };
        let mut out = Vec::new();
        // Far below the frame limit: cannot fail.
        let _ = codec::encode(&mut out, correlation, &body);
        out
    }
}

fn refusal(correlation: u64, code: ErrorCode, message: &str) -> HelloAnswer {
    HelloAnswer::Refuse(error_frame(correlation, code, message))
}

/// An error frame of a request that did nothing.
pub(crate) fn error_frame(correlation: u64, code: ErrorCode, message: &str) -> Vec<u8> {
    let body = Error {
        code: code as u16,
        outcome: Outcome::Failed as u8,
        message: message.to_owned(),
        extensions: Vec::new(),
    };
    let mut out = Vec::new();
    // Far below the frame limit: cannot fail.
    let _ = codec::encode(&mut out, correlation, &body);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts() -> HelloFacts {
        HelloFacts {
            node: 1,
            shards: 2,
            window_bytes: 1 << 20,
            server: "test".into(),
        }
    }

    fn judge(hello: &Hello) -> HelloAnswer {
        let mut out = Vec::new();
        codec::encode(&mut out, 3, hello).unwrap();
        let header = FrameHeader {
            kind: Kind::Hello as u8,
            length: 0,
            correlation: 3,
        };
        facts().judge(&header, &out[wire::frame::HEADER_BYTES..])
    }

    #[test]
    fn a_hello_may_wish_a_shard_that_exists() {
        let hello = Hello {
            version_min: 1,
            version_max: 1,
            wished_shard: 1,
            ..Default::default()
        };
        let HelloAnswer::Accept { shard, .. } = judge(&hello) else {
            panic!("refused")
        };
        assert_eq!(shard, Some(1));
        let hello = Hello {
            wished_shard: 2,
            ..hello
        };
        assert!(matches!(judge(&hello), HelloAnswer::Refuse(_)));
    }

    #[test]
    fn a_newer_version_is_refused_by_name() {
        let hello = Hello {
            version_min: 2,
            version_max: 9,
            ..Default::default()
        };
        let HelloAnswer::Refuse(bytes) = judge(&hello) else {
            panic!("accepted")
        };
        let error = codec::decode::<Error>(&bytes[wire::frame::HEADER_BYTES..]).unwrap();
        assert_eq!(error.code, ErrorCode::Version as u16);
    }
}
