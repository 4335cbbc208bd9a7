//! Several servers: whichever answers, the next when one is gone, and what may
//! be sent again.

mod support;

use std::time::Duration;

use support::{quick, redirect, soon, Peer, Server};
use tidegate_client::{Client, ConnectError, ErrorCode, Publisher, Reason, Servers};
use wire::{
    error::Outcome,
    message::{GoingAway, Publish},
};

/// An address at which nobody listens.
async fn nobody() -> String {
    Server::start().await.address
}

/// A client of both servers that is connected to the first.
async fn client_of(one: &Server, other: &Server) -> (Client, Peer) {
    let servers = Servers::from([one.address.as_str(), other.address.as_str()]);
    let (client, peer) = tokio::join!(quick().connect(servers), one.accept());
    (client.unwrap(), peer)
}

async fn publisher(client: &Client, peer: &mut Peer) -> Publisher {
    let (publisher, ()) = tokio::join!(client.publisher("q"), peer.locate(&[0]));
    publisher.unwrap()
}

async fn confirm_next(peer: &mut Peer, offset: u64) -> Publish {
    let (correlation, publish) = peer.expect::<Publish>().await;
    peer.confirm(correlation, &publish, offset).await;
    publish
}

#[tokio::test]
async fn the_first_server_that_answers_is_taken() {
    let server = Server::start().await;
    let servers = format!("{}, {}", nobody().await, server.address);
    let connect = Client::connect(servers.as_str());
    let (client, mut peer) = soon("the connection", async {
        tokio::join!(connect, server.accept())
    })
    .await;
    let client = client.unwrap();
    assert_eq!(client.server(), servers);
    publisher(&client, &mut peer).await;
}

#[tokio::test]
async fn an_error_names_every_address_that_was_tried() {
    let gone = [nobody().await, nobody().await, nobody().await];
    let error = soon("the refusal", Client::connect(gone.join(",")))
        .await
        .unwrap_err();
    let ConnectError::NoServer { failures } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(failures.len(), 3);
    for address in &gone {
        assert!(error.to_string().contains(address), "{error}");
    }
}

#[tokio::test]
async fn what_cannot_be_sent_names_every_address() {
    let (one, other) = (Server::start().await, Server::start().await);
    let (client, mut peer) = client_of(&one, &other).await;
    let publisher = publisher(&client, &mut peer).await;
    let publisher = publisher.deadline(Duration::from_millis(100));
    let gone = [one.address.clone(), other.address.clone()];
    drop((one, other, peer));
    // The first may still have found the old socket open.
    let error = loop {
        let failure = soon("the failure", publisher.publish("x")).await;
        let error = failure.unwrap_err();
        if !error.is_unknown() {
            break error;
        }
    };
    assert!(matches!(error.reason(), Reason::NotSent { .. }));
    for address in &gone {
        assert!(error.to_string().contains(address), "{error}");
    }
}

#[tokio::test]
async fn f13_the_next_server_gets_what_was_queued_and_never_what_was_sent() {
    let (one, other) = (Server::start().await, Server::start().await);
    let (client, mut first) = client_of(&one, &other).await;
    let publisher = publisher(&client, &mut first).await;
    let sent = publisher.send("sent").await.unwrap();
    first.expect::<Publish>().await;
    drop((first, one));
    assert!(soon("its end", sent).await.unwrap_err().is_unknown());
    let queued = publisher.send("queued").await.unwrap();
    let mut second = other.accept().await;
    let publish = confirm_next(&mut second, 5).await;
    assert_eq!(publish.count, 1);
    assert!(publish.records.ends_with(b"queued"));
    assert_eq!(soon("the confirm", queued).await.unwrap().offset, 5);
}

#[tokio::test]
async fn a_subscription_goes_on_at_the_next_server() {
    let (one, other) = (Server::start().await, Server::start().await);
    let (client, mut first) = client_of(&one, &other).await;
    let (subscription, before) = tokio::join!(client.subscribe("q"), async {
        first.locate(&[0]).await;
        first.subscribed().await
    });
    let mut subscription = subscription.unwrap();
    first.deliver(&before, 0, &["a", "b"]).await;
    let a = soon("a delivery", subscription.next()).await;
    assert_eq!(a.unwrap().unwrap().payload(), b"a");
    drop((first, one));
    let mut second = other.accept().await;
    let again = second.subscribed().await;
    assert_eq!(
        (again.queue_id, again.partition),
        (before.queue_id, before.partition)
    );
    second.deliver(&again, 0, &["a", "b"]).await;
    for payload in ["a", "b"] {
        let delivery = soon("a delivery", subscription.next()).await;
        let delivery = delivery.unwrap().unwrap();
        assert_eq!(delivery.payload(), payload.as_bytes());
    }
}

