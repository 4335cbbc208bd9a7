//! Publishes: confirms, batching by waiting, windows, and what a loss makes of them.

mod support;

use std::time::Duration;

use support::{confirm_item, quick, soon, Server, QUEUE};
use tidegate_client::{Batch, Boundary, Confirmed, Error, ErrorCode, Reason, Record};
use wire::{
    error::Outcome,
    message::{Confirm, Publish},
    record::{check_batch, Records},
};

fn payloads(publish: &Publish) -> Vec<String> {
    check_batch(&publish.records, publish.count).unwrap();
    Records::new(&publish.records)
        .map(|record| String::from_utf8_lossy(record.unwrap().payload).into_owned())
        .collect()
}

#[tokio::test]
async fn a_confirm_says_what_was_met_and_where() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let answer = async {
        peer.locate(&[0]).await;
        let (correlation, publish) = peer.expect::<Publish>().await;
        assert_ne!(correlation, 0);
        assert_eq!((publish.queue_id, publish.flags), (QUEUE, 0));
        assert_eq!(payloads(&publish), ["hello"]);
        peer.confirm(correlation, &publish, 41).await;
    };
    let (confirmed, ()) = soon("the confirm", async {
        tokio::join!(client.publish("q", "hello"), answer)
    })
    .await;
    let expected = Confirmed {
        queue_id: QUEUE,
        partition: 0,
        generation: 3,
        offset: 41,
        count: 1,
        boundary: Boundary::Durable,
        copies: 1,
    };
    assert_eq!(confirmed.unwrap(), expected);
    assert_eq!(
        expected.to_string(),
        "offset=41 generation=3 partition=0 boundary=durable copies=1"
    );
}

#[tokio::test]
async fn records_sent_in_one_turn_leave_in_one_frame_and_each_gets_its_own_confirm() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (publisher, ()) = tokio::join!(client.publisher("q"), peer.locate(&[0]));
    let publisher = publisher.unwrap().durable(true);
    let mut confirms = Vec::new();
    for number in 0..100 {
        let payload = number.to_string();
        confirms.push(publisher.send(&payload).await.unwrap());
    }
    let (correlation, publish) = peer.expect::<Publish>().await;
    assert_eq!((publish.count, publish.flags), (100, 1));
    let expected: Vec<_> = (0..100).map(|number| number.to_string()).collect();
    assert_eq!(payloads(&publish), expected);
    peer.confirm(correlation, &publish, 1000).await;
    for (index, confirm) in (0..).zip(confirms) {
        let confirmed = soon("a confirm", confirm).await.unwrap();
        assert_eq!((confirmed.offset, confirmed.count), (1000 + index, 1));
    }
}

#[tokio::test]
async fn a_batch_keeps_its_frame_and_gets_one_confirm() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (publisher, ()) = tokio::join!(client.publisher("q"), peer.locate(&[0]));
    let publisher = publisher.unwrap();
    let mut batch = Batch::new();
    batch.push("a").unwrap();
    batch.push("b").unwrap();
    let single = publisher.send("x").await.unwrap();
    let together = publisher.send_batch(&batch).await.unwrap();
    let (first, x) = peer.expect::<Publish>().await;
    let (second, ab) = peer.expect::<Publish>().await;
    assert_eq!((x.count, ab.count), (1, 2));
    let items = vec![confirm_item(second, &ab, 1), confirm_item(first, &x, 0)];
    let body = Confirm {
        items,
        ..Default::default()
    };
    peer.send(0, &body).await;
    assert_eq!(soon("x", single).await.unwrap().offset, 0);
    let confirmed = soon("ab", together).await.unwrap();
    assert_eq!((confirmed.offset, confirmed.count), (1, 2));
    let empty = publisher.send_batch(&Batch::new()).await.unwrap_err();
    assert!(matches!(empty, Error::Failed { .. }));
    let elsewhere = publisher.send_batch_to(1, &batch).await.unwrap_err();
    assert!(matches!(elsewhere, Error::Failed { .. }));
}

