//! Idempotent publishers: what is sent again, under which number, and when the
//! outcome remains unknown all the same.

mod support;

use std::time::Duration;

use support::{quick, soon, Peer, Server};
use tidegate_client::{Client, Error, ErrorCode, ProducerId, Publisher, Reason};
use wire::{error::Outcome, message::Publish};

const PRODUCER: ProducerId = ProducerId { id: 7, epoch: 3 };

async fn publisher(client: &Client, peer: &mut Peer) -> Publisher {
    let (publisher, ()) = tokio::join!(client.publisher("q"), peer.locate(&[0]));
    publisher.unwrap().idempotent(PRODUCER)
}

fn stamp(publish: &Publish) -> (u64, u32, u64) {
    (
        publish.producer_id,
        publish.producer_epoch,
        publish.sequence,
    )
}

#[tokio::test]
async fn f13_what_was_sent_when_the_connection_was_lost_is_sent_again_as_it_was() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let publisher = publisher(&client, &mut peer).await;
    let first = publisher.send("a").await.unwrap();
    let (_, before) = peer.expect::<Publish>().await;
    let second = publisher.send("b").await.unwrap();
    let (_, behind) = peer.expect::<Publish>().await;
    assert_eq!((stamp(&before), stamp(&behind)), ((7, 3, 0), (7, 3, 1)));
    drop(peer);
    // New ones neither join nor overtake.
    let third = publisher.send("c").await.unwrap();
    let mut peer = server.accept().await;
    for (offset, original) in [(4, &before), (5, &behind)] {
        let (correlation, again) = peer.expect::<Publish>().await;
        assert_eq!(stamp(&again), stamp(original));
        assert_eq!(again.records, original.records);
        peer.confirm(correlation, &again, offset).await;
    }
    let (correlation, last) = peer.expect::<Publish>().await;
    assert_eq!(stamp(&last), (7, 3, 2));
    assert!(last.records.ends_with(b"c"));
    peer.confirm(correlation, &last, 6).await;
    for (offset, confirm) in [(4, first), (5, second), (6, third)] {
        assert_eq!(soon("a confirm", confirm).await.unwrap().offset, offset);
    }
}

#[tokio::test]
async fn what_the_server_does_not_know_is_sent_again_and_what_it_says_for_good_is_not() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let publisher = publisher(&client, &mut peer).await;
    let answers = async {
        let (correlation, before) = peer.expect::<Publish>().await;
        peer.refuse(correlation, ErrorCode::Unavailable, Outcome::Unknown)
            .await;
        let (correlation, again) = peer.expect::<Publish>().await;
        assert_eq!(stamp(&again), stamp(&before));
        peer.confirm(correlation, &again, 9).await;
    };
    let (met, ()) = tokio::join!(publisher.publish("a"), answers);
    assert_eq!(met.unwrap().offset, 9);
    for (code, outcome) in [
        (ErrorCode::Fenced, Outcome::Failed),
        (ErrorCode::Forgotten, Outcome::Unknown),
    ] {
        let answer = async {
            let (correlation, _) = peer.expect::<Publish>().await;
            peer.refuse(correlation, code, outcome).await;
        };
        let (error, ()) = tokio::join!(publisher.publish("b"), answer);
        let error = error.unwrap_err();
        assert_eq!(error.code(), Some(code));
        assert_eq!(error.is_unknown(), outcome == Outcome::Unknown);
    }
}

#[tokio::test]
async fn what_could_not_be_sent_again_in_time_is_unknown_and_what_never_left_failed() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let publisher = publisher(&client, &mut peer).await;
    let publisher = publisher.deadline(Duration::from_millis(300));
    let sent = publisher.send("a").await.unwrap();
    peer.expect::<Publish>().await;
    drop((peer, server));
    let error = soon("its end", sent).await.unwrap_err();
    assert!(error.is_unknown(), "{error}");
    assert!(matches!(error.reason(), Reason::NotSentAgain), "{error}");
    let error = soon("its end", publisher.publish("b")).await.unwrap_err();
    assert!(matches!(error, Error::Failed { .. }), "{error}");
}

#[tokio::test]
async fn numbers_wait_for_the_oldest_without_an_answer() {
    let server = Server::start().await;
    let (client, mut peer) = server.client_with(quick()).await;
    let publisher = publisher(&client, &mut peer).await;
    let mut confirms = Vec::new();
    let mut frames = Vec::new();
    for _ in 0..16 {
        confirms.push(publisher.send("x").await.unwrap());
        frames.push(peer.expect::<Publish>().await);
    }
    confirms.push(publisher.send("later").await.unwrap());
    let sent = tokio::time::timeout(Duration::from_millis(50), peer.read_or_end()).await;
    assert!(sent.is_err(), "a number that could be forgotten");
    // Not the oldest.
    let (correlation, publish) = &frames[5];
    peer.confirm(*correlation, publish, 5).await;
    let sent = tokio::time::timeout(Duration::from_millis(50), peer.read_or_end()).await;
    assert!(sent.is_err(), "a number that could be forgotten");
    let (correlation, publish) = &frames[0];
    peer.confirm(*correlation, publish, 0).await;
    let (_, next) = peer.expect::<Publish>().await;
    assert_eq!(stamp(&next), (7, 3, 16));
}
