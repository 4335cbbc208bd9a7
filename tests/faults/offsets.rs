//! Where a confirm says that a record is, and what is there.

use std::{collections::HashMap, time::Duration};

use client::{Client, DeclareOptions, Mode, PeekOptions, Record};

use crate::support::{
    load::payload,
    server::{quick, Home},
    size, soon, Random,
};

const PARTITIONS: u16 = 2;
const UNANSWERED: usize = 32;

/// (partition, generation, offset).
type Place = (u16, u32, u64);

/// Publishes until nothing is taken any more; what was confirmed, and where.
async fn publish(client: Client, queue: String, mut random: Random) -> Vec<(Place, String)> {
    let publisher = client.publisher(&queue).await.unwrap();
    let mut waiting = std::collections::VecDeque::new();
    let mut confirmed = Vec::new();
    let mut dead = false;
    while !dead || !waiting.is_empty() {
        if !dead && waiting.len() < UNANSWERED {
            let id = format!("{:x}", random.next());
            let bytes = random.between(10, 9_000) as usize;
            match publisher.send(Record::new(&payload(&id, bytes))).await {
                Ok(confirm) => waiting.push_back((id, confirm)),
                Err(_) => dead = true,
            }
            continue;
        }
        let Some((id, confirm)) = waiting.pop_front() else {
            break;
        };
        match confirm.await {
            Ok(at) => confirmed.push(((at.partition, at.generation, at.offset), id)),
            // Unknown, or refused: none of this test's.
            Err(error) => dead |= error.code().is_none(),
        }
    }
    confirmed
}

/// F56: each confirmed place holds what was confirmed there, after every kill,
/// in the ring as in packed files.
#[tokio::test]
async fn f56_what_was_confirmed_at_an_offset_is_read_there() {
    let mut random = Random::new("F56");
    let home = Home::new(2).short_segments();
    let modes = [Mode::Durable, Mode::Buffered];
    let mut known: Vec<HashMap<Place, String>> = vec![HashMap::new(); modes.len()];
    for round in 0..size(4, 30) {
        let server = home.start();
        let client = server.client().await;
        let mut load = tokio::task::JoinSet::new();
        for (which, mode) in modes.iter().enumerate() {
            let options = DeclareOptions::new(mode.name())
                .mode(*mode)
                .partitions(PARTITIONS);
            client.declare(options).await.unwrap();
            check(&client, *mode, &known[which]).await;
            for _ in 0..2 {
                let builder = quick().publish_deadline(Duration::from_secs(2));
                let builder = builder.patience(Duration::from_millis(100));
                let client = server.client_with(builder).await;
                let random = random.fork();
                let name = mode.name().to_owned();
                load.spawn(async move { (which, publish(client, name, random).await) });
            }
        }
        let life = random.between(300, 1_000);
        tokio::time::sleep(Duration::from_millis(life)).await;
        server.kill();
        while let Some(done) = soon("the load to end", load.join_next()).await {
            let (which, confirmed) = done.unwrap();
            for (place, id) in confirmed {
                let before = known[which].insert(place, id);
                assert_eq!(before, None, "{place:?} in round {round}");
            }
        }
    }
    let server = home.start();
    let client = server.client().await;
    for (mode, known) in modes.iter().zip(&known) {
        check(&client, *mode, known).await;
        println!("F56: {} confirmed places of {}", known.len(), mode.name());
        assert!(known.len() > 100);
    }
    let packs = |shard: u16| {
        let directory = home.data().join(format!("shard-{shard:02}"));
        let names = std::fs::read_dir(directory).unwrap();
        names
            .filter(|entry| {
                let name = entry.as_ref().unwrap().file_name();
                name.to_string_lossy().starts_with("pack-")
            })
            .count()
    };
    assert!(
        packs(0) + packs(1) > 0,
        "nothing was read from packed files"
    );
    server.stop();
}

async fn check(client: &Client, mode: Mode, known: &HashMap<Place, String>) {
    let mut seen = HashMap::new();
    for partition in 0..PARTITIONS {
        let options = PeekOptions {
            partition: Some(partition),
            from_offset: 0,
            max_records: u32::MAX,
        };
        for record in client.peek(mode.name(), options).await.unwrap() {
            let place = (record.partition, record.generation, record.offset);
            let id = crate::support::load::id_of(&record.payload);
            assert_eq!(seen.insert(place, id), None);
        }
    }
    for (place, id) in known {
        assert_eq!(seen.get(place), Some(id), "{place:?} of {}", mode.name());
    }
}