#[tokio::test]
async fn keys_choose_the_partition_and_records_without_go_round() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (publisher, ()) = tokio::join!(client.publisher("q"), peer.locate(&[0; 3]));
    let publisher = publisher.unwrap();
    let expected = publisher.partition_of(b"k");
    let mut confirms = Vec::new();
    for _ in 0..3 {
        confirms.push(publisher.send(Record::new("keyed").key("k")).await.unwrap());
    }
    let (_, publish) = peer.expect::<Publish>().await;
    assert_eq!((publish.partition, publish.count), (expected, 3));
    for _ in 0..3 {
        confirms.push(publisher.send("free").await.unwrap());
    }
    let mut seen = Vec::new();
    for _ in 0..3 {
        seen.push(peer.expect::<Publish>().await.1.partition);
    }
    seen.sort_unstable();
    assert_eq!(seen, [0, 1, 2]);
}

#[tokio::test]
async fn f13_a_publish_that_was_sent_is_unknown_after_a_loss_and_a_queued_one_goes_on() {
    let mut server = Server::start().await;
    // Room for one record only: the second one stays queued.
    server.window = 400;
    let (client, mut peer) = server.client().await;
    let (publisher, ()) = tokio::join!(client.publisher("q"), peer.locate(&[0]));
    let publisher = publisher.unwrap();
    let payload = "p".repeat(200);
    let sent = publisher.send(&payload).await.unwrap();
    let queued = publisher.send(&payload).await.unwrap();
    let (_, publish) = peer.expect::<Publish>().await;
    assert_eq!(publish.count, 1);
    drop(peer);
    let lost = soon("the loss", sent).await.unwrap_err();
    assert!(lost.is_unknown(), "{lost:?}");
    assert!(matches!(lost.reason(), Reason::ConnectionLost { .. }));
    let mut peer = server.accept().await;
    let (correlation, publish) = peer.expect::<Publish>().await;
    peer.confirm(correlation, &publish, 5).await;
    assert_eq!(soon("the second", queued).await.unwrap().offset, 5);
}

#[tokio::test]
async fn a_publish_that_was_never_sent_fails_by_its_deadline() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (publisher, ()) = tokio::join!(client.publisher("q"), peer.locate(&[0]));
    let publisher = publisher.unwrap().deadline(Duration::from_millis(50));
    drop(server);
    drop(peer);
    // The first may still have found the old socket open.
    loop {
        let error = soon("the refusal", publisher.publish("x"))
            .await
            .unwrap_err();
        if let Error::Failed {
            reason: Reason::NotSent { cause, .. },
        } = error
        {
            assert!(cause.contains("cannot connect"), "{cause}");
            return;
        }
    }
}

#[tokio::test]
async fn f13_a_server_that_never_answers_leaves_the_outcome_unknown() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (publisher, ()) = tokio::join!(client.publisher("q"), peer.locate(&[0]));
    let publisher = publisher.unwrap().deadline(Duration::from_millis(30));
    let (error, (correlation, publish)) =
        tokio::join!(publisher.publish("x"), peer.expect::<Publish>());
    assert!((1..=30).contains(&publish.deadline_ms));
    let error = error.unwrap_err();
    assert!(error.is_unknown());
    assert!(matches!(error.reason(), Reason::Timeout { .. }));
    // The late answer finds nobody and disturbs nobody.
    peer.confirm(correlation, &publish, 0).await;
    let publisher = publisher.deadline(support::PATIENCE);
    let again = async {
        let (correlation, publish) = peer.expect::<Publish>().await;
        peer.confirm(correlation, &publish, 1).await;
    };
    let (confirmed, ()) = tokio::join!(publisher.publish("y"), again);
    assert_eq!(confirmed.unwrap().offset, 1);
}

