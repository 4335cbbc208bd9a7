//! Running one command against a server.

use std::{future::Future, process::ExitCode, time::Duration};

use client::{Client, Servers};

use super::{failure::Failure, output::Output};

/// Where a server listens unless it is told otherwise.
const DEFAULT_SERVER: &str = "127.0.0.1:7420";

/// How long a command waits at its end for what is still under way.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(10);

/// What this program calls itself towards servers.
pub const NAME: &str = concat!("tidegate-cli/", env!("CARGO_PKG_VERSION"));

/// The servers named, or the default.
pub fn servers(named: &[String]) -> Servers {
    match named {
        [] => Servers::from(DEFAULT_SERVER),
        named => Servers::from(named),
    }
}

/// Connects to one of `servers` (none named: the default), runs `command`,
/// closes, and reports a failure.
pub fn run<F, Fut>(named: &[String], json: bool, command: F) -> ExitCode
where
    F: FnOnce(Client, Output) -> Fut,
    Fut: Future<Output = Result<(), Failure>>,
{
    let servers = servers(named);
    run_alone(json, |out| async {
        let client = Client::builder().name(NAME).connect(servers).await?;
        let result = command(client.clone(), out).await;
        client.close(CLOSE_TIMEOUT).await;
        result
    })
}

/// Runs a command that connects by itself, and reports a failure.
pub fn run_alone<F, Fut>(json: bool, command: F) -> ExitCode
where
    F: FnOnce(Output) -> Fut,
    Fut: Future<Output = Result<(), Failure>>,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return report(Err(Failure::Runtime(error))),
    };
    let result = runtime.block_on(async { command(Output::new(json)).await });
    // A read of standard input may still be under way and would be waited for.
    runtime.shutdown_background();
    report(result)
}

fn report(result: Result<(), Failure>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("tidegate: {failure}");
            ExitCode::FAILURE
        }
    }
}
