//! The rules keep every promise within the small bound, and are needed for it.

use tidegate_spec::drops::{Expect, DROPS};
use tidegate_spec::run::{explore, Options};
use tidegate_spec::scope::SMALL;

#[test]
fn every_promise_is_kept_and_progress_stays_possible() {
    let options = Options {
        heal_every: 97,
        ..Options::default()
    };
    for scope in SMALL {
        let outcome = explore(*scope, options);
        let broken = outcome.counterexample.map(|c| (c.promise, c.steps));
        assert_eq!(broken, None, "{}", scope.name);
        assert_eq!(outcome.unreached, Vec::<&str>::new(), "{}", scope.name);
    }
}

#[test]
fn dropping_a_rule_breaks_the_promise_that_it_keeps() {
    for line in DROPS.iter().filter(|line| line.quick) {
        let (outcome, good) = line.run();
        let broken = outcome.counterexample.map(|c| (c.promise, c.steps));
        assert!(
            matches!(line.expect, Expect::Broken(_)) && good,
            "{:?}: {broken:?}",
            line.rules
        );
    }
}