#[tokio::test]
async fn the_servers_window_is_never_exceeded_and_everything_still_arrives() {
    let mut server = Server::start().await;
    server.window = 3000;
    let (client, mut peer) = server.client().await;
    let (publisher, ()) = tokio::join!(client.publisher("q"), peer.locate(&[0]));
    let publisher = publisher.unwrap();
    let payload = "w".repeat(500);
    let mut confirms = Vec::new();
    for _ in 0..40 {
        confirms.push(publisher.send(&payload).await.unwrap());
    }
    let mut unanswered = std::collections::VecDeque::new();
    let (mut bytes, mut count) = (0, 0);
    while count < 40 {
        // Reads ahead as far as the client goes, then answers the oldest.
        let read = tokio::time::timeout(Duration::from_millis(50), peer.read_or_end()).await;
        match read {
            Ok(frame) => {
                let (header, body) = frame.unwrap();
                bytes += header.length;
                assert!(bytes <= 3000, "{bytes} bytes unanswered");
                let publish: Publish = support::owned(&body);
                unanswered.push_back((header, publish));
            }
            Err(_) => {
                let (header, publish) = unanswered.pop_front().unwrap();
                bytes -= header.length;
                let first = u64::from(count);
                count += publish.count;
                peer.confirm(header.correlation, &publish, first).await;
            }
        }
    }
    for (offset, confirm) in (0..).zip(confirms) {
        assert_eq!(soon("a confirm", confirm).await.unwrap().offset, offset);
    }
}

#[tokio::test]
async fn f74_a_record_above_the_servers_window_is_refused_and_the_next_one_passes() {
    let mut server = Server::start().await;
    server.window = 1000;
    let (client, mut peer) = server.client().await;
    let (publisher, ()) = tokio::join!(client.publisher("q"), peer.locate(&[0]));
    let publisher = publisher.unwrap();
    let large = publisher.send(&vec![0; 2000]).await.unwrap();
    let small = publisher.send("small").await.unwrap();
    let error = soon("the refusal", large).await.unwrap_err();
    assert!(!error.is_unknown());
    assert_eq!(error.code(), Some(ErrorCode::WindowExceeded));
    let (correlation, publish) = peer.expect::<Publish>().await;
    peer.confirm(correlation, &publish, 0).await;
    assert_eq!(soon("the small one", small).await.unwrap().offset, 0);
    let huge = vec![0; 8 * 1024 * 1024 + 1];
    let error = publisher.send(&huge).await.unwrap_err();
    assert!(matches!(error.reason(), Reason::Invalid(_)), "{error}");
}

#[tokio::test]
async fn sending_waits_while_the_clients_window_is_full() {
    let server = Server::start().await;
    let (client, mut peer) = server
        .client_with(quick().publish_window_bytes(64 * 1024))
        .await;
    let (publisher, ()) = tokio::join!(client.publisher("q"), peer.locate(&[0]));
    let publisher = publisher.unwrap();
    let payload = "w".repeat(40 * 1024);
    let first = publisher.send(&payload).await.unwrap();
    let (correlation, publish) = peer.expect::<Publish>().await;
    let mut second = Box::pin(publisher.send(&payload));
    let waited = tokio::time::timeout(Duration::from_millis(50), &mut second).await;
    assert!(waited.is_err(), "the window of 64 KiB took 80 KiB");
    peer.confirm(correlation, &publish, 0).await;
    soon("the first", first).await.unwrap();
    let _second = soon("the second", second).await.unwrap();
    let hurried = publisher.deadline(Duration::from_millis(10));
    let error = hurried.send(&payload).await.unwrap_err();
    assert!(matches!(error.reason(), Reason::NotSent { .. }), "{error}");
}

#[tokio::test]
async fn the_servers_word_decides_between_failed_and_unknown() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (publisher, ()) = tokio::join!(client.publisher("q"), peer.locate(&[0]));
    let publisher = publisher.unwrap();
    for (outcome, unknown) in [(Outcome::Failed, false), (Outcome::Unknown, true)] {
        let refuse = async {
            let (correlation, _) = peer.expect::<Publish>().await;
            peer.refuse(correlation, ErrorCode::Deadline, outcome).await;
        };
        let (error, ()) = tokio::join!(publisher.publish("x"), refuse);
        let error = error.unwrap_err();
        assert_eq!(error.is_unknown(), unknown);
        assert_eq!(error.code(), Some(ErrorCode::Deadline));
    }
}

