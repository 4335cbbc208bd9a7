//! Subscriptions: credit, settles, and what a reconnect makes of both.

mod support;

use std::time::Duration;

use futures_lite::StreamExt;
use support::{deliver_frame, ends_as, quick, soon, Peer, Server, QUEUE};
use tidegate_client::{
    Boundary, Client, ErrorCode, SettleError, SubscribeError, SubscribeOptions, Subscription,
};
use tokio::io::AsyncWriteExt;
use wire::{
    error::Outcome,
    message::{
        Credit, RefusedSettle, Settle, SettleConfirm, Subscribe, Subscribed, Unsubscribe,
        Unsubscribed, SETTLE_CONFIRM,
    },
};

async fn subscribed(client: &Client, peer: &mut Peer) -> (Subscription, Subscribe) {
    let options = SubscribeOptions {
        credit_records: 4,
        credit_bytes: 1 << 20,
        ..Default::default()
    };
    let answer = async {
        peer.locate(&[0]).await;
        peer.subscribed().await
    };
    let (subscription, subscribe) = soon("the subscription", async {
        tokio::join!(client.subscribe_with("q", options), answer)
    })
    .await;
    assert_eq!(
        (subscribe.credit_records, subscribe.credit_bytes),
        (4, 1 << 20)
    );
    (subscription.unwrap(), subscribe)
}

async fn take(subscription: &mut Subscription) -> tidegate_client::Delivery {
    soon("a delivery", subscription.next())
        .await
        .expect("the stream goes on")
        .expect("a delivery")
}

#[tokio::test]
async fn a_delivery_carries_all_of_its_record() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (mut subscription, to) = subscribed(&client, &mut peer).await;
    peer.deliver(&to, 7, &["first", ""]).await;
    let first = take(&mut subscription).await;
    assert_eq!((first.payload(), first.key()), (&b"first"[..], &b"k"[..]));
    assert!(first.headers().is_empty());
    assert_eq!((first.offset(), first.attempt()), (7, 1));
    assert_eq!((first.queue_id(), first.partition()), (QUEUE, 0));
    assert!(first.durable() && !first.redelivered());
    // F72: an empty payload is a record like any other.
    let second = take(&mut subscription).await;
    assert_eq!((second.offset(), second.payload()), (8, &b""[..]));
    let out = deliver_frame(&to, 7, &["first"], 2, |_| ());
    peer.socket.write_all(&out).await.unwrap();
    let again = take(&mut subscription).await;
    assert_eq!((again.attempt(), again.redelivered()), (2, true));
}

#[tokio::test]
async fn taking_deliveries_gives_their_credit_back() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (mut subscription, to) = subscribed(&client, &mut peer).await;
    let (mut credit, mut offset) = (u64::from(to.credit_records), 0);
    while offset < 40 {
        while credit > 0 {
            peer.deliver(&to, offset, &["x"]).await;
            credit -= 1;
            offset += 1;
        }
        for _ in 0..2 {
            take(&mut subscription).await.ack();
        }
        loop {
            let (header, body) = peer.read().await;
            if header.kind == wire::frame::Kind::Credit as u8 {
                let given: Credit = support::owned(&body);
                assert_eq!(given.subscription, to.subscription);
                assert_eq!((given.records, given.bytes), (2, 2 * (32 + 1 + 1)));
                credit += u64::from(given.records);
                break;
            }
        }
    }
}

