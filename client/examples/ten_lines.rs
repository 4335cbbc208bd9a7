//! Declare, publish, consume, acknowledge: `cargo run --example ten_lines`.

use tidegate_client::Client;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let client = Client::connect("127.0.0.1:7420").await?;
    client.declare("greetings").await?;
    println!("{}", client.publish("greetings", "hello").await?);
    let mut deliveries = client.subscribe("greetings").await?;
    if let Some(delivery) = deliveries.next().await.transpose()? {
        println!("{}", String::from_utf8_lossy(delivery.payload()));
        delivery.ack_confirmed().await?;
    }
    Ok(())
}
