//! The keys of links between nodes.
//!
//! ```text
//! root    = derive_key("tidegate node link 1", secret)
//! session = keyed_hash(root, caller's hello length (u32 LE) | its hello | the called one's)
//! key     = keyed_hash(session, "caller" or "called"), whoever sends
//! ```
//!
//! A frame's checksum is the first 16 bytes of `keyed_hash(key, header | body)`.
//! Both hellos carry a challenge of this connection, so that no two connections
//! share a key, and a frame of another one does not verify on this.
//!
//! Never: encrypts. Whoever listens on the wire reads what nodes say.

use std::sync::atomic::{AtomicU64, Ordering};

use wire::node::{
    NodeFrameHeader, NodeFrameKind, CHALLENGE_BYTES, NODE_CHECKED_BYTES, NODE_CHECKSUM_BYTES,
    NODE_HEADER_BYTES,
};

/// Hashed before other tasks get their turn.
const HASH_BUDGET_BYTES: usize = 512 << 10;
const ROOT_CONTEXT: &str = "tidegate node link 1";
/// Of plain frames: a checksum and no more.
const PLAIN_KEY: Key = [0; 32];

type Key = [u8; blake3::KEY_LEN];

/// A node's end of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Side {
    Caller,
    Called,
}

/// What every session's keys come from.
pub(super) struct Root(Key);

impl Root {
    /// Without a secret everybody knows the key: its checksums find damage only.
    pub(super) fn new(secret: Option<&[u8]>) -> Self {
        Root(blake3::derive_key(ROOT_CONTEXT, secret.unwrap_or_default()))
    }

    /// The keys of one connection, from both sides' hello bodies.
    pub(super) fn session(&self, caller: &[u8], called: &[u8], side: Side) -> (Sealer, Opener) {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(&(caller.len() as u32).to_le_bytes());
        hasher.update(caller).update(called);
        let session = *hasher.finalize().as_bytes();
        let of_caller = *blake3::keyed_hash(&session, b"caller").as_bytes();
        let of_called = *blake3::keyed_hash(&session, b"called").as_bytes();
        let (ours, theirs) = match side {
            Side::Caller => (of_caller, of_called),
            Side::Called => (of_called, of_caller),
        };
        let sealer = Sealer { key: ours, next: 1 };
        let opener = Opener {
            key: theirs,
            next: 1,
        };
        (sealer, opener)
    }
}

/// Why a keyed frame was not accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Untrue {
    Checksum,
    Sequence { expected: u64, found: u64 },
}

/// Headers of the keyed frames that this side sends, in order.
pub(super) struct Sealer {
    key: Key,
    next: u64,
}

impl Sealer {
    pub(super) async fn seal(
        &mut self,
        kind: NodeFrameKind,
        body: &[u8],
    ) -> [u8; NODE_HEADER_BYTES] {
        let sequence = self.next;
        self.next += 1;
        let mut header = header(kind, body, sequence);
        header.checksum = checksum(&self.key, &header.encode(), body).await;
        header.encode()
    }
}

/// Checks the keyed frames of the other side, in order.
pub(super) struct Opener {
    key: Key,
    next: u64,
}

impl Opener {
    /// # Errors
    /// The frame was made without the key, or its number is not the next.
    pub(super) async fn open(
        &mut self,
        header: &NodeFrameHeader,
        body: &[u8],
    ) -> Result<(), Untrue> {
        let computed = checksum(&self.key, &header.encode(), body).await;
        if !is_same(&computed, &header.checksum) {
            return Err(Untrue::Checksum);
        }
        if header.sequence != self.next {
            return Err(Untrue::Sequence {
                expected: self.next,
                found: header.sequence,
            });
        }
        self.next += 1;
        Ok(())
    }
}

/// A whole plain frame.
pub(super) fn plain_frame(kind: NodeFrameKind, body: &[u8]) -> Vec<u8> {
    let mut header = header(kind, body, 0);
    header.checksum = plain_checksum(&header, body);
    let mut out = header.encode().to_vec();
    out.extend_from_slice(body);
    out
}

/// True when a plain frame came as it was sent.
pub(super) fn is_plain_whole(header: &NodeFrameHeader, body: &[u8]) -> bool {
    header.sequence == 0 && header.checksum == plain_checksum(header, body)
}

fn plain_checksum(header: &NodeFrameHeader, body: &[u8]) -> [u8; NODE_CHECKSUM_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(&PLAIN_KEY);
    hasher.update(checked(&header.encode())).update(body);
    first_bytes(&hasher)
}

fn header(kind: NodeFrameKind, body: &[u8], sequence: u64) -> NodeFrameHeader {
    NodeFrameHeader {
        kind,
        length: body.len() as u32,
        sequence,
        checksum: [0; NODE_CHECKSUM_BYTES],
    }
}

