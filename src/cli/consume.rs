//! `tidegate consume`.

use std::{collections::VecDeque, process::ExitCode, time::Duration};

use argh::FromArgs;
use client::{Client, Delivery, SettleConfirm, SettleError, SubscribeOptions, Subscription};
use serde::Serialize;
use tokio::{
    signal::unix::{signal, Signal, SignalKind},
    time::{sleep_until, Instant},
};

use super::{
    describe::{headers_json, plural, Bytes, HeaderJson},
    failure::Failure,
    output::Output,
    patience::Patience,
    session,
};
use crate::config::parse_duration;

/// Acknowledgements awaited at once; above it consuming waits.
const MAX_UNCONFIRMED: usize = 16 * 1024;
/// Records printed before they are handed to the system and acknowledged.
const TURN: usize = 256;
/// How long the end of the subscription is waited for.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How often the connection is looked at.
const WATCH: Duration = Duration::from_millis(500);

/// Consume records: print each payload as a line, then acknowledge it. Every
/// acknowledgement is confirmed before the command ends.
#[derive(Debug, FromArgs)]
#[argh(
    subcommand,
    name = "consume",
    help_triggers("-h", "--help"),
    note = "Without --max and --wait it goes on until SIGINT or SIGTERM, also over a restart of\n\
            the server. A record is acknowledged after its line was written, so that a crash of\n\
            this command can print a record twice, and never lose one."
)]
pub struct Consume {
    /// name of the queue
    #[argh(positional)]
    pub name: String,

    /// end after this many records (default: no limit)
    #[argh(option, arg_name = "n")]
    max: Option<u64>,

    /// end when no record has come for this long, like 2s; 0 takes only what
    /// is there (default: wait for ever)
    #[argh(option, arg_name = "dur", from_str_fn(parse_duration))]
    wait: Option<Duration>,

    /// do not acknowledge: the records go back to the queue when the command ends
    #[argh(switch)]
    no_ack: bool,

    /// server to consume from (default: 127.0.0.1:7420); several, as A,B,C or one after
    /// the other, are nodes of one cluster: any that answers
    #[argh(option, arg_name = "addr")]
    server: Vec<String>,

    /// print one JSON object per record
    #[argh(switch)]
    json: bool,
}

impl Consume {
    pub fn run(self) -> ExitCode {
        let server = self.server.clone();
        session::run(&server, self.json, |client, out| consume(client, out, self))
    }
}

#[derive(Serialize)]
struct DeliveryJson<'a> {
    offset: u64,
    partition: u16,
    generation: u32,
    attempt: u32,
    redelivered: bool,
    durable: bool,
    key: Bytes<'a>,
    headers: Vec<HeaderJson<'a>>,
    payload: Bytes<'a>,
}

/// How long `--wait 0` gives the server to send what is there.
const SHORTEST_WAIT: Duration = Duration::from_millis(100);

async fn consume(client: Client, mut out: Output, args: Consume) -> Result<(), Failure> {
    if args.max == Some(0) {
        return Ok(());
    }
    let options = SubscribeOptions {
        max_deliveries: args.max,
        ..SubscribeOptions::default()
    };
    let mut signals = Signals::new()?;
    let subscription = Patience::new()
        .ask(|| client.subscribe_with(&args.name, options))
        .await
        .map_err(|error| Failure::request("consume from queue", &args.name, error))?;
    let mut run = Run {
        client,
        subscription,
        acks: VecDeque::new(),
        problems: 0,
        unconfirmed: Unconfirmed::default(),
        connected: true,
        wait: args.wait.map(|wait| wait.max(SHORTEST_WAIT)),
        ack: !args.no_ack,
    };
    let ended = run.until_end(&mut out, &mut signals).await;
    while let Some(ack) = run.acks.pop_front() {
        run.settled(ack).await;
    }
    let (verdict, unconfirmed) = (run.verdict(), run.unconfirmed.line());
    run.subscription.close(CLOSE_TIMEOUT).await;
    if let (Err(_), Some(line)) = (&ended, unconfirmed) {
        eprintln!("tidegate: {line}");
    }
    ended.and(verdict)
}

struct Signals {
    interrupt: Signal,
    terminate: Signal,
}

impl Signals {
    fn new() -> Result<Self, Failure> {
        Ok(Signals {
            interrupt: signal(SignalKind::interrupt()).map_err(Failure::Runtime)?,
            terminate: signal(SignalKind::terminate()).map_err(Failure::Runtime)?,
        })
    }