#[tokio::test]
async fn a_server_that_goes_away_is_left_once_it_owes_nothing() {
    let (one, other) = (Server::start().await, Server::start().await);
    let (client, mut first) = client_of(&one, &other).await;
    let publisher = publisher(&client, &mut first).await;
    let under_way = publisher.send("under way").await.unwrap();
    let (correlation, publish) = first.expect::<Publish>().await;
    let away = GoingAway {
        reason: "upgrade".into(),
        ..Default::default()
    };
    first.send(0, &away).await;
    first.confirm(correlation, &publish, 0).await;
    assert_eq!(soon("the confirm", under_way).await.unwrap().offset, 0);
    // The first has closed nothing.
    let mut second = other.accept().await;
    let later = publisher.publish("later");
    let (later, _) = tokio::join!(later, confirm_next(&mut second, 1));
    assert_eq!(later.unwrap().offset, 1);
    drop(first);
}

#[tokio::test]
async fn a_publish_that_was_put_off_is_sent_again_and_an_unknown_one_is_not() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let publisher = publisher(&client, &mut peer).await;
    let answer = async {
        for _ in 0..2 {
            let (correlation, _) = peer.expect::<Publish>().await;
            peer.refuse(correlation, ErrorCode::Unavailable, Outcome::Failed)
                .await;
        }
        confirm_next(&mut peer, 3).await
    };
    let (confirmed, last) = tokio::join!(publisher.publish("x"), answer);
    assert_eq!(confirmed.unwrap().offset, 3);
    assert!(last.records.ends_with(b"x"));
    let answer = async {
        let (correlation, _) = peer.expect::<Publish>().await;
        peer.refuse(correlation, ErrorCode::Unavailable, Outcome::Unknown)
            .await;
    };
    let (error, ()) = tokio::join!(publisher.publish("y"), answer);
    assert!(error.unwrap_err().is_unknown());
    // Nothing of it is sent again: the next frame is another record.
    let (_, next) = tokio::join!(publisher.publish("z"), confirm_next(&mut peer, 4));
    assert!(next.records.ends_with(b"z"));
}

#[tokio::test]
async fn a_publish_that_is_put_off_until_its_deadline_fails_with_the_servers_words() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let publisher = publisher(&client, &mut peer).await;
    let publisher = publisher.deadline(Duration::from_millis(120));
    let mut asked = 0;
    let publish = publisher.publish("x");
    let refuse = async {
        loop {
            let (correlation, _) = peer.expect::<Publish>().await;
            asked += 1;
            peer.refuse(correlation, ErrorCode::Unavailable, Outcome::Failed)
                .await;
        }
    };
    let error = soon("the failure", async {
        tokio::select! {
            confirmed = publish => confirmed.unwrap_err(),
            () = refuse => unreachable!(),
        }
    })
    .await;
    assert!(!error.is_unknown(), "{error}");
    assert_eq!(error.code(), Some(ErrorCode::Unavailable));
    assert!(asked >= 2, "{asked}");
}

#[tokio::test]
async fn a_client_that_is_told_not_to_gets_the_refusal_at_once() {
    let server = Server::start().await;
    let (client, mut peer) = server.client_with(quick().retry_publishes(false)).await;
    let publisher = publisher(&client, &mut peer).await;
    let refuse = async {
        let (correlation, _) = peer.expect::<Publish>().await;
        peer.refuse(correlation, ErrorCode::Unavailable, Outcome::Failed)
            .await;
    };
    let (error, ()) = tokio::join!(publisher.publish("x"), refuse);
    assert_eq!(error.unwrap_err().code(), Some(ErrorCode::Unavailable));
}

