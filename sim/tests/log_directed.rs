//! The directed scenarios of one log, with nothing removed.

use tidegate_sim::directed::SCENARIOS;

#[test]
fn no_promise_is_broken_in_the_windows_that_are_too_small_for_chance() {
    for (name, scenario) in SCENARIOS {
        for seed in 0..64 {
            scenario(seed).unwrap_or_else(|failure| panic!("{name}, seed {seed}: {failure}"));
        }
    }
}
