//! Connections: hello, loss, silence, bad input from the server, requests.

mod support;

use std::time::Duration;

use support::{description, quick, soon, Server, PATIENCE, QUEUE};
use tidegate_client::{
    Client, ConnectError, DeclareOptions, Error, ErrorCode, Mode, PeekOptions, Reason,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use wire::{
    codec,
    error::Outcome,
    message::{
        Barrier, BarrierReply, Declare, Declared, Delete, Deleted, Error as ErrorBody, Frontiers,
        FrontiersReply, GoingAway, Hello, List, ListReply, Locate, LocateReply, Peek, PeekReply,
        Peeked, Ping, Pong, Purge, Purged, QueueInfo, QueueInfoReply,
    },
    record::RecordParts,
};

#[tokio::test]
async fn nobody_listening_is_a_clear_error() {
    let server = Server::start().await;
    let address = server.address.clone();
    drop(server);
    let error = soon("the refusal", Client::connect(&address))
        .await
        .unwrap_err();
    assert!(matches!(error, ConnectError::Unreachable { .. }));
    let text = error.to_string();
    assert!(text.contains(&address), "{text}");
}

#[tokio::test]
async fn a_patient_client_waits_for_its_server() {
    let server = Server::start().await;
    let builder = quick().patience(PATIENCE);
    let late = async {
        drop(server.accept_raw().await);
        drop(server.accept_raw().await);
        server.accept().await
    };
    let (client, _peer) = soon("the connection", async {
        tokio::join!(builder.connect(&server.address), late)
    })
    .await;
    client.unwrap();
}

#[tokio::test]
async fn a_peer_of_another_protocol_is_named_as_such() {
    let server = Server::start().await;
    let answer = async {
        let mut socket = server.accept_raw().await;
        socket
            .write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            .await
            .unwrap();
        socket
    };
    let (result, _socket) = tokio::join!(Client::connect(&server.address), answer);
    let error = result.unwrap_err();
    assert!(matches!(error, ConnectError::Hello { .. }), "{error:?}");
    assert!(error.to_string().contains("not a Tidegate frame"));
}

#[tokio::test]
async fn a_refused_hello_carries_the_servers_words() {
    let server = Server::start().await;
    let answer = async {
        let mut peer = support::Peer {
            socket: server.accept_raw().await,
            wished_shard: 0,
        };
        let (correlation, hello) = peer.expect::<Hello>().await;
        assert_eq!((hello.version_min, hello.version_max), (1, 1));
        peer.refuse(correlation, ErrorCode::LimitReached, Outcome::Failed)
            .await;
        peer
    };
    let (result, _peer) = tokio::join!(Client::connect(&server.address), answer);
    match result.unwrap_err() {
        ConnectError::Refused { code, message, .. } => {
            assert_eq!(code, ErrorCode::LimitReached as u16);
            assert!(message.contains("the test answers"));
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_server_that_stays_silent_after_accepting_times_out() {
    let server = Server::start().await;
    let builder = Client::builder().connect_timeout(Duration::from_millis(50));
    let (result, _socket) = tokio::join!(builder.connect(&server.address), server.accept_raw());
    assert!(matches!(result.unwrap_err(), ConnectError::Timeout { .. }));
}

#[tokio::test]
async fn nothing_is_sent_before_the_hello_reply() {
    let server = Server::start().await;
    let connect = quick().patience(PATIENCE).connect(&server.address);
    let watch = async {
        let mut socket = server.accept_raw().await;
        let mut bytes = vec![0; 4096];
        let mut seen = 0;
        // Everything that arrives in this time must be the hello alone.
        let _ = tokio::time::timeout(Duration::from_millis(50), async {
            loop {
                seen += socket.read(&mut bytes[seen..]).await.unwrap();
            }
        })
        .await;
        let length = u32::from_le_bytes(bytes[8..12].try_into().unwrap()) as usize;
        assert_eq!(seen, 24 + length);
        drop(socket);
        server.accept().await
    };
    let (client, _peer) = tokio::join!(connect, watch);
    client.unwrap();
}

#[tokio::test]
async fn f51_a_silent_server_is_pinged_and_then_given_up() {
    let server = Server::start().await;
    let (client, mut peer) = server
        .client_with(quick().heartbeat(Duration::from_millis(20)))
        .await;
    peer.expect::<Ping>().await;
    let again = server.accept().await;
    // The first connection is over, after some more pings.
    soon("its end", async {
        while peer.read_or_end().await.is_some() {}
    })
    .await;
    drop((client, again));
}

#[tokio::test]
async fn answered_pings_keep_a_quiet_connection() {
    let server = Server::start().await;
    let (client, mut peer) = server
        .client_with(quick().heartbeat(Duration::from_millis(20)))
        .await;
    for _ in 0..10 {
        let (correlation, _) = peer.expect::<Ping>().await;
        peer.send(correlation, &Pong::default()).await;
    }
    drop(client);
}

#[tokio::test]
async fn a_servers_ping_is_answered_with_its_correlation() {
    let server = Server::start().await;
    let (_client, mut peer) = server.client().await;
    peer.send(77, &Ping::default()).await;
    assert_eq!(peer.expect::<Pong>().await.0, 77);
}

#[tokio::test]
async fn bad_input_from_the_server_ends_the_connection_and_a_new_one_is_made() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let mut unknown_kind = vec![];
    codec::encode(&mut unknown_kind, 1, &Ping::default()).unwrap();
    let mut newer = unknown_kind.clone();
    let mut huge = unknown_kind.clone();
    let mut bad_body = Vec::new();
    codec::encode(&mut bad_body, 1, &GoingAway::default()).unwrap();
    unknown_kind[5] = 250;
    peer.socket.write_all(&unknown_kind).await.unwrap(); // passed over
    newer[4] = 9;
    huge[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
    bad_body[24..].fill(0xff);
    for bytes in [
        b"garbage that is no frame at all".to_vec(),
        newer,
        huge,
        bad_body,
    ] {
        peer.socket.write_all(&bytes).await.unwrap();
        peer = server.accept().await;
    }
    // And the client still works.
    let (queue, ()) = tokio::join!(client.locate("q"), peer.locate(&[0]));
    assert_eq!(queue.unwrap().queue_id, QUEUE);
}

#[tokio::test]
async fn an_answer_split_at_every_byte_is_read_whole() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let mut reply = Vec::new();
    let body = LocateReply {
        queue: description("q", &[0, 1]),
        ..Default::default()
    };
    codec::encode(&mut reply, 0, &body).unwrap();
    for cut in 1..reply.len() {
        let answer = async {
            let (correlation, _) = peer.expect::<Locate>().await;
            reply[16..24].copy_from_slice(&correlation.to_le_bytes());
            peer.socket.write_all(&reply[..cut]).await.unwrap();
            tokio::task::yield_now().await;
            peer.socket.write_all(&reply[cut..]).await.unwrap();
        };
        let (queue, ()) = tokio::join!(client.locate("q"), answer);
        assert_eq!(queue.unwrap().shards, [0, 1]);
    }
}

#[tokio::test]
async fn reads_are_asked_again_after_a_loss_and_effects_are_unknown() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let lose_twice = async {
        peer.expect::<Locate>().await;
        drop(peer);
        let mut peer = server.accept().await;
        peer.locate(&[0]).await;
        peer.expect::<Purge>().await;
        drop(peer);
        server.accept().await
    };
    let (purged, _peer) = soon("the purge", async {
        tokio::join!(client.purge("q"), lose_twice)
    })
    .await;
    let error = purged.unwrap_err();
    assert!(error.is_unknown());
    assert!(matches!(error.reason(), Reason::ConnectionLost { .. }));
}

#[tokio::test]
async fn a_request_without_answer_ends_with_its_timeout() {
    let server = Server::start().await;
    let (client, mut peer) = server
        .client_with(quick().request_timeout(Duration::from_millis(50)))
        .await;
    let read = soon("the timeout", client.locate("q")).await.unwrap_err();
    assert!(!read.is_unknown(), "a read that failed changed nothing");
    peer.expect::<Locate>().await;
    let declare = soon("the timeout", client.declare("q")).await.unwrap_err();
    assert!(declare.is_unknown(), "a declare may have happened");
}

#[tokio::test]
async fn an_error_for_the_connection_becomes_the_reason_of_the_loss() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let answer = async {
        peer.locate(&[0]).await;
        peer.expect::<Delete>().await;
        let body = ErrorBody {
            code: ErrorCode::Protocol as u16,
            outcome: Outcome::Unknown as u8,
            message: "you broke it".into(),
            ..Default::default()
        };
        peer.send(0, &body).await;
        peer
    };
    let (deleted, _peer) = tokio::join!(client.delete("q"), answer);
    match deleted.unwrap_err() {
        Error::Unknown {
            reason: Reason::ConnectionLost { cause, .. },
        } => assert_eq!(cause, "you broke it"),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_server_that_goes_away_gets_nothing_new_and_its_reason_is_told() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let drain = async {
        peer.locate(&[0]).await;
        peer.expect::<Purge>().await;
        let body = GoingAway {
            reason: "upgrade".into(),
            ..Default::default()
        };
        peer.send(0, &body).await;
        // A ping behind it, whose answer shows that the announcement was read.
        peer.send(1, &Ping::default()).await;
        peer.expect::<Pong>().await;
        let later = client.locate("later");
        let watch = async {
            let sent = tokio::time::timeout(Duration::from_millis(50), peer.read_or_end()).await;
            assert!(sent.is_err(), "something was sent to a draining server");
            drop(peer);
            server.accept().await.locate(&[0]).await;
        };
        tokio::join!(later, watch).0
    };
    let (purged, later) = soon("both", async { tokio::join!(client.purge("q"), drain) }).await;
    let error = purged.unwrap_err();
    assert!(error.is_unknown() && error.to_string().contains("upgrade"));
    assert_eq!(later.unwrap().name, "later");
}

#[tokio::test]
async fn f73_odd_names_are_refused_before_anything_is_sent() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    for name in ["", "\n", "a\0b", "\u{85}", &"n".repeat(256)] {
        let error = client.declare(name).await.unwrap_err();
        assert!(matches!(error.reason(), Reason::Invalid(_)), "{name:?}");
        assert!(client.publish(name, "x").await.is_err());
        assert!(client.info(name).await.is_err());
    }
    for name in ["a/b", "..", "%2F", "é", "e\u{301}", &"n".repeat(255)] {
        let answer = async {
            let (correlation, locate) = peer.expect::<Locate>().await;
            assert_eq!(locate.name, name);
            peer.refuse(correlation, ErrorCode::UnknownQueue, Outcome::Failed)
                .await;
        };
        let (located, ()) = tokio::join!(client.locate(name), answer);
        assert_eq!(located.unwrap_err().code(), Some(ErrorCode::UnknownQueue));
    }
}

#[tokio::test]
async fn declare_sends_only_what_was_said_and_reads_the_answer() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let options = DeclareOptions::new("q")
        .mode(Mode::Buffered)
        .lease(Duration::from_secs(5));
    let answer = async {
        let (correlation, declare) = peer.expect::<Declare>().await;
        assert_eq!((declare.mode, declare.lease_ms), (2, 5000));
        assert_eq!((declare.partitions, declare.copies), (0, 0));
        let body = Declared {
            created: 1,
            queue: description("q", &[0, 0]),
            ..Default::default()
        };
        peer.send(correlation, &body).await;
    };
    let (declared, ()) = tokio::join!(client.declare(options), answer);
    let declared = declared.unwrap();
    assert!(declared.created);
    assert_eq!(declared.queue.lease, Duration::from_secs(30));
    assert_eq!(declared.queue.shards.len(), 2);
}

