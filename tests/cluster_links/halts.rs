//! A queue whose group waits for an operator where confirmed records may be lost.

use client::{DeclareOptions, Mode, OnTotalLoss};

use crate::{
    admin::{assert_done, await_status, cut_power_of_all, declare, is_whole, list, publish, start},
    net::{said, Net},
    support::{
        server::{quick, Home},
        PATIENCE,
    },
};

/// Every machine loses power: the group of a queue that halts waits, and says so; the
/// others go on.
#[tokio::test]
async fn a_queue_that_halts_on_total_loss_waits_for_an_operator() {
    let net = Net::new(3);
    let mut nodes = start(&net, 1);
    let first = nodes[0].as_ref().unwrap().client_with(quick()).await;
    let halts = || {
        let options = DeclareOptions::new("careful").mode(Mode::Buffered);
        options.on_total_loss(OnTotalLoss::Halt)
    };
    declare(&first, "orders", Mode::Durable).await;
    let declared = first.declare(halts()).await.unwrap();
    assert!(declared.created);
    assert_eq!(declared.on_total_loss, OnTotalLoss::Halt);
    let otherwise = halts().on_total_loss(OnTotalLoss::Recover);
    let refused = first.declare(otherwise).await.unwrap_err().to_string();
    assert!(refused.contains("on_total_loss halt"), "{refused}");
    let durable = DeclareOptions::new("safe").on_total_loss(OnTotalLoss::Halt);
    let refused = first.declare(durable).await.unwrap_err().to_string();
    assert!(refused.contains("buffered and speculative"), "{refused}");
    publish(&first, "careful").await;
    let info = first.info("careful").await.unwrap();
    assert_eq!(info.on_total_loss(), OnTotalLoss::Halt);
    cut_power_of_all(&mut nodes);
    let one = nodes[0].as_ref().unwrap();
    let waits = await_status(one, "the group halts", |now| {
        let recoveries = list(&now["recoveries"]);
        recoveries.iter().any(|it| it["halted"] == true)
    });
    let halted = &list(&waits["recoveries"])[0];
    assert_eq!(halted["generation"], 1);
    let group = halted["group"].to_string();
    let calls = |words: &str| nodes.iter().flatten().any(|node| said(node, words) > 0);
    let begun = std::time::Instant::now();
    while !calls("(on_total_loss = halt)") {
        assert!(begun.elapsed() < PATIENCE, "nobody calls an operator");
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    // Others go on, and it is not only late.
    let client = one.client_with(quick()).await;
    publish(&client, "orders").await;
    let still = await_status(one, "its status", |_| true);
    assert_eq!(list(&still["recoveries"])[0]["halted"], true);
    let order = ["cluster", "recover", &group, "--accept-loss"];
    assert_done(&one.cli(&order), "goes on");
    await_status(one, "all is well again", is_whole);
    publish(&client, "careful").await;
    let partition = &client.info("careful").await.unwrap().partitions[0];
    assert_eq!(partition.losses.len(), 1);
}

#[tokio::test]
async fn a_lone_server_refuses_a_queue_that_halts() {
    let home = Home::new(1);
    let server = home.start();
    let client = server.client().await;
    let halts = DeclareOptions::new("careful").mode(Mode::Buffered);
    let refused = client.declare(halts.on_total_loss(OnTotalLoss::Halt)).await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("this server is alone"), "{refused}");
}
