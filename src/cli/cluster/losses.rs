//! `tidegate cluster losses`: every loss report there is.

use client::Client;
use serde::Serialize;

use crate::cli::{failure::Failure, output::Output, patience::Patience};

#[derive(Serialize)]
struct LossJson<'a> {
    queue: &'a str,
    queue_id: u64,
    partition: u16,
    generation: u32,
    first_lost: u64,
    highest_known_confirmed_next: Option<u64>,
}

pub async fn losses(client: Client, mut out: Output) -> Result<(), Failure> {
    let patience = Patience::new();
    let listed = patience.ask(|| client.list()).await;
    let queues = listed.map_err(|error| Failure::Request {
        what: "cannot list the queues".to_owned(),
        error,
    })?;
    let mut none = true;
    for queue in &queues {
        let name = queue.name.as_str();
        let info = match patience.ask(|| client.info(name)).await {
            Ok(info) => info,
            // It was deleted meanwhile.
            Err(error) if error.code() == Some(client::ErrorCode::UnknownQueue) => continue,
            Err(error) => return Err(Failure::request("describe queue", name, error)),
        };
        for partition in &info.partitions {
            for loss in &partition.losses {
                none = false;
                if out.json {
                    let object = LossJson {
                        queue: name,
                        queue_id: info.queue.queue_id,
                        partition: partition.partition,
                        generation: loss.generation,
                        first_lost: loss.first_lost,
                        highest_known_confirmed_next: loss.highest_known_confirmed_next,
                    };
                    out.object(&object).await?;
                    continue;
                }
                let confirmed = match loss.highest_known_confirmed_next {
                    None => String::new(),
                    Some(next) => format!("; those below {next} are known to have been confirmed"),
                };
                out.line(format!(
                    "queue {name} partition {}: every offset of generation {} at or above {} is gone, every one below is there{confirmed}",
                    partition.partition, loss.generation, loss.first_lost
                ))
                .await?;
            }
        }
    }
    if none && !out.json {
        out.line("no queue has lost anything").await?;
    }
    out.flush().await
}
