//! Subscriptions in a cluster: to the node that leads the partition, wherever that is.

mod support;

use std::time::Duration;

use support::{
    asks_straight, deliver_frame, ends_as, quick, redirect, send_on, soon, Peer, Server,
};
use tidegate_client::{Client, Delivery, ErrorCode, SettleError, SubscribeOptions, Subscription};
use tokio::io::AsyncWriteExt;
use wire::{
    error::Outcome,
    frame::Kind,
    message::{Credit, GoingAway, Ping, Pong, Settle, Subscribe},
};

const OPTIONS: SubscribeOptions = SubscribeOptions {
    credit_records: 4,
    credit_bytes: 1 << 20,
    max_deliveries: None,
};

/// Node 1, which clients connect to, and node 2.
async fn nodes() -> (Server, Server) {
    let (one, mut two) = (Server::start().await, Server::start().await);
    two.node = 2;
    (one, two)
}

async fn put_off(peer: &mut Peer) {
    let (correlation, _) = peer.expect::<Subscribe>().await;
    peer.refuse(correlation, ErrorCode::Unavailable, Outcome::Failed)
        .await;
}

/// Subscribed by node 1 to a queue of one partition, of which node 2 leads.
async fn led_elsewhere(one: &Server, two: &Server) -> (Client, Subscription, Subscribe, [Peer; 2]) {
    let (client, mut first) = one.client().await;
    let answer = async {
        first.locate(&[0]).await;
        send_on(&mut first, two).await;
        let mut second = two.accept().await;
        let subscribe = second.subscribed().await;
        (second, subscribe)
    };
    let subscribe = client.subscribe_with("q", OPTIONS);
    let (subscription, (second, to)) = soon("the subscription", async {
        tokio::join!(subscribe, answer)
    })
    .await;
    assert_eq!((to.credit_records, to.credit_bytes), (4, 1 << 20));
    (client, subscription.unwrap(), to, [first, second])
}

async fn take(subscription: &mut Subscription) -> Delivery {
    soon("a delivery", subscription.next())
        .await
        .expect("the stream goes on")
        .expect("a delivery")
}

#[tokio::test]
async fn deliveries_settles_and_credit_go_by_the_leader_that_was_told() {
    let (one, two) = nodes().await;
    let (client, mut subscription, to, [mut first, mut second]) = led_elsewhere(&one, &two).await;
    assert_eq!(client.nodes(), [1, 2]);
    second.deliver(&to, 0, &["a", "b"]).await;
    let (a, b) = (take(&mut subscription).await, take(&mut subscription).await);
    assert_eq!((a.payload(), b.payload()), (&b"a"[..], &b"b"[..]));
    let credit = second.expect::<Credit>().await.1;
    assert_eq!((credit.subscription, credit.records), (to.subscription, 2));
    let confirm = a.ack_confirmed();
    let (correlation, settle) = second.expect::<Settle>().await;
    assert_eq!(settle.items.len(), 1);
    let body = wire::message::SettleConfirm {
        accepted: 1,
        boundary: 2,
        copies: 2,
        ..Default::default()
    };
    second.send(correlation, &body).await;
    assert_eq!(soon("the settle", confirm).await.unwrap().copies, 2);
    b.ack();
    second.expect::<Settle>().await;
    drop(subscription);
    let (header, _) = second.read().await;
    assert_eq!(Kind::from_raw(header.kind), Some(Kind::Unsubscribe));
    // Nothing of it went by the first: its next frame is of something else.
    let (located, ()) = tokio::join!(client.locate("q"), first.locate(&[0]));
    located.unwrap();
}

/// The second subscription knows the way, and asks nobody else.
#[tokio::test]
async fn a_leader_that_is_known_and_connected_to_is_asked_first() {
    let (one, two) = nodes().await;
    let (client, _subscription, _, [mut first, mut second]) = led_elsewhere(&one, &two).await;
    let answer = async {
        first.locate(&[0]).await;
        second.subscribed().await
    };
    let (again, to) = tokio::join!(client.subscribe_with("q", OPTIONS), answer);
    let mut again = again.unwrap();
    assert!(asks_straight(&to));
    second.deliver(&to, 0, &["x"]).await;
    assert_eq!(take(&mut again).await.payload(), b"x");
}

