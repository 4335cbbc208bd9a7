//! Declares many queues, or asks for them, and says how long that took:
//! `many_queues SERVER declare FROM TO`, `many_queues SERVER ask COUNT`.
//! Queue `n` is called `idle-n`; the modes take turns.

use std::{
    error::Error,
    sync::{
        atomic::{AtomicUsize, Ordering},
        Arc,
    },
    time::{Duration, Instant},
};

use tidegate_client::{Client, DeclareOptions, Mode};

/// Declares under way together.
const TOGETHER: usize = 64;
/// Whole lists, and infos, that are timed.
const LISTS: usize = 20;
const INFOS: usize = 1000;

fn name(number: usize) -> String {
    format!("idle-{number}")
}

/// Declares the queues `from..to`.
async fn declare(client: &Client, from: usize, to: usize) -> Result<(), Box<dyn Error>> {
    let begun = Instant::now();
    let next = Arc::new(AtomicUsize::new(from));
    let workers: Vec<_> = (0..TOGETHER)
        .map(|_| {
            let (client, next) = (client.clone(), next.clone());
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= to {
                        return Ok(());
                    }
                    let mode = Mode::ALL[number % Mode::ALL.len()];
                    let options = DeclareOptions::new(name(number)).mode(mode);
                    client.declare(options).await?;
                }
            })
        })
        .collect();
    for worker in workers {
        worker
            .await?
            .map_err(|error: tidegate_client::Error| error)?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    println!("declared {} queues in {seconds:.1} s", to - from);
    Ok(())
}

/// Lists all queues and asks for single ones, one request at a time.
async fn ask(client: &Client, count: usize) -> Result<(), Box<dyn Error>> {
    let mut lists = Vec::new();
    for _ in 0..LISTS {
        let begun = Instant::now();
        let queues = client.list().await?.len();
        lists.push(begun.elapsed());
        if queues != count {
            return Err(format!("{queues} queues are listed, not {count}").into());
        }
    }
    show("whole list", &mut lists);
    let mut infos = Vec::new();
    for ask in 0..INFOS {
        let name = name(ask * count / INFOS);
        let begun = Instant::now();
        client.info(&name).await?;
        infos.push(begun.elapsed());
    }
    show("info by name", &mut infos);
    Ok(())
}

fn show(what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e3;
    let (median, p99, most) = (at(50), at(99), at(100));
    println!("{what}: median {median:.2} ms, p99 {p99:.2} ms, at most {most:.2} ms");
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [server, "declare", from, to] => {
            declare(&Client::connect(server).await?, from.parse()?, to.parse()?).await
        }
        [server, "ask", count] => ask(&Client::connect(server).await?, count.parse()?).await,
        _ => Err("usage: many_queues SERVER declare FROM TO | ask COUNT".into()),
    }
}
