//! Power cuts under load. Of a durable or speculative queue nothing confirmed
//! is lost and nothing settled comes back; of a buffered one exactly what the
//! report names.

use std::time::Duration;

use client::Mode;

use crate::{
    machine::Machine,
    support::{server::Server, size, Random},
    traffic::{finish, Between, Load, Queue},
};

#[tokio::test]
async fn a_durable_queue_survives_power_cuts() {
    cut_loop(&[Mode::Durable], "dsync").await;
}

#[tokio::test]
async fn a_buffered_queue_loses_what_the_report_says() {
    cut_loop(&[Mode::Buffered], "auto").await;
}

#[tokio::test]
async fn a_speculative_queue_survives_power_cuts() {
    cut_loop(&[Mode::Speculative], "fdatasync").await;
}

#[tokio::test]
async fn queues_of_all_modes_on_one_log_survive_power_cuts() {
    cut_loop(&Mode::ALL, "auto").await;
}

async fn cut_loop(modes: &[Mode], sync_method: &str) {
    let names: Vec<&str> = modes.iter().map(|mode| mode.name()).collect();
    let name = format!("power cuts {}", names.join("+"));
    let mut random = Random::new(&name);
    let method = format!("sync_method = \"{sync_method}\"");
    let machine = Machine::new(1, &mut random, |home| home.with(&method));
    let Some(mut machine) = machine else { return };
    let mut queues: Vec<Queue> = (0..2)
        .flat_map(|number| modes.iter().map(move |mode| Queue::new(*mode, number)))
        .collect();
    let mut what = Between::PowerCut;
    let mut round = 0;
    while machine.totals.cuts < size(4, 50) {
        round += 1;
        if random.between(0, 3) == 0 {
            cut_a_start(&mut machine, &mut random);
            what = match what {
                Between::CleanStop => Between::CleanStopThenCutStart,
                _ => Between::PowerCut,
            };
        }
        let server = machine.home.start();
        let client = server.client().await;
        for queue in &mut queues {
            queue.check(&client, what).await;
            queue.declare(&client).await;
        }
        let load = Load::start(&server, &queues, round, true, &mut random).await;
        what = end(&mut machine, server, round, &mut random).await;
        load.stop(&queues).await;
    }
    let server = machine.home.start();
    finish(&mut machine, server, &mut queues, what, &name).await;
}

/// The power goes while the server starts.
fn cut_a_start(machine: &mut Machine, random: &mut Random) {
    let server = machine.home.spawn();
    let changes = random.between(1, 80);
    let report = machine.cut_after(server, changes, Duration::from_millis(500));
    println!("  a start, {changes} changes: {report:?}");
}

/// Lets the load run for a while and ends the server's life.
async fn end(
    machine: &mut Machine,
    mut server: Server,
    round: usize,
    random: &mut Random,
) -> Between {
    let life = Duration::from_millis(random.between(20, 1000));
    let by_count = random.between(0, 3) == 0;
    if !by_count {
        tokio::time::sleep(life).await;
        server.assert_alive();
    }
    let report = match random.between(0, 9) {
        _ if by_count => {
            // The load runs in this thread: it must not wait here.
            let changes = random.between(1, 3000);
            machine.disk.cut_after(changes);
            let until = tokio::time::Instant::now() + life;
            let mut report = None;
            while report.is_none() && tokio::time::Instant::now() < until {
                tokio::time::sleep(Duration::from_millis(1)).await;
                report = machine.disk.await_cut(Duration::ZERO);
            }
            let report = report.unwrap_or_else(|| machine.disk.cut());
            machine.fall(server, report)
        }
        0..=4 => machine.cut(server),
        5 | 6 => machine.kill_then_cut(server),
        7 => {
            // Signalled while the load runs in this thread.
            let stopped = tokio::task::spawn_blocking(|| server.stop());
            stopped.await.expect("a clean stop");
            let report = machine.cut_stopped();
            println!("  round {round}: a clean stop, {report:?}");
            return Between::CleanStop;
        }
        _ => {
            machine.kill(server);
            println!("  round {round}: a process kill");
            return Between::ProcessKill;
        }
    };
    println!("  round {round}: {report:?}");
    Between::PowerCut
}