#[tokio::test]
async fn list_goes_on_page_by_page() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let answer = async {
        for (after, names, more) in [("", vec!["a", "b"], 1), ("b", vec!["c"], 0)] {
            let (correlation, list) = peer.expect::<List>().await;
            assert_eq!(list.after, after);
            let body = ListReply {
                queues: names.iter().map(|name| description(name, &[0])).collect(),
                more,
                ..Default::default()
            };
            peer.send(correlation, &body).await;
        }
    };
    let (queues, ()) = tokio::join!(client.list(), answer);
    let names: Vec<_> = queues.unwrap().into_iter().map(|q| q.name).collect();
    assert_eq!(names, ["a", "b", "c"]);
}

#[tokio::test]
async fn what_is_per_partition_is_asked_of_each_and_added_up() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let answer = async {
        peer.locate(&[0, 0]).await;
        for _ in 0..2 {
            let (correlation, info) = peer.expect::<QueueInfo>().await;
            let body = QueueInfoReply {
                queue: description("q", &[0, 0]),
                partition: info.partition,
                ready: 10 + u64::from(info.partition),
                published: 100,
                oldest_ready_age_ms: 5 * u64::from(info.partition),
                ..Default::default()
            };
            peer.send(correlation, &body).await;
        }
    };
    let (info, ()) = tokio::join!(client.info("q"), answer);
    let info = info.unwrap();
    let totals = info.totals();
    assert_eq!((totals.ready, totals.published), (21, 200));
    assert_eq!(info.oldest_ready_age(), Duration::from_millis(5));

    let answer = async {
        peer.locate(&[0, 0]).await;
        for next in [5, 6] {
            let (correlation, _) = peer.expect::<Frontiers>().await;
            let body = FrontiersReply {
                written_next: next,
                durable_next: next - 1,
                ..Default::default()
            };
            peer.send(correlation, &body).await;
        }
    };
    let (frontiers, ()) = tokio::join!(client.frontiers("q"), answer);
    let ends: Vec<_> = frontiers
        .unwrap()
        .iter()
        .map(|f| (f.partition, f.written_next, f.durable_next))
        .collect();
    assert_eq!(ends, [(0, 5, 4), (1, 6, 5)]);

    let answer = async {
        peer.locate(&[0]).await;
        let (correlation, barrier) = peer.expect::<Barrier>().await;
        assert_eq!(barrier.deadline_ms, 1000);
        let body = BarrierReply {
            durable_next: 6,
            ..Default::default()
        };
        peer.send(correlation, &body).await;
    };
    let (reached, ()) = tokio::join!(client.barrier("q", Duration::from_secs(1)), answer);
    assert_eq!(reached.unwrap()[0].durable_next, 6);

    let answer = async {
        peer.locate(&[0, 0]).await;
        for records in [3, 4] {
            let (correlation, _) = peer.expect::<Purge>().await;
            let body = Purged {
                records,
                ..Default::default()
            };
            peer.send(correlation, &body).await;
        }
    };
    let (purged, ()) = tokio::join!(client.purge("q"), answer);
    assert_eq!(purged.unwrap(), 7);

    let answer = async {
        peer.locate(&[0]).await;
        let (correlation, delete) = peer.expect::<Delete>().await;
        let body = Deleted {
            queue_id: delete.queue_id,
            ..Default::default()
        };
        peer.send(correlation, &body).await;
    };
    let (deleted, ()) = tokio::join!(client.delete("q"), answer);
    assert_eq!(deleted.unwrap(), QUEUE);
}

