//! This version reads what was left behind, to the last record.

use crate::fixture::{offline, served, Unpacked};

async fn holds_what_it_held(name: &str) {
    let fixture = Unpacked::new(name);
    let before = fixture.files();
    assert_eq!(offline(&fixture.home), fixture.holds["offline"], "{name}");
    assert_eq!(fixture.files(), before, "{name}: a look changed something");
    assert_eq!(
        served(&fixture.home).await,
        fixture.holds["served"],
        "{name}"
    );
}

/// A checkpoint with packed files, a clean marker, two generations.
#[tokio::test]
async fn a_stopped_directory_is_read() {
    holds_what_it_held("stopped").await;
}

/// The same, later: records leased, and the log without a clean end.
#[tokio::test]
async fn a_killed_directory_is_read() {
    holds_what_it_held("killed").await;
}

#[tokio::test]
async fn a_latched_directory_is_read() {
    holds_what_it_held("latched").await;
}