#[tokio::test]
async fn partitions_of_several_leaders_come_from_each_in_one_stream() {
    let (one, two) = nodes().await;
    let mut three = Server::start().await;
    three.node = 3;
    let (client, mut first) = one.client().await;
    let answer = async {
        first.locate(&[0, 0, 0]).await;
        for _ in 0..3 {
            let (correlation, subscribe) = first.expect::<Subscribe>().await;
            let to = match subscribe.partition {
                1 => &two,
                2 => &three,
                _ => {
                    first.accept_subscribe(correlation, &subscribe).await;
                    first.deliver(&subscribe, 0, &["0"]).await;
                    continue;
                }
            };
            first.send(0, &redirect(subscribe.partition, to)).await;
            first
                .refuse(correlation, ErrorCode::NotOwner, Outcome::Failed)
                .await;
        }
        let mut peers = Vec::new();
        for (server, partition, payload) in [(&two, 1, "1"), (&three, 2, "2")] {
            let mut peer = server.accept().await;
            let to = peer.subscribed().await;
            assert_eq!(to.partition, partition);
            peer.deliver(&to, 0, &[payload]).await;
            peers.push(peer);
        }
        (first, peers)
    };
    let (subscription, _peers) = tokio::join!(client.subscribe_with("q", OPTIONS), answer);
    let mut subscription = subscription.unwrap();
    let mut seen = Vec::new();
    for _ in 0..3 {
        let delivery = take(&mut subscription).await;
        seen.push((delivery.partition(), delivery.payload().to_vec()));
    }
    seen.sort();
    let all = [(0, b"0".to_vec()), (1, b"1".to_vec()), (2, b"2".to_vec())];
    assert_eq!(seen, all);
    assert_eq!(client.nodes(), [1, 2, 3]);
}

/// F40: what the lost leader delivered is stale; the next one delivers it again.
#[tokio::test]
async fn f40_when_the_leader_is_gone_the_first_node_tells_the_next_one() {
    let (one, two) = nodes().await;
    let mut three = Server::start().await;
    three.node = 3;
    let (_client, mut subscription, to, [mut first, mut second]) = led_elsewhere(&one, &two).await;
    second.deliver(&to, 0, &["taken", "acked", "waits"]).await;
    let taken = take(&mut subscription).await;
    let acked = take(&mut subscription).await.ack_confirmed();
    loop {
        let (header, _) = second.read().await;
        if Kind::from_raw(header.kind) == Some(Kind::Settle) {
            break;
        }
    }
    drop((second, two));
    match soon("the loss", acked).await {
        Err(SettleError::Request(error)) => assert!(error.is_unknown()),
        other => panic!("{other:?}"),
    }
    // An election is under way, then it is over.
    put_off(&mut first).await;
    send_on(&mut first, &three).await;
    let mut third = three.accept().await;
    let again = third.subscribed().await;
    assert_eq!((again.credit_records, again.partition), (4, 0));
    let refused = soon("the refusal", taken.ack_confirmed()).await;
    assert!(matches!(refused, Err(SettleError::Stale { .. })));
    let out = deliver_frame(&again, 0, &["taken", "waits"], 2, |_| ());
    third.socket.write_all(&out).await.unwrap();
    for payload in [&b"taken"[..], b"waits"] {
        let delivery = take(&mut subscription).await;
        assert_eq!((delivery.payload(), delivery.attempt()), (payload, 2));
    }
}

#[tokio::test]
async fn a_leader_that_hands_over_sends_its_consumers_to_the_next() {
    let (one, two) = nodes().await;
    let (_client, mut subscription, _, [mut first, mut second]) = led_elsewhere(&one, &two).await;
    let away = GoingAway {
        reason: "the leader moved".into(),
        ..Default::default()
    };
    second.send(0, &away).await;
    drop(second);
    // The first one leads now.
    let to = first.subscribed().await;
    assert!(asks_straight(&to));
    first.deliver(&to, 0, &["x"]).await;
    assert_eq!(take(&mut subscription).await.payload(), b"x");
}

#[tokio::test]
async fn a_leader_that_does_not_serve_just_now_is_looked_for_anew() {
    let (one, two) = nodes().await;
    let (_client, mut subscription, _, [mut first, second]) = led_elsewhere(&one, &two).await;
    drop(second);
    send_on(&mut first, &two).await;
    let mut second = two.accept().await;
    put_off(&mut second).await;
    let to = first.subscribed().await;
    first.deliver(&to, 0, &["x"]).await;
    assert_eq!(take(&mut subscription).await.payload(), b"x");
}

/// It put the subscription off once, and knew a leader then: it is not cut off.
#[tokio::test]
async fn a_node_that_tells_the_way_is_not_left_for_the_next() {
    let (one, two) = nodes().await;
    let other = Server::start().await;
    let servers = [one.address.as_str(), other.address.as_str()];
    let beat = Duration::from_millis(500);
    let connect = quick().heartbeat(beat).connect(servers);
    let (client, mut first) = tokio::join!(connect, one.accept());
    let client = client.unwrap();
    let answer = async {
        first.locate(&[0]).await;
        send_on(&mut first, &two).await;
        two.accept().await.subscribed().await;
    };
    let (_subscription, ()) = tokio::join!(client.subscribe_with("q", OPTIONS), answer);
    put_off(&mut first).await;
    send_on(&mut first, &two).await;
    let mut second = two.accept().await;
    second.subscribed().await;
    // More of them than fit into the time after which a node is left.
    tokio::join!(answer_pings(&mut first, 6), answer_pings(&mut second, 6));
}

