//! One connection: handshake, frames in, frames out, no blocking after
//! [`Connection::start`].
//!
//! Invariants:
//! 1. Nothing follows hello before its reply.
//! 2. Bytes leave in the order they were put into `out`; a frame is handed out
//!    only when all of it has arrived.

use std::{
    io::{self, Read, Write},
    net::TcpStream,
    os::fd::AsFd,
    time::Duration,
};

use wire::{
    codec,
    error::WireError,
    frame::{FrameHeader, Kind, HEADER_BYTES},
    limits::MAX_FRAME_BYTES,
    message::{Error as ErrorBody, Extension, Hello, HelloReply, Redirect},
};

use crate::{
    error::LoadError,
    sys::{self, Ready},
};

/// Bytes we tell the server it may have in flight towards us.
pub const CLIENT_WINDOW_BYTES: u32 = 16 * 1024 * 1024;
/// Bytes one read may bring.
const READ_BYTES: usize = 512 * 1024;
/// How long a request may take, and a handshake with a server that is alone.
pub const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// What the hello reply said.
#[derive(Debug, Clone, Default)]
pub struct Peer {
    pub shards: u16,
    /// Publish body bytes that may be unanswered.
    pub window_bytes: u64,
    /// The server's name and version.
    pub server: String,
}

pub struct Connection {
    pub frames: FrameReader,
    pub out: OutBuffer,
    pub peer: Peer,
    stream: TcpStream,
}

impl Connection {
    /// Connects and says hello, wishing for `wished_shard`; the reply may take
    /// as long as `timeout`.
    ///
    /// # Errors
    /// Not reachable, refused, another protocol, or no reply in time.
    pub fn open(
        server: &str,
        wished_shard: u16,
        timeout: Duration,
    ) -> Result<Connection, LoadError> {
        let stream = TcpStream::connect(server).map_err(|source| LoadError::Connect {
            server: server.to_owned(),
            source,
        })?;
        stream.set_nodelay(true).map_err(LoadError::io("nodelay"))?;
        stream
            .set_read_timeout(Some(timeout))
            .map_err(LoadError::io("read timeout"))?;
        let mut connection = Connection {
            frames: FrameReader::default(),
            out: OutBuffer::default(),
            peer: Peer::default(),
            stream,
        };
        let hello = Hello {
            version_min: wire::frame::VERSION,
            version_max: wire::frame::VERSION,
            wished_shard,
            window_bytes: CLIENT_WINDOW_BYTES,
            client: concat!("loadgen ", env!("CARGO_PKG_VERSION")).to_owned(),
            ..Default::default()
        };
        let reply = connection.request("hello", Kind::HelloReply, |out| {
            codec::encode(out, 1, &hello)
        })?;
        let reply = codec::decode::<HelloReply>(&reply)?;
        connection
            .stream
            .set_read_timeout(Some(REQUEST_TIMEOUT))
            .map_err(LoadError::io("read timeout"))?;
        connection.peer = Peer {
            shards: reply.shards.to_native(),
            window_bytes: reply.window_bytes.to_native().into(),
            server: reply.server.as_str().to_owned(),
        };
        Ok(connection)
    }

    /// Sends one frame and blocks until the reply of kind `expected` comes;
    /// answers its body. Before [`Connection::start`] only.
    ///
    /// # Errors
    /// An error frame, another kind, no reply in time, a closed connection.
    pub fn request(
        &mut self,
        what: &'static str,
        expected: Kind,
        encode: impl FnOnce(&mut Vec<u8>) -> Result<(), WireError>,
    ) -> Result<Vec<u8>, LoadError> {
        encode(&mut self.out.bytes)?;
        self.flush()?;
        loop {
            if let Some((header, body)) = self.frames.next_frame()? {
                return match Kind::from_raw(header.kind) {
                    Some(kind) if kind == expected => Ok(body.to_vec()),
                    Some(Kind::Error) => Err(refusal(what, body)),
                    _ => Err(unexpected(what, &header)),
                };
            }
            if !self.fill()? {
                return Err(LoadError::Timeout(what, REQUEST_TIMEOUT.as_secs()));
            }
        }
    }