#[tokio::test]
async fn settles_given_in_one_turn_leave_in_one_frame_of_each_kind() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (mut subscription, to) = subscribed(&client, &mut peer).await;
    peer.deliver(&to, 0, &["a", "b", "c", "d"]).await;
    let mut deliveries = Vec::new();
    for _ in 0..4 {
        deliveries.push(take(&mut subscription).await);
    }
    // The credit is given back at half of it.
    peer.expect::<Credit>().await;
    let mut deliveries = deliveries.into_iter();
    deliveries.next().unwrap().ack();
    deliveries.next().unwrap().ack();
    deliveries
        .next()
        .unwrap()
        .release(Duration::from_millis(1500));
    deliveries.next().unwrap().reject();
    let mut frames = Vec::new();
    while frames.len() < 3 {
        let (header, body) = peer.read().await;
        if header.kind == wire::frame::Kind::Settle as u8 {
            frames.push(support::owned::<Settle>(&body));
        }
    }
    frames.sort_by_key(|settle| settle.kind);
    let seen: Vec<_> = frames
        .iter()
        .map(|s| {
            let offsets: Vec<_> = s.items.iter().map(|item| item.offset).collect();
            (s.kind, s.flags, s.delay_ms, offsets)
        })
        .collect();
    assert_eq!(
        seen,
        [
            (1, 0, 0, vec![0, 1]),
            (2, 0, 1500, vec![2]),
            (3, 0, 0, vec![3])
        ]
    );
    assert!(frames
        .iter()
        .all(|s| s.subscription == to.subscription && s.queue_id == QUEUE && s.generation == 1));
}

async fn next_settle(peer: &mut Peer) -> (u64, Settle) {
    loop {
        let (header, body) = peer.read().await;
        if header.kind == wire::frame::Kind::Settle as u8 {
            return (header.correlation, support::owned(&body));
        }
    }
}

#[tokio::test]
async fn f40_a_confirmed_settle_says_what_it_met_or_that_it_was_stale() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (mut subscription, to) = subscribed(&client, &mut peer).await;
    peer.deliver(&to, 0, &["a", "b"]).await;
    let good = take(&mut subscription).await.ack_confirmed();
    let stale = take(&mut subscription).await.ack_confirmed();
    let (correlation, settle) = next_settle(&mut peer).await;
    assert_eq!((settle.flags, settle.items.len()), (SETTLE_CONFIRM, 2));
    let body = SettleConfirm {
        accepted: 1,
        boundary: 1,
        copies: 1,
        refused: vec![RefusedSettle {
            offset: 1,
            attempt: 1,
            code: ErrorCode::StaleDelivery as u16,
        }],
        ..Default::default()
    };
    peer.send(correlation, &body).await;
    let settled = soon("the settle", good).await.unwrap();
    assert_eq!((settled.boundary, settled.copies), (Boundary::Written, 1));
    let refused = soon("the refusal", stale).await.unwrap_err();
    assert!(matches!(refused, SettleError::Stale { .. }));
}

#[tokio::test]
async fn refused_settles_without_confirm_are_counted() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (mut subscription, to) = subscribed(&client, &mut peer).await;
    peer.deliver(&to, 0, &["a", "b"]).await;
    take(&mut subscription).await.ack();
    let (correlation, settle) = next_settle(&mut peer).await;
    let refused = |offset| RefusedSettle {
        offset,
        attempt: 1,
        code: ErrorCode::StaleDelivery as u16,
    };
    let body = SettleConfirm {
        refused: settle.items.iter().map(|i| refused(i.offset)).collect(),
        ..Default::default()
    };
    peer.send(correlation, &body).await;
    soon("the count", async {
        while client.refused_settles() == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    assert_eq!(client.refused_settles(), 1);
}

#[tokio::test]
async fn f40_after_a_reconnect_it_subscribes_again_and_stale_deliveries_settle_nothing() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (mut subscription, to) = subscribed(&client, &mut peer).await;
    peer.deliver(&to, 0, &["taken", "not taken"]).await;
    let taken = take(&mut subscription).await;
    drop(peer);
    let mut peer = server.accept().await;
    let again = peer.subscribed().await;
    assert_eq!((again.queue_id, again.credit_records), (QUEUE, 4));
    let refused = soon("the refusal", taken.ack_confirmed()).await;
    assert!(matches!(refused, Err(SettleError::Stale { .. })));
    let out = deliver_frame(&again, 0, &["taken", "not taken"], 2, |_| ());
    peer.socket.write_all(&out).await.unwrap();
    // What was in the stream of the lost connection is skipped.
    for payload in [&b"taken"[..], b"not taken"] {
        let delivery = take(&mut subscription).await;
        assert_eq!((delivery.payload(), delivery.attempt()), (payload, 2));
        delivery.ack();
    }
    let (_, settle) = next_settle(&mut peer).await;
    assert!(settle.items.iter().all(|item| item.attempt == 2));
}