async fn answer_pings(peer: &mut Peer, count: u32) {
    for _ in 0..count {
        let (correlation, _) = peer.expect::<Ping>().await;
        peer.send(correlation, &Pong::default()).await;
    }
}

/// Deliveries, settles and credit of a client that reaches node 1 alone.
async fn comes_through(client: Client, first: &mut Peer, two: &Server) {
    let answer = async {
        first.locate(&[0]).await;
        send_on(first, two).await;
        let to = first.subscribed().await;
        assert!(!asks_straight(&to));
        assert_eq!((to.credit_records, to.credit_bytes), (4, 1 << 20));
        first.deliver(&to, 0, &["a", "b"]).await;
    };
    let subscribe = client.subscribe_with("q", OPTIONS);
    let (subscription, ()) = soon("the subscription", async {
        tokio::join!(subscribe, answer)
    })
    .await;
    let mut subscription = subscription.unwrap();
    take(&mut subscription).await.ack();
    assert_eq!(take(&mut subscription).await.payload(), b"b");
    let mut kinds = Vec::new();
    for _ in 0..2 {
        kinds.extend(Kind::from_raw(first.read().await.0.kind));
    }
    assert!(kinds.contains(&Kind::Credit) && kinds.contains(&Kind::Settle));
    assert_eq!(client.nodes(), [1]);
}

#[tokio::test]
async fn where_the_leader_refuses_connections_deliveries_go_through_the_first_node() {
    let (one, mut two) = nodes().await;
    let (client, mut first) = one.client().await;
    // Nobody listens there any more.
    two.address = Server::start().await.address;
    comes_through(client, &mut first, &two).await;
}

/// A packet filter, or an address behind another network: nobody answers.
#[tokio::test]
async fn where_the_leader_does_not_answer_deliveries_go_through_the_first_node() {
    let (one, two) = nodes().await;
    let (client, mut first) = one.client().await;
    // Its port takes connections, and the hello is never answered.
    comes_through(client, &mut first, &two).await;
}

/// An address that leads to another node, as behind a load balancer.
#[tokio::test]
async fn where_another_node_answers_deliveries_go_through_the_first_node() {
    let (one, mut two) = nodes().await;
    let (client, mut first) = one.client().await;
    two.node = 3;
    let answers = async {
        let _other = two.accept().await;
        std::future::pending::<()>().await;
    };
    let mut told = Server::start().await;
    (told.node, told.address) = (2, two.address.clone());
    let served = async {
        let answer = async {
            first.locate(&[0]).await;
            send_on(&mut first, &told).await;
            let to = first.subscribed().await;
            assert!(!asks_straight(&to));
            first.deliver(&to, 0, &["a"]).await;
        };
        let (subscription, ()) = tokio::join!(client.subscribe_with("q", OPTIONS), answer);
        let mut subscription = subscription.unwrap();
        assert_eq!(take(&mut subscription).await.payload(), b"a");
    };
    soon("the delivery", async {
        tokio::select! {
            () = served => {}
            () = answers => {}
        }
    })
    .await;
}

/// Two nodes that each name the other one: it comes to rest.
#[tokio::test]
async fn a_subscription_that_is_sent_on_and_on_stays_in_the_end() {
    let (one, two) = nodes().await;
    let (client, mut first) = one.client().await;
    let answer = async {
        first.locate(&[0]).await;
        send_on(&mut first, &two).await;
        let mut second = two.accept().await;
        loop {
            send_on(&mut second, &one).await;
            let (correlation, subscribe) = first.expect::<Subscribe>().await;
            if !asks_straight(&subscribe) {
                break first
                    .refuse(correlation, ErrorCode::LimitReached, Outcome::Failed)
                    .await;
            }
            first.send(0, &redirect(0, &two)).await;
            first
                .refuse(correlation, ErrorCode::NotOwner, Outcome::Failed)
                .await;
        }
    };
    let subscribe = client.subscribe_with("q", OPTIONS);
    let (refused, ()) = soon("rest", async { tokio::join!(subscribe, answer) }).await;
    assert_eq!(refused.unwrap_err().code(), Some(ErrorCode::LimitReached));
}

#[tokio::test]
async fn a_client_that_is_told_not_to_asks_for_no_way() {
    let (one, _two) = nodes().await;
    let (client, mut first) = one.client_with(quick().leader_aware(false)).await;
    let answer = async {
        first.locate(&[0]).await;
        first.subscribed().await
    };
    let (_subscription, to) = tokio::join!(client.subscribe_with("q", OPTIONS), answer);
    assert!(!asks_straight(&to));
}