    /// From here on reads and writes do not block.
    ///
    /// # Errors
    /// What the system answers.
    pub fn start(&self) -> Result<(), LoadError> {
        self.stream
            .set_nonblocking(true)
            .map_err(LoadError::io("nonblocking"))
    }

    /// Writes what is queued, as far as the socket takes it; true when all left.
    ///
    /// # Errors
    /// A closed or broken connection.
    pub fn flush(&mut self) -> Result<bool, LoadError> {
        self.out.write_to(&mut self.stream)
    }

    /// One read; false when nothing was there.
    ///
    /// # Errors
    /// A closed or broken connection.
    pub fn fill(&mut self) -> Result<bool, LoadError> {
        self.frames.read_from(&mut self.stream)
    }

    /// Waits for input, for room to write if something is queued, or for the time.
    ///
    /// # Errors
    /// What `ppoll` answers.
    pub fn wait(&self, timeout_ns: u64) -> Result<Ready, LoadError> {
        sys::wait_fd(self.stream.as_fd(), !self.out.is_empty(), timeout_ns)
            .map_err(LoadError::io("poll"))
    }
}

/// Where a partition is led, as a redirect says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub address: String,
    pub shard: u16,
}

impl Place {
    /// `None`: the node that leads says no address.
    ///
    /// # Errors
    /// The body is no redirect.
    pub fn told(body: &[u8]) -> Result<Option<Place>, LoadError> {
        let redirect = codec::decode::<Redirect>(body)?;
        let mut extensions = redirect.extensions.iter();
        let address = extensions.find(|one| one.kind.to_native() == Extension::ADDRESS);
        let address = address.and_then(|one| std::str::from_utf8(&one.bytes).ok());
        Ok(address.map(|address| Place {
            address: address.to_owned(),
            shard: redirect.shard.to_native(),
        }))
    }
}

/// The typed refusal inside an error frame.
pub fn refusal(what: &'static str, body: &[u8]) -> LoadError {
    match codec::decode::<ErrorBody>(body) {
        Ok(error) => LoadError::Refused {
            what,
            code: error.code.to_native(),
            message: error.message.as_str().to_owned(),
        },
        Err(error) => error.into(),
    }
}

/// A frame that has no place here.
pub fn unexpected(during: &'static str, header: &FrameHeader) -> LoadError {
    let kind = Kind::from_raw(header.kind).map_or("unknown", Kind::name);
    LoadError::Protocol(format!(
        "unexpected frame {kind} ({}) during {during}",
        header.kind
    ))
}

/// Bytes to be written.
#[derive(Default)]
pub struct OutBuffer {
    /// Frames are appended here.
    pub bytes: Vec<u8>,
    written: usize,
}

impl OutBuffer {
    pub fn is_empty(&self) -> bool {
        self.written == self.bytes.len()
    }

    fn write_to(&mut self, stream: &mut impl Write) -> Result<bool, LoadError> {
        while let Some(rest) = self
            .bytes
            .get(self.written..)
            .filter(|rest| !rest.is_empty())
        {
            match stream.write(rest) {
                Ok(0) => return Err(LoadError::Closed("while writing")),
                Ok(count) => self.written += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if would_block(&error) => return Ok(false),
                Err(source) => {
                    return Err(LoadError::Io {
                        what: "write to server",
                        source,
                    })
                }
            }
        }
        self.bytes.clear();
        self.written = 0;
        Ok(true)
    }
}

/// Bytes that arrived, cut into frames.
#[derive(Default)]
pub struct FrameReader {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl FrameReader {
    /// The next whole frame, if one is there.
    ///
    /// # Errors
    /// Bytes that are not a frame.
    pub fn next_frame(&mut self) -> Result<Option<(FrameHeader, &[u8])>, LoadError> {
        let have = self.buffer.get(self.start..self.end).unwrap_or_default();
        let Some((header, rest)) = have.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(None);
        };
        let header = FrameHeader::decode(header, MAX_FRAME_BYTES)?;
        let length = header.length as usize;
        if rest.len() < length {
            return Ok(None);
        }
        let body_at = self.start + HEADER_BYTES;
        self.start = body_at + length;
        let body = self.buffer.get(body_at..self.start).unwrap_or_default();
        Ok(Some((header, body)))
    }

