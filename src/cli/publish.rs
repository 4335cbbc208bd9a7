//! `tidegate publish`.

use std::{path::PathBuf, process::ExitCode, time::Duration};

use argh::FromArgs;
use client::{
    Batch, Client, Confirm, Confirmed, Error, ErrorCode, ProducerId, Publisher, Reason, Record,
};
use serde::Serialize;
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    sync::{mpsc, watch},
};
use wire::limits::MAX_RECORD_BYTES;

use super::{
    check_name, failure::Failure, output::Output, patience::Patience, queue::parse_positive,
    session,
};

/// Confirms awaited at once; above it reading input waits.
const PIPELINE: usize = 16 * 1024;

/// Publish records and print one confirm per record, in order:
/// offset, generation, partition, the boundary that was met (written survives
/// a process crash, durable a power cut) and on how many copies.
#[derive(Debug, FromArgs)]
#[argh(
    subcommand,
    name = "publish",
    help_triggers("-h", "--help"),
    note = "Without RECORD and --file, each line of standard input is one record; they are\n\
            pipelined. Nothing more is sent after the first that fails. A record that was sent\n\
            and lost its connection is reported as unknown: it may have been stored. With several\n\
            servers it is sent to the next again instead, until its deadline, and stored once.\n\
            A record that starts with a dash goes behind two dashes: publish NAME -- -x"
)]
pub struct Publish {
    /// name of the queue
    #[argh(positional)]
    pub name: String,

    /// the record
    #[argh(positional)]
    pub record: Option<String>,

    /// publish the contents of this file as one record
    #[argh(option, arg_name = "file")]
    file: Option<PathBuf>,

    /// confirm at durable, whatever the queue's mode
    #[argh(switch)]
    pub durable: bool,

    /// key of the records; records of one key go to one partition
    #[argh(option)]
    key: Option<String>,

    /// each record is confirmed, failed or unknown after this long, like 5s
    /// (default: 30s)
    #[argh(option, arg_name = "dur", from_str_fn(parse_positive))]
    deadline: Option<Duration>,

    /// server to publish to (default: 127.0.0.1:7420); several, as A,B,C or one after
    /// the other, are nodes of one cluster: any that answers
    #[argh(option, arg_name = "addr")]
    server: Vec<String>,

    /// print one JSON object per record, also for those that fail
    #[argh(switch)]
    json: bool,
}

impl Publish {
    pub fn check(&self) -> Result<(), String> {
        if self.record.is_some() && self.file.is_some() {
            return Err("a record and --file exclude each other; give one of them".to_owned());
        }
        check_name(&self.name)
    }

    pub fn run(self) -> ExitCode {
        let named = self.server.clone();
        let several = session::servers(&named).addresses().len() > 1;
        session::run(&named, self.json, |client, out| {
            publish(client, out, several, self)
        })
    }
}

/// When nothing else is said: the client's own default.
const DEADLINE: Duration = Duration::from_secs(30);

async fn publish(
    client: Client,
    mut out: Output,
    several: bool,
    args: Publish,
) -> Result<(), Failure> {
    let feeder = Feeder {
        client: &client,
        name: &args.name,
        durable: args.durable,
        deadline: args.deadline.unwrap_or(DEADLINE),
        key: args.key.as_deref().unwrap_or_default().as_bytes(),
        several,
    };
    let publisher = Patience::within(feeder.deadline)
        .ask(|| feeder.publisher(feeder.deadline))
        .await
        .map_err(|error| Failure::request("publish to queue", &args.name, error))?;
    let single = match (&args.record, &args.file) {
        (Some(record), _) => Some(record.clone().into_bytes()),
        (None, Some(path)) => Some(read_file(path).await?),
        (None, None) => None,
    };
    let (confirms, queue) = mpsc::channel(PIPELINE);
    let (stop, stopped) = watch::channel(false);
    let feed = async {
        // Owned here, so that the end of the input ends the printing.
        let confirms = confirms;
        match single {
            Some(payload) => {
                let sent = feeder.first(&publisher, 0, &payload).await;
                // Without a printer nobody learns of it.
                let _ = confirms.send(sent).await;
            }
            None => {
                let mut lines = Lines::new(stopped);
                feeder.lines(&publisher, &confirms, &mut lines).await?;
            }
        }
        Ok(())
    };
    let (fed, printed) = tokio::join!(feed, print_confirms(&client, &mut out, queue, stop));
    let mut result = printed?;
    out.flush().await?;
    if let Some(failure) = result.first.take() {
        return Err(result.explain(&args.name, failure));
    }
    fed
}

/// A record on its way to the printer.
enum Sent {
    Waiting(Confirm),
    Known(Result<Confirmed, Error>),
}

