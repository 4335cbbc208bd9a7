//! Commands to bytes and back.

use super::*;
use proptest::prelude::*;

fn bytes_of(command: &Command<'_>) -> Vec<u8> {
    let mut out = command.head().bytes().to_vec();
    out.extend_from_slice(command.tail());
    out
}

fn samples(records: &[u8], ids: &[u8], visit: &mut dyn FnMut(Command<'_>)) {
    let (queue_id, partition) = (0x0102_0304_0506_0708, 0x090a);
    visit(Command::Create(PartitionSpec {
        queue_id,
        partition,
        mode: Mode::Speculative,
        copies: 255,
        lease_ms: 30_000,
    }));
    visit(Command::Drop {
        queue_id,
        partition,
    });
    visit(Command::Append {
        queue_id,
        partition,
        stamp_ms: u64::MAX,
        count: 3,
        producer: None,
        records,
    });
    visit(Command::Append {
        queue_id,
        partition,
        stamp_ms: 9,
        count: 1,
        producer: Some(ProducerStamp {
            id: u64::MAX,
            epoch: 5,
            sequence: 6,
        }),
        records,
    });
    for kind in [
        SettleKind::Acknowledge,
        SettleKind::Release,
        SettleKind::Reject,
    ] {
        visit(Command::Settle {
            queue_id,
            partition,
            stamp_ms: 5,
            kind,
            due_ms: 6,
            items: DeliveryIds(ids),
        });
    }
    for cause in [
        LeaseEndCause::Expired,
        LeaseEndCause::Disconnected,
        LeaseEndCause::Unsubscribed,
    ] {
        visit(Command::LeaseEnded {
            queue_id,
            partition,
            cause,
            items: DeliveryIds(ids),
        });
    }
    visit(Command::DispatchMark {
        queue_id,
        partition,
        mark: 1024,
    });
    visit(Command::Purge {
        queue_id,
        partition,
        below: 77,
        keep: DeliveryIds(ids),
    });
    visit(Command::Weaken);
    visit(Command::NewGeneration {
        queue_id,
        partition,
        generation: 4,
        first_lost: 55,
    });
    visit(Command::Change {
        queue_id,
        partition,
        mode: Mode::Buffered,
        copies: 3,
        revision: 7,
    });
}

#[test]
fn every_command_reads_back() {
    let mut ids = Vec::new();
    DeliveryIds::push(&mut ids, 9, 1);
    DeliveryIds::push(&mut ids, u64::MAX, u32::MAX);
    assert_eq!(
        DeliveryIds(&ids).iter().collect::<Vec<_>>(),
        [(9, 1), (u64::MAX, u32::MAX)]
    );
    assert_eq!(DeliveryIds(&ids).len(), 2);
    samples(b"anything", &ids, &mut |command| {
        let bytes = bytes_of(&command);
        assert!(command.head().bytes().len() <= MAX_HEAD_BYTES);
        assert_eq!(Command::decode(&bytes), Ok(command));
    });
}

#[test]
fn a_cut_at_every_byte_is_an_error_or_a_shorter_tail() {
    let mut ids = Vec::new();
    DeliveryIds::push(&mut ids, 9, 1);
    samples(b"anything", &ids, &mut |command| {
        let bytes = bytes_of(&command);
        for end in 0..bytes.len() {
            match Command::decode(&bytes[..end]) {
                Ok(cut) => {
                    assert_eq!(bytes_of(&cut), &bytes[..end]);
                    assert!(end >= command.head().bytes().len());
                }
                Err(CommandError::Malformed(_)) => {}
            }
        }
        if !matches!(command, Command::Append { .. }) {
            let mut longer = bytes.clone();
            longer.push(0);
            assert!(Command::decode(&longer).is_err());
        }
    });
}

#[test]
fn the_bytes_of_a_settle_stay_as_they_are() {
    let mut ids = Vec::new();
    DeliveryIds::push(&mut ids, 2, 1);
    let command = Command::Settle {
        queue_id: 1,
        partition: 2,
        stamp_ms: 3,
        kind: SettleKind::Release,
        due_ms: 4,
        items: DeliveryIds(&ids),
    };
    let expected = [
        4, 1, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 3, 0, 0, 0, 0, 0, 0, 0, 2, 4, 0, 0, 0, 0, 0, 0, 0, 2,
        0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0,
    ];
    assert_eq!(bytes_of(&command), expected);
}

#[test]
fn unknown_kinds_versions_and_values_are_refused() {
    for bytes in [
        &[0, 1][..],
        &[10, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[8, 2],
        &[8, 0],
        &[],
    ] {
        assert!(Command::decode(bytes).is_err());
    }
    let mut settle = vec![4, 1];
    settle.extend_from_slice(&[0; 18]);
    settle.push(9);
    settle.extend_from_slice(&[0; 8]);
    assert_eq!(
        Command::decode(&settle),
        Err(CommandError::Malformed("unknown settle kind"))
    );
}

proptest! {
    #[test]
    fn no_bytes_make_decode_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..96), kind in 0u8..10) {
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        if let Some(second) = bytes.get_mut(1) {
            *second %= 2;
        }
        if let Ok(command) = Command::decode(&bytes) {
            prop_assert_eq!(bytes_of(&command), bytes);
        }
    }
}
