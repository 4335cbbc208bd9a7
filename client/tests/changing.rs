//! Changing a queue's mode and copies, against a scripted peer: what is sent, when it is sent
//! again, and what is made of what partitions say.

mod support;

use support::{description, Server, QUEUE};
use tidegate_client::{ChangeOptions, Copies, ErrorCode, Mode, Setting, Standing};
use wire::{
    error::Outcome,
    message::{
        ChangeQueue, Extension, QueueChanged, QueueInfo, QueueInfoReply, ANY_REVISION,
        CHANGE_COPIES,
    },
    setting::InForce,
    vocabulary::Boundary,
};

fn done(revision: u32) -> QueueChanged {
    QueueChanged {
        changed: 1,
        revision,
        mode: Mode::Buffered as u8,
        copies: 255,
        ..Default::default()
    }
}

#[tokio::test]
async fn a_change_names_what_is_to_change_and_whether_its_revision_counts() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let mode = ChangeOptions::new("q").mode(Mode::Buffered);
    let answer = async {
        peer.locate(&[0]).await;
        let (correlation, sent) = peer.expect::<ChangeQueue>().await;
        assert_eq!((sent.queue_id, sent.mode), (QUEUE, Mode::Buffered as u8));
        assert_eq!((sent.flags, sent.revision), (0, ANY_REVISION));
        peer.send(correlation, &done(4)).await;
    };
    let (changed, ()) = tokio::join!(client.change(mode), answer);
    let setting = Setting {
        mode: Mode::Buffered,
        copies: Copies::All,
        revision: 4,
    };
    assert_eq!(changed.unwrap().setting, setting);
    let copies = ChangeOptions::new("q").copies(Copies::Majority).revision(4);
    let answer = async {
        peer.locate(&[0]).await;
        let (correlation, sent) = peer.expect::<ChangeQueue>().await;
        assert_eq!((sent.mode, sent.copies), (0, 0));
        assert_eq!((sent.flags, sent.revision), (CHANGE_COPIES, 4));
        peer.refuse(correlation, ErrorCode::StaleRevision, Outcome::Failed)
            .await;
    };
    let (refused, ()) = tokio::join!(client.change(copies), answer);
    let error = refused.unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::StaleRevision));
    assert!(!error.is_unknown());
}

/// The answer is lost with its connection: with a revision the same is asked again, without
/// one it is not known what happened.
#[tokio::test]
async fn a_change_whose_answer_is_lost_is_sent_again_if_it_names_a_revision() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let named = ChangeOptions::new("q").mode(Mode::Buffered).revision(3);
    let answer = async {
        peer.locate(&[0]).await;
        let (_, first) = peer.expect::<ChangeQueue>().await;
        drop(peer);
        let mut peer = server.accept().await;
        let (correlation, again) = peer.expect::<ChangeQueue>().await;
        assert_eq!(first, again);
        peer.send(correlation, &done(4)).await;
        peer
    };
    let (changed, mut peer) = tokio::join!(client.change(named), answer);
    assert_eq!(changed.unwrap().setting.revision, 4);
    let any = ChangeOptions::new("q").mode(Mode::Durable);
    let answer = async {
        peer.locate(&[0]).await;
        peer.expect::<ChangeQueue>().await;
        drop(peer);
    };
    let (changed, ()) = tokio::join!(client.change(any), answer);
    assert!(changed.unwrap_err().is_unknown());
}

#[tokio::test]
async fn settings_are_applied_when_each_partition_says_so() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let answer = async {
        for (standing, silent) in [
            (Standing::InForce, false),
            (Standing::Applied, true),
            (Standing::Applied, false),
        ] {
            peer.locate(&[0, 0]).await;
            for _ in 0..2 {
                let (correlation, info) = peer.expect::<QueueInfo>().await;
                if silent && info.partition == 1 {
                    let code = ErrorCode::Unavailable;
                    peer.refuse(correlation, code, Outcome::Failed).await;
                    continue;
                }
                let told = InForce {
                    mode: Mode::Buffered,
                    copies: 2,
                    revision: 5,
                    since: 70,
                    standing,
                    replicas: vec![(1, Some(Boundary::Durable)), (2, None)],
                    reason: "a reason".to_owned(),
                };
                // One of them has heard of the last change only.
                let revision = 4 + u32::from(info.partition == 0);
                let mut queue = description("q", &[0, 0]);
                queue.mode = Mode::Buffered as u8;
                queue.copies = 2;
                let body = QueueInfoReply {
                    queue,
                    partition: info.partition,
                    extensions: vec![
                        Extension {
                            kind: Extension::REVISION,
                            bytes: u32::to_le_bytes(revision).to_vec(),
                        },
                        Extension {
                            kind: Extension::IN_FORCE,
                            bytes: told.encode(),
                        },
                    ],
                    ..Default::default()
                };
                peer.send(correlation, &body).await;
            }
        }
    };
    let look = async {
        let mut seen = Vec::new();
        for _ in 0..3 {
            seen.push(client.settings("q").await.unwrap());
        }
        seen
    };
    let (seen, ()) = tokio::join!(look, answer);
    let applied: Vec<bool> = seen.iter().map(|it| it.are_applied(5)).collect();
    assert_eq!(applied, [false, false, true]);
    assert!(!seen[2].are_applied(6));
    assert_eq!(seen[0].desired.revision, 5);
    let error = seen[1].partitions[1].as_ref().unwrap_err();
    assert_eq!(error.code(), Some(ErrorCode::Unavailable));
    let first = seen[0].partitions[0].as_ref().unwrap();
    assert_eq!((first.since, first.reason.as_str()), (70, "a reason"));
    assert_eq!(first.replicas, [(1, Some(Boundary::Durable)), (2, None)]);
    assert_eq!(first.setting.copies, Copies::Exactly(2));
}