#[tokio::test]
async fn peek_goes_on_behind_a_short_page_and_stops_at_its_maximum() {
    let server = Server::start().await;
    let (client, mut peer) = server.client().await;
    let answer = async {
        peer.locate(&[0, 0]).await;
        // Partition, from, payloads at offsets.
        let pages: [(u16, u64, &[u64]); 4] = [
            (0, 0, &[3, 4]),
            (0, 5, &[]),
            (1, 0, &[9]),
            (1, 10, &[11, 12]),
        ];
        for (partition, from, offsets) in pages {
            let (correlation, peek) = peer.expect::<Peek>().await;
            assert_eq!((peek.partition, peek.from_offset), (partition, from));
            let mut body = PeekReply::default();
            for offset in offsets {
                let before = body.records.len();
                let payload = offset.to_string();
                let parts = RecordParts {
                    payload: payload.as_bytes(),
                    ..Default::default()
                };
                parts.encode(&mut body.records).unwrap();
                body.peeked.push(Peeked {
                    offset: *offset,
                    state: 3,
                    attempts: 0,
                    len: (body.records.len() - before) as u32,
                });
            }
            peer.send(correlation, &body).await;
        }
    };
    let options = PeekOptions {
        max_records: 4,
        ..Default::default()
    };
    let (records, ()) = soon("the peek", async {
        tokio::join!(client.peek("q", options), answer)
    })
    .await;
    let seen: Vec<_> = records
        .unwrap()
        .into_iter()
        .map(|r| (r.partition, String::from_utf8(r.payload).unwrap()))
        .collect();
    let expected = [(0, "3"), (0, "4"), (1, "9"), (1, "11")];
    assert!(seen
        .iter()
        .map(|(partition, text)| (*partition, text.as_str()))
        .eq(expected));
}