#[tokio::test]
async fn a_queue_that_is_gone_at_the_leader_ends_the_partition() {
    let (one, two) = nodes().await;
    let (_client, mut subscription, _, [mut first, second]) = led_elsewhere(&one, &two).await;
    drop(second);
    send_on(&mut first, &two).await;
    let mut second = two.accept().await;
    let (correlation, _) = second.expect::<Subscribe>().await;
    second
        .refuse(correlation, ErrorCode::UnknownQueue, Outcome::Failed)
        .await;
    ends_as(&mut subscription, ErrorCode::UnknownQueue).await;
}

/// It is over while it is on its way: nobody delivers to it.
#[tokio::test]
async fn a_subscription_that_is_dropped_on_its_way_arrives_nowhere() {
    let (one, two) = nodes().await;
    let (client, subscription, _, [mut first, second]) = led_elsewhere(&one, &two).await;
    drop(second);
    let (correlation, subscribe) = first.expect::<Subscribe>().await;
    drop(subscription);
    first.send(0, &redirect(subscribe.partition, &two)).await;
    first
        .refuse(correlation, ErrorCode::NotOwner, Outcome::Failed)
        .await;
    // Another subscription passes it, if it comes.
    let answer = async {
        let (header, _) = first.read().await;
        assert_eq!(Kind::from_raw(header.kind), Some(Kind::Unsubscribe));
        first.locate(&[0]).await;
        let mut second = two.accept().await;
        second.subscribed().await
    };
    let (_other, to) = tokio::join!(client.subscribe_with("q", OPTIONS), answer);
    assert_ne!(to.subscription, subscribe.subscription);
}

/// The same while its leader is being connected to.
#[tokio::test]
async fn a_subscription_that_is_given_up_while_it_waits_arrives_nowhere() {
    let (one, two) = nodes().await;
    let (client, mut first) = one.client().await;
    let answer = async {
        first.locate(&[0]).await;
        let subscribe = send_on(&mut first, &two).await;
        (two.accept_raw().await, subscribe)
    };
    let subscribe = client.subscribe_with("q", OPTIONS);
    let (socket, given_up) = tokio::select! {
        answer = answer => answer,
        _ = subscribe => panic!("nobody answered it"),
    };
    let mut second = two.greet(socket).await;
    soon("the connection to the leader", async {
        while client.nodes() != [1, 2] {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let answer = async {
        first.locate(&[0]).await;
        second.subscribed().await
    };
    let (_other, to) = tokio::join!(client.subscribe_with("q", OPTIONS), answer);
    assert_ne!(to.subscription, given_up.subscription);
}

/// The limit holds on every connection that it comes by.
#[tokio::test]
async fn a_limited_stream_asks_the_next_leader_for_what_is_left() {
    let (one, two) = nodes().await;
    let (client, mut first) = one.client().await;
    let options = SubscribeOptions {
        max_deliveries: Some(3),
        ..OPTIONS
    };
    let answer = async {
        first.locate(&[0]).await;
        send_on(&mut first, &two).await;
        let mut second = two.accept().await;
        let to = second.subscribed().await;
        assert_eq!(to.credit_records, 3);
        second.deliver(&to, 0, &["a", "b"]).await;
        second
    };
    let (subscription, second) = tokio::join!(client.subscribe_with("q", options), answer);
    let mut subscription = subscription.unwrap();
    for _ in 0..2 {
        take(&mut subscription).await.ack();
    }
    drop(second);
    let again = first.subscribed().await;
    assert_eq!(again.credit_records, 1);
    first.deliver(&again, 2, &["c"]).await;
    assert_eq!(take(&mut subscription).await.payload(), b"c");
    assert!(soon("the end", subscription.next()).await.is_none());
}

/// A client behind the pause of its connection attempts does not wait it out.
#[tokio::test]
async fn a_leader_that_is_back_is_connected_to_at_once() {
    let (one, two) = nodes().await;
    let hour = Duration::from_secs(3600);
    let builder = quick().backoff(hour, hour);
    let (client, mut first) = one.client_with(builder).await;
    let answer = async {
        first.locate(&[0]).await;
        send_on(&mut first, &two).await;
        let mut second = two.accept().await;
        second.subscribed().await;
        second
    };
    let (subscription, second) = tokio::join!(client.subscribe_with("q", OPTIONS), answer);
    let mut subscription = subscription.unwrap();
    drop(second);
    send_on(&mut first, &two).await;
    let mut second = two.accept().await;
    let to = second.subscribed().await;
    second.deliver(&to, 0, &["x"]).await;
    assert_eq!(take(&mut subscription).await.payload(), b"x");
}
