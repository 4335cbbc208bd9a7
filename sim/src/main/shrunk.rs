//! Failing runs with few events, on the command line.

use std::{collections::BTreeSet, time::Duration};

use tidegate_sim::engine_sim::{self, Shrunk};

/// Leaves events out of a failing run, prints what is left and how to repeat
/// that. `remove`: the options that remove rules, for that line. False if the
/// run does not fail.
pub fn shrink(seed: u64, scenario: &str, patience: Duration, tail: usize, remove: &str) -> bool {
    let Some(shrunk) = engine_sim::shrink(seed, scenario, patience, tail) else {
        return false;
    };
    print(&shrunk, tail);
    let numbers = ranges(shrunk.kept.iter().map(|event| event.number));
    println!("again: {remove}--from {seed} --scenario {scenario} --only {numbers}");
    true
}

/// Repeats it; true if nothing fails.
pub fn repeat(
    seed: u64,
    scenario: &str,
    kept: &BTreeSet<usize>,
    tail: usize,
    remove: &str,
) -> bool {
    match engine_sim::repeat(seed, scenario, kept, tail) {
        Some(shrunk) => {
            print(&shrunk, tail);
            false
        }
        None => {
            println!("{remove}seed {seed} in {scenario} with these events only: nothing fails");
            true
        }
    }
}

fn print(shrunk: &Shrunk, tail: usize) {
    let lines = &shrunk.trace.tail;
    for line in lines.iter().skip(lines.len().saturating_sub(tail)) {
        println!("{line}");
    }
    let (kept, of, runs) = (shrunk.kept.len(), shrunk.of, shrunk.runs);
    let least = match shrunk.least {
        true => ", and none of them can go",
        false => "",
    };
    println!("{kept} of {of} events are left after {runs} runs{least}:");
    for event in &shrunk.kept {
        println!(
            "{:>6} at {:>10} us: {}",
            event.number, event.at_us, event.text
        );
    }
    println!("FAILED: {}", shrunk.message);
}

/// `3,17,40-44`
fn ranges(numbers: impl Iterator<Item = usize>) -> String {
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    let sorted: BTreeSet<usize> = numbers.collect();
    for number in sorted {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => ranges.push((number, number)),
        }
    }
    let words = ranges.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    words.collect::<Vec<_>>().join(",")
}

/// Reads what `ranges` writes.
///
/// # Errors
/// It is something else.
pub fn numbers(text: &str) -> Result<BTreeSet<usize>, String> {
    let mut numbers = BTreeSet::new();
    for word in text.split(',').filter(|word| !word.is_empty()) {
        let (first, last) = word.split_once('-').unwrap_or((word, word));
        let number = |text: &str| {
            text.parse::<usize>()
                .map_err(|_| format!("{word:?} is no number or range"))
        };
        numbers.extend(number(first)?..=number(last)?);
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_again() {
        for list in [vec![], vec![0], vec![3, 17, 40, 41, 42, 44]] {
            let text = ranges(list.iter().copied());
            assert_eq!(numbers(&text), Ok(list.into_iter().collect()), "{text}");
        }
        assert_eq!(ranges([3, 17, 40, 41, 42].into_iter()), "3,17,40-42");
        assert!(numbers("3,x").is_err());
    }
}