fn checked(header: &[u8; NODE_HEADER_BYTES]) -> &[u8] {
    &header[..NODE_CHECKED_BYTES]
}

async fn checksum(
    key: &Key,
    header: &[u8; NODE_HEADER_BYTES],
    body: &[u8],
) -> [u8; NODE_CHECKSUM_BYTES] {
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(checked(header));
    for (number, part) in body.chunks(HASH_BUDGET_BYTES).enumerate() {
        if number > 0 {
            glommio::executor().yield_task_queue_now().await;
        }
        hasher.update(part);
    }
    first_bytes(&hasher)
}

fn first_bytes(hasher: &blake3::Hasher) -> [u8; NODE_CHECKSUM_BYTES] {
    let mut out = [0; NODE_CHECKSUM_BYTES];
    hasher.finalize_xof().fill(&mut out);
    out
}

/// Takes as long wherever they differ. `blake3::Hash` compares so.
fn is_same(one: &[u8; NODE_CHECKSUM_BYTES], other: &[u8; NODE_CHECKSUM_BYTES]) -> bool {
    let whole = |short: &[u8; NODE_CHECKSUM_BYTES]| {
        let mut bytes = [0; blake3::OUT_LEN];
        bytes[..NODE_CHECKSUM_BYTES].copy_from_slice(short);
        blake3::Hash::from_bytes(bytes)
    };
    whole(one) == whole(other)
}

/// Challenges that nobody can foresee, each once.
pub(super) struct Challenges {
    key: Key,
    next: AtomicU64,
}

impl Challenges {
    /// `key` is random, of this start.
    pub(super) fn new(key: [u8; 32]) -> Self {
        let next = AtomicU64::new(0);
        Challenges { key, next }
    }

    pub(super) fn next(&self) -> [u8; CHALLENGE_BYTES] {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        *blake3::keyed_hash(&self.key, &number.to_le_bytes()).as_bytes()
    }
}

#[cfg(test)]
mod tests {
    use futures_lite::future::block_on;

    use super::*;

    fn pair(root: &Root, other: &Root, called: &[u8]) -> (Sealer, Opener) {
        let (sealer, _) = root.session(b"hello of the caller", called, Side::Caller);
        let (_, opener) = other.session(b"hello of the caller", called, Side::Called);
        (sealer, opener)
    }

    fn sealed(sealer: &mut Sealer, body: &[u8]) -> NodeFrameHeader {
        let bytes = block_on(sealer.seal(NodeFrameKind::Body, body));
        NodeFrameHeader::decode(&bytes, 1 << 20).unwrap()
    }

    #[test]
    fn frames_open_in_order_and_once() {
        let root = Root::new(Some(b"a secret of this cluster"));
        let (mut sealer, mut opener) = pair(&root, &root, b"x");
        let first = sealed(&mut sealer, b"one");
        let second = sealed(&mut sealer, b"two");
        assert_eq!(block_on(opener.open(&first, b"one")), Ok(()));
        let (expected, found) = (2, 1);
        let again = block_on(opener.open(&first, b"one"));
        assert_eq!(again, Err(Untrue::Sequence { expected, found }));
        assert_eq!(block_on(opener.open(&second, b"two")), Ok(()));
    }

    #[test]
    fn a_changed_byte_another_secret_and_another_connection_do_not_verify() {
        let root = Root::new(Some(b"a secret of this cluster"));
        let (mut sealer, mut opener) = pair(&root, &root, b"x");
        let first = sealed(&mut sealer, b"one");
        let untrue = Err(Untrue::Checksum);
        assert_eq!(block_on(opener.open(&first, b"onf")), untrue);
        let other_kind = NodeFrameHeader {
            kind: NodeFrameKind::Refuse,
            ..first
        };
        assert_eq!(block_on(opener.open(&other_kind, b"one")), untrue);
        let next = NodeFrameHeader {
            sequence: 2,
            ..first
        };
        assert_eq!(block_on(opener.open(&next, b"one")), untrue);
        let other = Root::new(Some(b"another secret of another"));
        for (theirs, called) in [(&other, b"x"), (&root, b"y"), (&Root::new(None), b"x")] {
            let (_, mut opener) = theirs.session(b"hello of the caller", called, Side::Called);
            assert_eq!(block_on(opener.open(&first, b"one")), untrue);
        }
        // Reflected to its sender.
        let (_, mut own) = root.session(b"hello of the caller", b"x", Side::Caller);
        assert_eq!(block_on(own.open(&first, b"one")), untrue);
        assert_eq!(block_on(opener.open(&first, b"one")), Ok(()));
    }

    #[test]
    fn no_challenge_comes_twice() {
        let challenges = Challenges::new([3; 32]);
        let mut seen: Vec<_> = (0..100).map(|_| challenges.next()).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 100);
    }
}