    fn read_from(&mut self, stream: &mut impl Read) -> Result<bool, LoadError> {
        self.make_room()?;
        let room = self.buffer.get_mut(self.end..).unwrap_or_default();
        match stream.read(room) {
            Ok(0) => Err(LoadError::Closed("by the server")),
            Ok(count) => {
                self.end += count;
                Ok(true)
            }
            Err(error) if would_block(&error) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(false),
            Err(source) => Err(LoadError::Io {
                what: "read from server",
                source,
            }),
        }
    }

    /// Moves the unfinished frame to the front and leaves room for the rest of
    /// it, and for one full read when the buffer was empty.
    fn make_room(&mut self) -> Result<(), LoadError> {
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        let mut needed = READ_BYTES;
        let have = self.buffer.get(..self.end).unwrap_or_default();
        if let Some(header) = have.first_chunk::<HEADER_BYTES>() {
            let header = FrameHeader::decode(header, MAX_FRAME_BYTES)?;
            needed = needed.max(HEADER_BYTES + header.length as usize);
        }
        // One byte more than the unfinished frame: a read never gets no room.
        needed = needed.max(self.end + 1);
        if self.buffer.len() < needed {
            self.buffer.resize(needed, 0);
        }
        Ok(())
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::message::{GoingAway, Ping};

    /// Hands out its bytes `step` at a time.
    struct Dribble<'a>(&'a [u8], usize);

    impl Read for Dribble<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            let count = self.1.min(self.0.len()).min(out.len());
            out[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }

    #[test]
    fn frames_come_out_whole_however_their_bytes_arrive() {
        let mut bytes = vec![];
        let long = GoingAway {
            reason: "x".repeat(700_000),
            ..Default::default()
        };
        for correlation in 0..5 {
            codec::encode(&mut bytes, correlation, &Ping::default()).unwrap();
            codec::encode(&mut bytes, correlation, &long).unwrap();
        }
        for step in [7_919, 24, 1 << 20] {
            let mut source = Dribble(&bytes, step);
            let mut reader = FrameReader::default();
            let mut kinds = vec![];
            while !source.0.is_empty() {
                assert!(reader.read_from(&mut source).unwrap());
                while let Some((header, body)) = reader.next_frame().unwrap() {
                    assert_eq!(body.len(), header.length as usize);
                    kinds.push((header.kind, header.correlation));
                }
            }
            let expected: Vec<_> = (0..5)
                .flat_map(|n| [(Kind::Ping as u8, n), (Kind::GoingAway as u8, n)])
                .collect();
            assert_eq!(kinds, expected);
            assert!(matches!(
                reader.read_from(&mut source),
                Err(LoadError::Closed(_))
            ));
        }
    }

    #[test]
    fn bytes_that_are_no_frame_are_an_error() {
        let mut reader = FrameReader::default();
        let garbage = b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec();
        reader.read_from(&mut Dribble(&garbage, 99)).unwrap();
        assert!(matches!(reader.next_frame(), Err(LoadError::Wire(_))));
    }

    #[test]
    fn a_full_socket_keeps_the_rest_for_later() {
        struct Narrow(Vec<u8>, usize);
        impl Write for Narrow {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                if self.1 == 0 {
                    return Err(io::ErrorKind::WouldBlock.into());
                }
                let count = bytes.len().min(self.1);
                self.1 -= count;
                self.0.extend_from_slice(&bytes[..count]);
                Ok(count)
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let mut out = OutBuffer {
            bytes: b"abcdef".to_vec(),
            written: 0,
        };
        let mut socket = Narrow(vec![], 4);
        assert!(!out.write_to(&mut socket).unwrap());
        assert!(!out.is_empty());
        out.bytes.extend_from_slice(b"gh");
        socket.1 = 100;
        assert!(out.write_to(&mut socket).unwrap());
        assert_eq!(
            (socket.0.as_slice(), out.is_empty()),
            (&b"abcdefgh"[..], true)
        );
    }
}
