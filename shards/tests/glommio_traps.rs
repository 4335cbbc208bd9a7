//! The traps of glommio 0.9 that were found by measuring, each kept shut by
//! what the driver may not contain, or must.

use std::{fs, path::Path};

/// The driver's sources without comment lines and tests, by path below its directory.
fn driver_sources() -> Vec<(String, String)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/driver");
    let mut sources = Vec::new();
    gather(&directory, "", &mut sources);
    sources.sort();
    assert!(
        sources.len() > 10,
        "the driver moved: point this test at it"
    );
    sources
}

fn gather(directory: &Path, prefix: &str, sources: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            gather(&path, &format!("{prefix}{name}/"), sources);
            continue;
        }
        let code = fs::read_to_string(&path)
            .unwrap()
            .lines()
            .take_while(|line| *line != "#[cfg(test)]")
            .filter(|line| !line.trim_start().starts_with("//"))
            .collect::<Vec<_>>()
            .join("\n");
        sources.push((format!("{prefix}{name}"), code));
    }
}

fn refuse(needle: &str, why: &str) {
    for (file, code) in driver_sources() {
        assert!(!code.contains(needle), "{file} uses {needle}: {why}");
    }
}

fn source(name: &str) -> String {
    let found = driver_sources().into_iter().find(|(file, _)| file == name);
    found.unwrap_or_else(|| panic!("{name} is gone")).1
}

#[test]
fn t1_the_first_file_of_an_executor_has_content() {
    let code = source("bringup.rs");
    let first = code
        .find("self.first_file().await?")
        .expect("the first file is opened");
    let shard = code.find("Shard::new(").expect("the shard is made");
    assert!(
        first < shard,
        "segments are opened by the shard: the first file comes before"
    );
}

#[test]
fn t2_no_task_is_cancelled_or_dropped() {
    refuse(".cancel()", "a cancelled task leaks its allocation");
    for (file, code) in driver_sources() {
        let spawns = code.matches("glommio::spawn_local").count();
        let detached = code.matches(".detach()").count();
        assert_eq!(
            spawns, detached,
            "{file}: every task is detached and runs to completion"
        );
    }
}

#[test]
fn t3_executors_are_made_once_per_process() {
    let makers: usize = driver_sources()
        .iter()
        .map(|(_, code)| code.matches("LocalExecutorBuilder::new(").count())
        .sum();
    assert_eq!(makers, 1, "an executor leaks a descriptor in its life");
}

#[test]
fn t4_the_shard_runs_in_a_queue_whose_latency_matters() {
    assert!(source("bringup.rs").contains("Latency::Matters("));
    for file in ["connection.rs", "shard.rs"] {
        assert!(
            source(file).contains("yield_task_queue_now()"),
            "{file} has loops that can be long"
        );
    }
}

#[test]
fn t5_no_timeout_is_left_on_a_stream() {
    refuse(
        "set_read_timeout",
        "it stays armed after the read future is dropped",
    );
    refuse("set_write_timeout", "likewise");
    refuse("channel_mesh", "it can deadlock when small and contended");
}

#[test]
fn t6_an_executor_never_parks_for_good_with_tasks_ready() {
    // What pulse and watch do is tested beside them.
    let pulse = "glommio::spawn_local(self.heart.clone().pulse(turns.clone())).detach();";
    assert!(source("bringup.rs").contains(pulse));
    let code = source("server.rs");
    assert!(code.contains("pulse::watch(hearts.clone())"));
    assert!(code.contains(".preempt_timer(PREEMPT)"), "see `pulse`");
}

#[test]
fn nothing_that_blocks_runs_on_a_shard() {
    for file in ["shard.rs", "connection.rs", "segments.rs"] {
        let code = source(file);
        for blocking in [
            "std::fs::",
            "File::open",
            "thread::sleep",
            "sync_all",
            ".recv()",
        ] {
            assert!(!code.contains(blocking), "{file} blocks: {blocking}");
        }
    }
}
