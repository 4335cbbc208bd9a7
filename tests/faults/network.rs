//! Peers that vanish without a word.

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use client::DeclareOptions;

use crate::support::{await_counts, server::Home, PATIENCE};

const QUEUE: &str = "halfopen";

/// A network namespace joined to this one by a veth pair; removed when dropped.
struct Namespace {
    name: String,
    host: String,
    peer: String,
}

fn ip(words: &[&str]) -> bool {
    let mut command = Command::new("ip");
    let output = command.args(words).stdin(Stdio::null()).output();
    output.is_ok_and(|output| output.status.success())
}

impl Namespace {
    /// The `number`th of this process; `None` without the right to make one, or without the `ip` command.
    fn new(number: u8) -> Option<Self> {
        let id = std::process::id() % 60_000;
        let (third, name) = (id / 250, format!("tg{id}x{number}"));
        let made = Namespace {
            host: format!("10.{}.{third}.1", 213 + number),
            peer: format!("{name}p"),
            name: name.clone(),
        };
        let near = format!("{name}h");
        let ready = ip(&["netns", "add", &name])
            && ip(&[
                "link", "add", &near, "type", "veth", "peer", "name", &made.peer,
            ])
            && ip(&["link", "set", &made.peer, "netns", &name])
            && ip(&["addr", "add", &format!("{}/30", made.host), "dev", &near])
            && ip(&["link", "set", &near, "up"])
            && made.inside(&[
                "addr",
                "add",
                &format!("10.{}.{third}.2/30", 213 + number),
                "dev",
                &made.peer,
            ])
            && made.inside(&["link", "set", &made.peer, "up"]);
        ready.then_some(made)
    }

    fn inside(&self, words: &[&str]) -> bool {
        ip(&[&["-n", &self.name], words].concat())
    }

    fn run(&self, words: &[&str]) -> Child {
        Command::new("ip")
            .args(["netns", "exec", &self.name, env!("CARGO_BIN_EXE_tidegate")])
            .args(words)
            .stdout(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// From here on no packet passes, in either direction.
    fn cut(&self) {
        assert!(self.inside(&["link", "set", &self.peer, "down"]));
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        ip(&["link", "del", &format!("{}h", self.name)]);
        ip(&["netns", "del", &self.name]);
    }
}

/// A window that stayed full for a while: its peer is not cut as long as it
/// answers, and missed as soon when it does not.
#[tokio::test]
async fn f51_records_held_by_a_peer_that_stopped_reading_and_then_vanished_come_back() {
    let Some(namespace) = Namespace::new(1) else {
        println!("F51: not run, network namespaces need root and the ip command");
        return;
    };
    let home = Home::new(1)
        .listening_on("0.0.0.0:0")
        .with("heartbeat = \"4s\"");
    let server = home.start();
    let address = format!("127.0.0.1:{}", server.address.port());
    let client = client::Client::connect(address).await.unwrap();
    let options = DeclareOptions::new(QUEUE).lease(Duration::from_secs(3600));
    client.declare(options).await.unwrap();
    let far = format!("{}:{}", namespace.host, server.address.port());
    let mut consumer = namespace.run(&["consume", QUEUE, "--no-ack", "--server", &far]);
    await_counts(&client, QUEUE, "the consumer", |c| c.consumers == 1).await;
    // `ip netns exec` has become the command.
    let stopped = Command::new("kill")
        .args(["-STOP", &consumer.id().to_string()])
        .status();
    assert!(stopped.unwrap().success());
    for _ in 0..100 {
        client
            .publish(QUEUE, vec![7; 100_000].as_slice())
            .await
            .unwrap();
    }
    // Longer than two heartbeats; then it still has what it was given.
    tokio::time::sleep(Duration::from_secs(11)).await;
    let held = client.info(QUEUE).await.unwrap().totals();
    assert!(held.leased > 0 && held.consumers == 1, "{held:?}");
    namespace.cut();
    let cut = std::time::Instant::now();
    let counts = await_counts(&client, QUEUE, "all to be back", |c| c.ready == 100).await;
    println!("F51: back after {:?} (two heartbeats: 8 s)", cut.elapsed());
    assert_eq!((counts.leased, counts.consumers), (0, 0));
    consumer.kill().unwrap();
    consumer.wait().unwrap();
}

#[tokio::test]
async fn f51_records_held_over_a_half_open_connection_come_back() {
    let Some(namespace) = Namespace::new(0) else {
        println!("F51: not run, network namespaces need root and the ip command");
        return;
    };
    let home = Home::new(1).listening_on("0.0.0.0:0");
    let server = home.start();
    let address = format!("127.0.0.1:{}", server.address.port());
    let client = client::Client::connect(address).await.unwrap();
    // Only the end of the connection can give them back in time.
    let options = DeclareOptions::new(QUEUE).lease(Duration::from_secs(3600));
    client.declare(options).await.unwrap();
    for _ in 0..10 {
        client.publish(QUEUE, "held").await.unwrap();
    }
    let far = format!("{}:{}", namespace.host, server.address.port());
    let mut consumer = namespace.run(&["consume", QUEUE, "--no-ack", "--server", &far]);
    await_counts(&client, QUEUE, "all to be leased", |c| c.leased == 10).await;
    namespace.cut();
    let cut = std::time::Instant::now();
    let counts = await_counts(&client, QUEUE, "all to be back", |c| c.ready == 10).await;
    println!("F51: back after {:?} (two heartbeats: 20 s)", cut.elapsed());
    assert!(cut.elapsed() < PATIENCE);
    assert_eq!((counts.leased, counts.consumers), (0, 0));
    consumer.kill().unwrap();
    consumer.wait().unwrap();
}