#[tokio::test]
async fn a_confirm_that_makes_no_sense_is_unknown_and_never_a_confirm() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (publisher, ()) = tokio::join!(client.publisher("q"), peer.locate(&[0]));
    let publisher = publisher.unwrap();
    for (count, boundary) in [(2, 2), (1, 0), (0, 1)] {
        let answer = async {
            let (correlation, publish) = peer.expect::<Publish>().await;
            let item = wire::message::ConfirmItem {
                count,
                boundary,
                ..confirm_item(correlation, &publish, 0)
            };
            let body = Confirm {
                items: vec![item],
                ..Default::default()
            };
            peer.send(0, &body).await;
        };
        let (error, ()) = tokio::join!(publisher.publish("x"), answer);
        let error = error.unwrap_err();
        assert!(error.is_unknown());
        assert!(matches!(error.reason(), Reason::BadAnswer { .. }));
    }
}

#[tokio::test]
async fn publishing_by_name_finds_a_queue_that_was_declared_again() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let answer = async {
        peer.locate(&[0]).await;
        let (correlation, _) = peer.expect::<Publish>().await;
        peer.refuse(correlation, ErrorCode::UnknownQueue, Outcome::Failed)
            .await;
        peer.locate(&[0]).await;
        let (correlation, publish) = peer.expect::<Publish>().await;
        peer.confirm(correlation, &publish, 0).await;
    };
    let (confirmed, ()) = tokio::join!(client.publish("q", "x"), answer);
    assert_eq!(confirmed.unwrap().offset, 0);
}

#[tokio::test]
async fn each_publish_goes_to_the_shard_of_its_partition() {
    let mut server = Server::start().await;
    server.shards = 2;
    let (client, mut home) = server.client().await;
    let (publisher, ()) = tokio::join!(client.publisher("q"), home.locate(&[0, 1]));
    let publisher = publisher.unwrap();
    let here = publisher.send("zero").await.unwrap();
    let there = publisher.send("one").await.unwrap();
    let mut other = server.accept().await;
    assert_eq!((home.wished_shard, other.wished_shard), (u16::MAX, 1));
    for (peer, partition) in [(&mut home, 0), (&mut other, 1)] {
        let (correlation, publish) = peer.expect::<Publish>().await;
        assert_eq!(publish.partition, partition);
        peer.confirm(correlation, &publish, 0).await;
    }
    soon("partition 0", here).await.unwrap();
    soon("partition 1", there).await.unwrap();
    // The first connection comes back to the shard it had.
    drop(home);
    assert_eq!(server.accept().await.wished_shard, 0);
}

#[tokio::test]
async fn a_client_that_is_not_shard_aware_keeps_one_connection() {
    let mut server = Server::start().await;
    server.shards = 2;
    let (client, mut peer) = server.client_with(quick().shard_aware(false)).await;
    let (publisher, ()) = tokio::join!(client.publisher("q"), peer.locate(&[0, 1]));
    let publisher = publisher.unwrap();
    let _first = publisher.send("zero").await.unwrap();
    let _second = publisher.send("one").await.unwrap();
    for partition in [0, 1] {
        assert_eq!(peer.expect::<Publish>().await.1.partition, partition);
    }
}

#[tokio::test]
async fn closing_waits_for_confirms_and_later_calls_fail() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (publisher, ()) = tokio::join!(client.publisher("q"), peer.locate(&[0]));
    let publisher = publisher.unwrap();
    let confirm = publisher.send("last").await.unwrap();
    let answer = async {
        let (correlation, publish) = peer.expect::<Publish>().await;
        peer.confirm(correlation, &publish, 9).await;
        assert!(peer.read_or_end().await.is_none(), "the connection ends");
    };
    soon("the close", async {
        tokio::join!(client.close(support::PATIENCE), answer)
    })
    .await;
    assert_eq!(confirm.await.unwrap().offset, 9);
    let error = publisher.publish("late").await.unwrap_err();
    assert_eq!(error.reason(), &Reason::Closed);
}
