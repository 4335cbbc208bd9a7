//! Standard output, written without stopping the connections meanwhile.

use serde::Serialize;
use tokio::io::{AsyncWriteExt, BufWriter, Stdout};

use super::failure::Failure;

/// Standard output behind a buffer. Nothing is seen before [`Output::flush`].
pub struct Output {
    writer: BufWriter<Stdout>,
    pub json: bool,
}

impl Output {
    pub fn new(json: bool) -> Self {
        Output {
            writer: BufWriter::with_capacity(64 * 1024, tokio::io::stdout()),
            json,
        }
    }

    /// Adds bytes and an end of line.
    pub async fn line(&mut self, bytes: impl AsRef<[u8]>) -> Result<(), Failure> {
        let all = async {
            self.writer.write_all(bytes.as_ref()).await?;
            self.writer.write_all(b"\n").await
        };
        all.await.map_err(Failure::Output)
    }

    /// Adds one JSON object as a line.
    pub async fn object(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        let text = serde_json::to_vec(value).map_err(|error| Failure::Other(error.to_string()))?;
        self.line(text).await
    }

    /// Hands everything to the system.
    pub async fn flush(&mut self) -> Result<(), Failure> {
        self.writer.flush().await.map_err(Failure::Output)
    }
}