/// Hands records to the client.
struct Feeder<'a> {
    client: &'a Client,
    name: &'a str,
    durable: bool,
    deadline: Duration,
    key: &'a [u8],
    /// There is another node to learn from what became of a record whose connection
    /// was lost: it is sent again there, and stored once.
    several: bool,
}

impl Feeder<'_> {
    async fn publisher(&self, deadline: Duration) -> Result<Publisher, Error> {
        let publisher = self.client.publisher(self.name).await?;
        let publisher = publisher.durable(self.durable).deadline(deadline);
        Ok(match self.several {
            true => publisher.idempotent(ProducerId::random()),
            false => publisher,
        })
    }

    /// Each line is a record. The first of each partition go one by one, since
    /// their groups may still be starting; what follows is pipelined.
    async fn lines(
        &self,
        publisher: &Publisher,
        confirms: &mpsc::Sender<Sent>,
        lines: &mut Lines,
    ) -> Result<(), Failure> {
        let first = if self.key.is_empty() {
            u64::from(publisher.partitions())
        } else {
            1
        };
        let mut number = 0;
        while let Some(line) = lines.next().await? {
            let sent = if number < first {
                self.first(publisher, number, line).await
            } else {
                match publisher.send(Record::new(line).key(self.key)).await {
                    Ok(confirm) => Sent::Waiting(confirm),
                    Err(error) => Sent::Known(Err(error)),
                }
            };
            let failed = matches!(sent, Sent::Known(Err(_)));
            // Without a printer nobody learns of more.
            if confirms.send(sent).await.is_err() || failed {
                return Ok(());
            }
            number += 1;
        }
        Ok(())
    }

    /// Publishes the `number`th record and awaits its confirm; again while
    /// its group is starting.
    async fn first(&self, publisher: &Publisher, number: u64, payload: &[u8]) -> Sent {
        let partition = if self.key.is_empty() {
            (number % u64::from(publisher.partitions().max(1))) as u16
        } else {
            publisher.partition_of(self.key)
        };
        let patience = Patience::within(self.deadline);
        let outcome = patience.ask(|| self.once(partition, payload, patience.left()));
        Sent::Known(outcome.await)
    }

    async fn once(
        &self,
        partition: u16,
        payload: &[u8],
        left: Option<Duration>,
    ) -> Result<Confirmed, Error> {
        let mut batch = Batch::new();
        batch
            .push(Record::new(payload).key(self.key))
            .map_err(|error| Error::Failed {
                reason: Reason::Invalid(error),
            })?;
        let publisher = self.publisher(left.unwrap_or(self.deadline)).await?;
        publisher.send_batch_to(partition, &batch).await?.await
    }
}

/// The lines of standard input, until the printer says stop.
struct Lines {
    input: BufReader<tokio::io::Stdin>,
    line: Vec<u8>,
    number: u64,
    stopped: watch::Receiver<bool>,
}

impl Lines {
    fn new(stopped: watch::Receiver<bool>) -> Self {
        Lines {
            input: BufReader::with_capacity(128 * 1024, tokio::io::stdin()),
            line: Vec::new(),
            number: 0,
            stopped,
        }
    }

    /// The next line without its end; the last one may lack it.
    async fn next(&mut self) -> Result<Option<&[u8]>, Failure> {
        self.number += 1;
        self.line.clear();
        let more = tokio::select! {
            biased;
            _ = self.stopped.wait_for(|stop| *stop) => return Ok(None),
            more = read_line(&mut self.input, &mut self.line, self.number) => more?,
        };
        Ok(more.then_some(self.line.as_slice()))
    }
}

/// Reads up to the next end of line; false at the end of the input.
async fn read_line(
    input: &mut BufReader<tokio::io::Stdin>,
    line: &mut Vec<u8>,
    number: u64,
) -> Result<bool, Failure> {
    loop {
        let bytes = input.fill_buf().await.map_err(Failure::ReadInput)?;
        if bytes.is_empty() {
            return Ok(!line.is_empty());
        }
        let end = bytes.iter().position(|byte| *byte == b'\n');
        let taken = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or_default();
        if line.len() + taken.len() > MAX_RECORD_BYTES as usize {
            return Err(Failure::LineTooLarge { line: number });
        }
        line.extend_from_slice(taken);
        let consumed = taken.len() + usize::from(end.is_some());
        input.consume(consumed);
        if end.is_some() {
            return Ok(true);
        }
    }
}