    async fn any(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

/// Acknowledgements that were not confirmed: one line for all of them.
#[derive(Debug, Default)]
struct Unconfirmed {
    count: u64,
    /// Why the first was not.
    first: String,
}

impl Unconfirmed {
    fn add(&mut self, error: &SettleError) {
        if self.count == 0 {
            self.first = error.to_string();
        }
        self.count += 1;
    }

    fn line(&self) -> Option<String> {
        let first = &self.first;
        match self.count {
            0 => None,
            1 => Some(format!(
                "1 acknowledgement was not confirmed, so its record may come again: {first}"
            )),
            count => Some(format!(
                "{count} acknowledgements were not confirmed, so their records may come again; the first: {first}"
            )),
        }
    }
}

struct Run {
    client: Client,
    subscription: Subscription,
    acks: VecDeque<SettleConfirm>,
    problems: u64,
    unconfirmed: Unconfirmed,
    connected: bool,
    wait: Option<Duration>,
    ack: bool,
}

impl Run {
    async fn until_end(&mut self, out: &mut Output, signals: &mut Signals) -> Result<(), Failure> {
        let mut last = Instant::now();
        loop {
            let limit = self.wait.map(|wait| last + wait);
            let watch = Instant::now() + WATCH;
            let next = tokio::select! {
                biased;
                () = signals.any() => return Ok(()),
                next = self.subscription.next() => next,
                () = sleep_until(limit.unwrap_or(watch).min(watch)) => {
                    self.watch_connection();
                    if limit.is_some_and(|limit| limit <= Instant::now()) {
                        return self.waited();
                    }
                    continue;
                }
            };
            let Some(first) = next else { return Ok(()) };
            let mut turn = Vec::new();
            let mut next = Some(first);
            while let Some(item) = next {
                match item {
                    Ok(delivery) => {
                        print(out, &delivery).await?;
                        turn.push(delivery);
                    }
                    Err(error) => self.problem(&error.to_string()),
                }
                next = (turn.len() < TURN)
                    .then(|| self.subscription.try_next())
                    .flatten();
            }
            out.flush().await?;
            self.acknowledge(turn).await;
            last = Instant::now();
        }
    }

    /// Only what was seen to reach standard output is acknowledged.
    async fn acknowledge(&mut self, turn: Vec<Delivery>) {
        if !self.ack {
            return;
        }
        self.acks
            .extend(turn.into_iter().map(Delivery::ack_confirmed));
        while self.acks.len() > MAX_UNCONFIRMED {
            if let Some(ack) = self.acks.pop_front() {
                self.settled(ack).await;
            }
        }
    }

    async fn settled(&mut self, ack: SettleConfirm) {
        if let Err(error) = ack.await {
            self.unconfirmed.add(&error);
        }
    }

    /// What the command as a whole came to.
    fn verdict(&self) -> Result<(), Failure> {
        let named = (self.problems > 0).then(|| {
            let records = plural(self.problems, "record");
            format!("{records} met a problem named above")
        });
        let parts: Vec<String> = named.into_iter().chain(self.unconfirmed.line()).collect();
        if parts.is_empty() {
            return Ok(());
        }
        Err(Failure::Other(parts.join("; ")))
    }

    fn problem(&mut self, text: &str) {
        self.problems += 1;
        eprintln!("tidegate: {text}");
    }

    /// The wait is over: an empty queue is no failure, an absent server is.
    fn waited(&self) -> Result<(), Failure> {
        if self.client.is_connected() {
            return Ok(());
        }
        Err(Failure::Other(format!(
            "the connection to {} was lost and did not come back in time",
            self.client.server()
        )))
    }

    fn watch_connection(&mut self) {
        let connected = self.client.is_connected();
        if connected != self.connected {
            self.connected = connected;
            let server = self.client.server();
            if connected {
                eprintln!("tidegate: connected to {server} again");
            } else {
                eprintln!("tidegate: the connection to {server} was lost; connecting again");
            }
        }
    }
}

async fn print(out: &mut Output, delivery: &Delivery) -> Result<(), Failure> {
    if !out.json {
        return out.line(delivery.payload()).await;
    }
    let object = DeliveryJson {
        offset: delivery.offset(),
        partition: delivery.partition(),
        generation: delivery.generation(),
        attempt: delivery.attempt(),
        redelivered: delivery.redelivered(),
        durable: delivery.durable(),
        key: Bytes(delivery.key()),
        headers: headers_json(delivery.headers()),
        payload: Bytes(delivery.payload()),
    };
    out.object(&object).await
}
