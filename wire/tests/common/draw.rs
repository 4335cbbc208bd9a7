//! Arbitrary bodies from a string of random bytes. Bodies are drawn, not
//! listed as strategies, so that a new field breaks the build here.

use tidegate_wire::message::*;

/// Random bytes, used up from the front; zeros when they run out.
pub struct Source<'a>(pub &'a [u8]);

impl Source<'_> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let have = N.min(self.0.len());
        out[..have].copy_from_slice(&self.0[..have]);
        self.0 = &self.0[have..];
        out
    }

    fn below(&mut self, bound: usize) -> usize {
        usize::from(u16::draw(self)) % bound
    }
}

pub trait Draw {
    fn draw(source: &mut Source<'_>) -> Self;
}

macro_rules! numbers {
    ($($type:ty)*) => {$(
        impl Draw for $type {
            fn draw(source: &mut Source<'_>) -> Self {
                <$type>::from_le_bytes(source.bytes())
            }
        }
    )*};
}

numbers!(u16 u32 u64);

/// Not by `numbers!`, because a list of bytes is drawn in one piece.
impl Draw for u8 {
    fn draw(source: &mut Source<'_>) -> Self {
        source.bytes::<1>()[0]
    }
}

impl Draw for [u8; 16] {
    fn draw(source: &mut Source<'_>) -> Self {
        source.bytes()
    }
}

/// Lengths around those where the layout of a text changes: 8 bytes are the
/// most inside the field, 63 the most in six bits.
impl Draw for String {
    fn draw(source: &mut Source<'_>) -> Self {
        let letters = [0, 1, 3, 7, 8, 9, 10, 62, 63, 64, 65, 255, 300][source.below(13)];
        let alphabet = ['a', 'Z', '/', '\0', '\u{7F}', 'é', '日', '🦀'];
        (0..letters)
            .map(|_| alphabet[source.below(alphabet.len())])
            .collect()
    }
}

impl<T: Draw> Draw for Vec<T> {
    fn draw(source: &mut Source<'_>) -> Self {
        (0..source.below(5)).map(|_| T::draw(source)).collect()
    }
}

macro_rules! bodies {
    ($($name:ident { $($field:ident)* })*) => {$(
        impl Draw for $name {
            fn draw(source: &mut Source<'_>) -> Self {
                $name { $($field: Draw::draw(source),)* }
            }
        }
    )*};
}

/// Every extension drawn for a round trip must be one that is accepted.
impl Draw for Extension {
    fn draw(source: &mut Source<'_>) -> Self {
        Extension {
            kind: u16::draw(source) % Extension::CRITICAL,
            bytes: Draw::draw(source),
        }
    }
}

bodies! {
    Limits { frame_bytes record_bytes name_bytes headers_bytes batch_records }
    PartitionPlace { group node shard }
    QueueDescription { queue_id name mode copies lease_ms partitions }
    ConfirmItem { correlation queue_id partition boundary copies generation first_offset count }
    Delivery { offset attempt flags len }
    SettleItem { offset attempt }
    RefusedSettle { offset attempt code }
    LossReport { generation first_lost highest_known_confirmed_next }
    Peeked { offset state attempts len }
    Hello {
        version_min version_max wished_shard window_bytes client authentication extensions
    }
    HelloReply { version node shard shards window_bytes limits server extensions }
    Declare { name mode copies partitions lease_ms extensions }
    Declared { created queue extensions }
    Publish {
        queue_id partition flags deadline_ms producer_id producer_epoch sequence trace count
        records extensions
    }
    Confirm { items extensions }
    Subscribe { queue_id partition subscription credit_records credit_bytes extensions }
    Subscribed { subscription generation extensions }
    Credit { subscription records bytes extensions }
    Deliver { subscription queue_id partition generation deliveries records extensions }
    Settle {
        queue_id partition generation subscription kind flags delay_ms items extensions
    }
    SettleConfirm { accepted boundary copies refused extensions }
    QueueInfo { queue_id partition extensions }
    QueueInfoReply {
        queue partition generation written_next durable_next gated ready delayed leased
        published acknowledged dropped expired dead_lettered purged redelivered
        unsynced_records unsynced_bytes oldest_ready_age_ms consumers latched copies_present
        copies_needed losses extensions
    }
    List { after limit extensions }
    ListReply { queues more extensions }
    Frontiers { queue_id partition extensions }
    FrontiersReply { generation written_next durable_next copies extensions }
    Barrier { queue_id partition deadline_ms extensions }
    BarrierReply { generation written_next durable_next copies extensions }
    Peek { queue_id partition from_offset max_records extensions }
    PeekReply { generation peeked records extensions }
    Purge { queue_id partition extensions }
    Purged { records extensions }
    Delete { queue_id extensions }
    Deleted { queue_id extensions }
    Ping { extensions }
    Pong { extensions }
    GoingAway { reason extensions }
    Error { code outcome message extensions }
    Locate { name extensions }
    LocateReply { queue extensions }
    Redirect { queue_id partition node shard extensions }
    Unsubscribe { subscription extensions }
    Unsubscribed { subscription extensions }
    Extend { queue_id partition generation subscription lease_ms items extensions }
    Extended { accepted refused extensions }
}