#[tokio::test]
async fn a_settle_lost_with_its_connection_is_unknown() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (mut subscription, to) = subscribed(&client, &mut peer).await;
    peer.deliver(&to, 0, &["a"]).await;
    let confirm = take(&mut subscription).await.ack_confirmed();
    next_settle(&mut peer).await;
    drop(peer);
    match soon("the loss", confirm).await {
        Err(SettleError::Request(error)) => assert!(error.is_unknown()),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_damaged_record_is_reported_and_its_neighbour_arrives() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (mut subscription, to) = subscribed(&client, &mut peer).await;
    let out = deliver_frame(&to, 0, &["bad", "good"], 1, |records| records[34] ^= 1);
    peer.socket.write_all(&out).await.unwrap();
    match soon("the report", subscription.next()).await {
        Some(Err(SubscribeError::Damaged { offset: 0, .. })) => {}
        other => panic!("{other:?}"),
    }
    assert_eq!(take(&mut subscription).await.payload(), b"good");
}

#[tokio::test]
async fn more_deliveries_than_credit_end_the_connection() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (_subscription, to) = subscribed(&client, &mut peer).await;
    peer.deliver(&to, 0, &["1", "2", "3", "4", "5"]).await;
    let mut peer = server.accept().await;
    peer.subscribed().await;
    drop(client);
}

#[tokio::test]
async fn a_delivery_that_claims_more_bytes_than_its_frame_has_ends_the_connection() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (mut subscription, to) = subscribed(&client, &mut peer).await;
    let out = deliver_frame(&to, 0, &["one", "two"], 1, |records| {
        records.truncate(records.len() - 1);
    });
    peer.socket.write_all(&out).await.unwrap();
    let mut peer = server.accept().await;
    let again = peer.subscribed().await;
    let out = deliver_frame(&again, 0, &["one"], 2, |_| ());
    peer.socket.write_all(&out).await.unwrap();
    assert_eq!(take(&mut subscription).await.attempt(), 2);
}

#[tokio::test]
async fn a_refused_subscription_is_an_error_at_once() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let refuse = async {
        peer.locate(&[0]).await;
        let (correlation, _) = peer.expect::<Subscribe>().await;
        peer.refuse(correlation, ErrorCode::LimitReached, Outcome::Failed)
            .await;
    };
    let (result, ()) = tokio::join!(client.subscribe("q"), refuse);
    assert_eq!(result.unwrap_err().code(), Some(ErrorCode::LimitReached));
}

#[tokio::test]
async fn after_a_reconnect_it_asks_again_while_unavailable_and_ends_when_the_queue_is_gone() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (mut subscription, _) = subscribed(&client, &mut peer).await;
    drop(peer);
    let mut peer = server.accept().await;
    for code in [ErrorCode::Unavailable, ErrorCode::UnknownQueue] {
        let (correlation, _) = peer.expect::<Subscribe>().await;
        peer.refuse(correlation, code, Outcome::Failed).await;
    }
    ends_as(&mut subscription, ErrorCode::UnknownQueue).await;
}

