//! A broken product is caught by the linearizability check alone, which knows nothing of
//! nodes and disks: with a rule removed, what clients saw is in no order.
#![cfg(feature = "mutations")]

use tidegate_sim::{
    cluster_sim::directed::{a_weakening_entry_that_is_not_durable, NOT_LINEAR},
    mutation::{with_removed, Rule},
};

/// Seeds whose clients saw what no queue does.
fn in_no_order(removed: &[Rule]) -> usize {
    with_removed(removed, || {
        let failures = (0..8).filter_map(|seed| a_weakening_entry_that_is_not_durable(seed).err());
        let failures = failures.inspect(|failure| println!("{removed:?}: {failure:.2000}"));
        failures
            .filter(|failure| failure.contains(NOT_LINEAR))
            .count()
    })
}

/// Without it a replica whose power went takes part in a group that it does not know to
/// answer at written: what was confirmed is gone, and a barrier says less than was
/// confirmed before.
#[test]
fn without_a_durable_weakening_entry_what_clients_saw_is_in_no_order() {
    assert_eq!(in_no_order(&[]), 0);
    let found = in_no_order(&[Rule::WeakenDurable]);
    assert!(found > 0, "no history of the broken product was refused");
}