async fn read_file(path: &PathBuf) -> Result<Vec<u8>, Failure> {
    let failed = |source| Failure::ReadFile {
        path: path.clone(),
        source,
    };
    // One small file, read before anything is published.
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut bytes = Vec::new();
    let limit = u64::from(MAX_RECORD_BYTES);
    std::io::Read::read_to_end(&mut std::io::Read::take(file, limit + 1), &mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > limit {
        return Err(Failure::FileTooLarge { path: path.clone() });
    }
    Ok(bytes)
}

/// What became of all records.
#[derive(Debug, Default)]
struct Tally {
    confirmed: u64,
    failed: u64,
    unknown: u64,
    /// Number of the first record that was not confirmed, and why.
    first: Option<(u64, Error)>,
}

impl Tally {
    fn explain(&self, name: &str, (number, error): (u64, Error)) -> Failure {
        let total = self.confirmed + self.failed + self.unknown;
        if total == 1 {
            return Failure::request("publish to queue", name, error);
        }
        if error.code() == Some(ErrorCode::UnknownQueue) && self.confirmed == 0 {
            return Failure::UnknownQueue {
                name: name.to_owned(),
            };
        }
        Failure::Other(format!(
            "record {number} was not confirmed: {error}; of {total} records sent {} were \
             confirmed, {} failed and {} are unknown, and nothing more was sent",
            self.confirmed, self.failed, self.unknown
        ))
    }
}

#[derive(Serialize)]
#[serde(tag = "outcome", rename_all = "lowercase")]
enum OutcomeJson {
    Confirmed {
        record: u64,
        offset: u64,
        generation: u32,
        partition: u16,
        boundary: &'static str,
        copies: u8,
    },
    Failed {
        record: u64,
        error: String,
    },
    Unknown {
        record: u64,
        error: String,
    },
}

impl OutcomeJson {
    fn new(record: u64, outcome: &Result<Confirmed, Error>) -> Self {
        match outcome {
            Ok(confirmed) => OutcomeJson::Confirmed {
                record,
                offset: confirmed.offset,
                generation: confirmed.generation,
                partition: confirmed.partition,
                boundary: confirmed.boundary.name(),
                copies: confirmed.copies,
            },
            Err(Error::Failed { reason }) => OutcomeJson::Failed {
                record,
                error: reason.to_string(),
            },
            Err(Error::Unknown { reason }) => OutcomeJson::Unknown {
                record,
                error: reason.to_string(),
            },
        }
    }
}

/// Prints each confirm in order; tells the input to stop after a failure.
async fn print_confirms(
    client: &Client,
    out: &mut Output,
    mut queue: mpsc::Receiver<Sent>,
    stop: watch::Sender<bool>,
) -> Result<Tally, Failure> {
    let mut tally = Tally::default();
    let mut number = 0;
    loop {
        let sent = match queue.try_recv() {
            Ok(sent) => Some(sent),
            Err(_) => {
                out.flush().await.inspect_err(|_| {
                    stop.send_replace(true);
                })?;
                queue.recv().await
            }
        };
        let Some(sent) = sent else { return Ok(tally) };
        number += 1;
        let outcome = match sent {
            Sent::Known(outcome) => outcome,
            Sent::Waiting(mut confirm) => {
                let ready = tokio::select! {
                    biased;
                    outcome = &mut confirm => Some(outcome),
                    () = std::future::ready(()) => None,
                };
                match ready {
                    Some(outcome) => outcome,
                    None => {
                        out.flush().await.inspect_err(|_| {
                            stop.send_replace(true);
                        })?;
                        confirm.await
                    }
                }
            }
        };
        tally.count(number, &outcome);
        if let Err(error) = &outcome {
            stop.send_replace(true);
            if matches!(error.reason(), Reason::ConnectionLost { .. }) {
                // What was not sent yet would wait for a reconnect.
                client.close(Duration::ZERO).await;
            }
        }
        print_outcome(out, number, &outcome).await?;
    }
}

async fn print_outcome(
    out: &mut Output,
    number: u64,
    outcome: &Result<Confirmed, Error>,
) -> Result<(), Failure> {
    match outcome {
        _ if out.json => out.object(&OutcomeJson::new(number, outcome)).await,
        Ok(confirmed) => out.line(confirmed.to_string()).await,
        // Named on standard error, so that standard output has confirms only.
        Err(_) => Ok(()),
    }
}

impl Tally {
    fn count(&mut self, number: u64, outcome: &Result<Confirmed, Error>) {
        match outcome {
            Ok(_) => self.confirmed += 1,
            Err(Error::Failed { .. }) => self.failed += 1,
            Err(Error::Unknown { .. }) => self.unknown += 1,
        }
        if let (Err(error), None) = (outcome, &self.first) {
            self.first = Some((number, error.clone()));
        }
    }
}