#[tokio::test]
async fn closing_a_subscription_sends_its_settles_first_and_waits_for_the_answer() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (mut subscription, to) = subscribed(&client, &mut peer).await;
    peer.deliver(&to, 0, &["a"]).await;
    take(&mut subscription).await.ack();
    let answer = async {
        let (_, settle) = peer.expect::<Settle>().await;
        assert_eq!(settle.items.len(), 1);
        let (correlation, unsubscribe) = peer.expect::<Unsubscribe>().await;
        assert_eq!(unsubscribe.subscription, to.subscription);
        let body = Unsubscribed {
            subscription: to.subscription,
            ..Default::default()
        };
        peer.send(correlation, &body).await;
    };
    soon("the close", async {
        tokio::join!(subscription.close(support::PATIENCE), answer)
    })
    .await;
}

#[tokio::test]
async fn a_stream_merges_the_partitions_of_all_shards() {
    let mut server = Server::start().await;
    server.shards = 2;
    let (client, mut home) = server.client_with(quick()).await;
    let answer = async {
        home.locate(&[0, 1]).await;
        let mut other = server.accept().await;
        let (a, b) = tokio::join!(home.subscribed(), other.subscribed());
        home.deliver(&a, 0, &["zero"]).await;
        other.deliver(&b, 0, &["one"]).await;
        (home, other)
    };
    let (subscription, _peers) = tokio::join!(client.subscribe("q"), answer);
    let mut subscription = subscription.unwrap();
    let mut seen = Vec::new();
    for _ in 0..2 {
        // As a `Stream`, which `next` of the subscription itself is not.
        let delivery = soon("a delivery", StreamExt::next(&mut subscription)).await;
        let delivery = delivery.unwrap().unwrap();
        seen.push((delivery.partition(), delivery.payload().to_vec()));
    }
    seen.sort();
    assert_eq!(seen, [(0, b"zero".to_vec()), (1, b"one".to_vec())]);
}

#[tokio::test]
async fn an_unexpected_subscribed_disturbs_nothing() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let (mut subscription, to) = subscribed(&client, &mut peer).await;
    peer.send(9_999_999, &Subscribed::default()).await;
    peer.deliver(&to, 0, &["x"]).await;
    assert_eq!(take(&mut subscription).await.payload(), b"x");
}

#[tokio::test]
async fn a_limited_stream_never_asks_for_more_than_it_will_give() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let options = SubscribeOptions {
        credit_records: 4,
        max_deliveries: Some(7),
        ..Default::default()
    };
    let answer = async {
        peer.locate(&[0]).await;
        peer.subscribed().await
    };
    let (subscription, to) = tokio::join!(client.subscribe_with("q", options), answer);
    let mut subscription = subscription.unwrap();
    let mut granted = u64::from(to.credit_records);
    let mut delivered = 0;
    while delivered < 7 {
        while delivered < granted {
            peer.deliver(&to, delivered, &["x"]).await;
            delivered += 1;
            take(&mut subscription).await;
        }
        if delivered < 7 {
            granted += u64::from(peer.expect::<Credit>().await.1.records);
            assert!(granted <= 7, "{granted}");
        }
    }
    assert!(soon("the end", subscription.next()).await.is_none());
    assert!(subscription.try_next().is_none());
    drop(subscription);
    // Nothing but the end of the subscription follows.
    peer.expect::<Unsubscribe>().await;
}

#[tokio::test]
async fn a_limited_stream_gives_bytes_back_when_no_more_records_may_come() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let options = SubscribeOptions {
        credit_bytes: 100,
        max_deliveries: Some(3),
        ..Default::default()
    };
    let answer = async {
        peer.locate(&[0]).await;
        peer.subscribed().await
    };
    let (subscription, to) = tokio::join!(client.subscribe_with("q", options), answer);
    let mut subscription = subscription.unwrap();
    assert_eq!((to.credit_records, to.credit_bytes), (3, 100));
    let large = "l".repeat(200);
    peer.deliver(&to, 0, &[&large]).await;
    take(&mut subscription).await;
    let credit = peer.expect::<Credit>().await.1;
    assert_eq!((credit.records, credit.bytes), (0, 32 + 1 + 200));
}
