//! This version reads what was left behind, to the last record.

use serde_json::Value;

use crate::fixture::{offline, served, Unpacked};

/// The first thing that is not as it was. What later versions say beside it is
/// their matter.
fn difference(was: &Value, is: &Value, path: &str) -> Option<String> {
    let differ = || Some(format!("{path}: was {was}, is {is}"));
    match (was, is) {
        (Value::Object(was), Value::Object(is)) => was.iter().find_map(|(key, value)| {
            let found = is.get(key).unwrap_or(&Value::Null);
            difference(value, found, &format!("{path}/{key}"))
        }),
        (Value::Array(was), Value::Array(is)) if was.len() != is.len() => {
            Some(format!("{path}: was {} long, is {}", was.len(), is.len()))
        }
        (Value::Array(was), Value::Array(is)) => {
            let mut pairs = was.iter().zip(is).enumerate();
            pairs.find_map(|(at, (was, is))| difference(was, is, &format!("{path}/{at}")))
        }
        _ if was == is => None,
        _ => differ(),
    }
}

async fn holds_what_it_held(name: &str) {
    let fixture = Unpacked::new(name);
    let before = fixture.files();
    let looked = offline(&fixture.home);
    assert_eq!(difference(&fixture.holds["offline"], &looked, name), None);
    assert!(
        fixture.files() == before,
        "{name}: a look changed something"
    );
    let served = served(&fixture.home).await;
    assert_eq!(difference(&fixture.holds["served"], &served, name), None);
    let names = |value: &Value| value.as_object().unwrap().keys().cloned().collect();
    let (was, is): (Vec<_>, Vec<_>) = (names(&fixture.holds["served"]), names(&served));
    assert_eq!(was, is, "{name}: its queues");
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

#[test]
fn a_difference_is_seen_anywhere_and_more_than_was_is_none() {
    let was = serde_json::json!({ "a": [1, { "b": "x" }], "c": null });
    for (is, expected) in [
        (
            serde_json::json!({ "a": [1, { "b": "x", "new": 1 }], "new": 2 }),
            None,
        ),
        (
            serde_json::json!({ "a": [1, { "b": "y" }] }),
            Some("/a/1/b: was \"x\", is \"y\""),
        ),
        (
            serde_json::json!({ "a": [1, {}] }),
            Some("/a/1/b: was \"x\", is null"),
        ),
        (
            serde_json::json!({ "a": [1] }),
            Some("/a: was 2 long, is 1"),
        ),
    ] {
        assert_eq!(difference(&was, &is, "").as_deref(), expected);
    }
}