/// A client of node 1, told by it that node 2 leads, and both ends of its connections.
async fn led_elsewhere() -> (Client, Publisher, [Server; 2], [Peer; 2]) {
    let (one, mut two) = (Server::start().await, Server::start().await);
    two.node = 2;
    let (client, mut first) = one.client().await;
    let publisher = publisher(&client, &mut first).await;
    let (_, _) = tokio::join!(publisher.publish("a"), async {
        let (correlation, publish) = first.expect::<Publish>().await;
        first.send(0, &redirect(publish.partition, &two)).await;
        first.confirm(correlation, &publish, 0).await;
    });
    // Until the other connection stands, everything goes as before.
    let (_, second) = tokio::join!(
        async {
            tokio::join!(publisher.publish("b"), confirm_next(&mut first, 1))
                .0
                .unwrap()
        },
        two.accept()
    );
    soon("the connection to the leader", async {
        while client.nodes() != [1, 2] {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    (client, publisher, [one, two], [first, second])
}

#[tokio::test]
async fn publishes_go_straight_to_the_leader_that_was_told() {
    let (client, publisher, _servers, [mut first, mut second]) = led_elsewhere().await;
    let (met, _) = tokio::join!(publisher.publish("c"), confirm_next(&mut second, 2));
    assert_eq!(met.unwrap().offset, 2);
    // Everything else stays where it was.
    let (located, ()) = tokio::join!(client.locate("q"), first.locate(&[0]));
    located.unwrap();
}

#[tokio::test]
async fn a_record_waits_for_those_before_it_when_its_way_changes() {
    let (one, mut two) = (Server::start().await, Server::start().await);
    two.node = 2;
    let (client, mut first) = one.client().await;
    let publisher = publisher(&client, &mut first).await;
    let under_way = publisher.send("a").await.unwrap();
    let (correlation, publish) = first.expect::<Publish>().await;
    first.send(0, &redirect(publish.partition, &two)).await;
    let mut sent = Vec::new();
    // Goes by the first while the second is not connected.
    let accept = two.accept();
    tokio::pin!(accept);
    let mut second = loop {
        sent.push(publisher.send("more").await.unwrap());
        tokio::select! {
            second = &mut accept => break second,
            () = tokio::time::sleep(Duration::from_millis(1)) => {}
        }
    };
    soon("the connection to the leader", async {
        while client.nodes() != [1, 2] {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
    let later = publisher.send("later");
    tokio::pin!(later);
    let early = tokio::time::timeout(Duration::from_millis(50), &mut later).await;
    assert!(early.is_err(), "it overtakes those before it");
    first.confirm(correlation, &publish, 0).await;
    let mut offset = 1;
    while offset <= sent.len() as u64 {
        let publish = confirm_next(&mut first, offset).await;
        offset += u64::from(publish.count);
    }
    for confirm in sent {
        soon("a confirm", confirm).await.unwrap();
    }
    soon("under way", under_way).await.unwrap();
    let later = soon("its turn", later).await.unwrap();
    let publish = confirm_next(&mut second, offset).await;
    assert!(publish.records.ends_with(b"later"));
    assert_eq!(soon("a confirm", later).await.unwrap().offset, offset);
}

#[tokio::test]
async fn f13_when_the_leader_is_gone_the_first_node_gets_what_was_not_sent() {
    let (_client, publisher, [_one, two], [mut first, mut second]) = led_elsewhere().await;
    let sent = publisher.send("sent").await.unwrap();
    second.expect::<Publish>().await;
    drop((second, two));
    assert!(soon("its end", sent).await.unwrap_err().is_unknown());
    let (met, publish) = tokio::join!(publisher.publish("next"), confirm_next(&mut first, 9));
    assert_eq!(met.unwrap().offset, 9);
    assert!(publish.records.ends_with(b"next"));
}

#[tokio::test]
async fn what_a_leader_puts_off_goes_by_the_first_node_with_all_that_follows() {
    let (_client, publisher, _servers, [mut first, mut second]) = led_elsewhere().await;
    let off = publisher.send("off").await.unwrap();
    let (correlation, _) = second.expect::<Publish>().await;
    second
        .refuse(correlation, ErrorCode::Unavailable, Outcome::Failed)
        .await;
    let publish = confirm_next(&mut first, 5).await;
    assert!(publish.records.ends_with(b"off"));
    assert_eq!(soon("a confirm", off).await.unwrap().offset, 5);
    let (met, _) = tokio::join!(publisher.publish("next"), confirm_next(&mut first, 6));
    assert_eq!(met.unwrap().offset, 6);
}

#[tokio::test]
async fn a_leader_that_goes_away_owes_its_answers_and_gets_nothing_new() {
    let (_client, publisher, _servers, [mut first, mut second]) = led_elsewhere().await;
    let under_way = publisher.send("under way").await.unwrap();
    let (correlation, publish) = second.expect::<Publish>().await;
    let away = GoingAway {
        reason: "upgrade".into(),
        ..Default::default()
    };
    second.send(0, &away).await;
    second.confirm(correlation, &publish, 2).await;
    assert_eq!(soon("the confirm", under_way).await.unwrap().offset, 2);
    let (met, _) = tokio::join!(publisher.publish("next"), confirm_next(&mut first, 3));
    assert_eq!(met.unwrap().offset, 3);
}

#[tokio::test]
async fn a_client_that_is_told_not_to_stays_with_its_node() {
    let (one, mut two) = (Server::start().await, Server::start().await);
    two.node = 2;
    let (client, mut first) = one.client_with(quick().leader_aware(false)).await;
    let publisher = publisher(&client, &mut first).await;
    for offset in 0..3 {
        let answer = async {
            let (correlation, publish) = first.expect::<Publish>().await;
            first.send(0, &redirect(publish.partition, &two)).await;
            first.confirm(correlation, &publish, offset).await;
        };
        let (met, ()) = tokio::join!(publisher.publish("x"), answer);
        assert_eq!(met.unwrap().offset, offset);
    }
    assert_eq!(client.nodes(), [1]);
}

/// A node that is cut off from the others knows no leader, for good.
#[tokio::test]
async fn a_server_that_only_puts_off_is_left_for_the_next() {
    let (one, other) = (Server::start().await, Server::start().await);
    let (client, mut first) = client_of(&one, &other).await;
    let publisher = publisher(&client, &mut first).await;
    let publish = publisher.publish("x");
    let refuse = async {
        while let Some((header, _)) = first.read_or_end().await {
            first
                .refuse(header.correlation, ErrorCode::Unavailable, Outcome::Failed)
                .await;
        }
        let mut second = other.accept().await;
        let publish = confirm_next(&mut second, 4).await;
        assert!(publish.records.ends_with(b"x"));
        second
    };
    let (met, _second) = soon("the next server", async { tokio::join!(publish, refuse) }).await;
    assert_eq!(met.unwrap().offset, 4);
}
