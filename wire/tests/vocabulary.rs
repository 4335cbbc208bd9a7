//! Numbers and words of the protocol: what is read is what was written, and
//! nothing else is accepted.

use tidegate_wire::{
    error::ErrorCode,
    frame::Kind,
    vocabulary::{Boundary, ClusterAction, Mode, RecordState, ReplicaRole, SettleKind},
};

#[test]
fn one_byte_words_accept_exactly_their_numbers() {
    for raw in 0..=u8::MAX {
        assert_eq!(
            Boundary::from_raw(raw).map(|word| word as u8),
            known(raw, 2)
        );
        assert_eq!(Mode::from_raw(raw).map(|word| word as u8), known(raw, 3));
        assert_eq!(
            SettleKind::from_raw(raw).map(|word| word as u8),
            known(raw, 3)
        );
        assert_eq!(
            RecordState::from_raw(raw).map(|word| word as u8),
            known(raw, 4)
        );
        let kind = known(raw, 41).or(Some(raw).filter(|raw| (50..=51).contains(raw)));
        assert_eq!(Kind::from_raw(raw).map(|word| word as u8), kind);
        let role = ReplicaRole::from_raw(raw).map(|word| word as u8);
        assert_eq!(role, known(raw, 5));
        let action = ClusterAction::from_raw(raw).map(|word| word as u8);
        assert_eq!(action, known(raw, 8));
    }
    for raw in 0..=u16::MAX {
        let expected = ((1..=23).contains(&raw) || (32..=33).contains(&raw)).then_some(raw);
        assert_eq!(ErrorCode::from_raw(raw).map(|code| code as u16), expected);
    }
}

fn known(raw: u8, last: u8) -> Option<u8> {
    (1..=last).contains(&raw).then_some(raw)
}

#[test]
fn each_mode_waits_for_the_boundaries_of_the_promise() {
    use Boundary::{Durable, Written};
    let gates = |mode: Mode| (mode.name(), mode.confirm_gate(), mode.delivery_gate());
    assert_eq!(gates(Mode::Durable), ("durable", Durable, Durable));
    assert_eq!(gates(Mode::Buffered), ("buffered", Written, Written));
    assert_eq!(gates(Mode::Speculative), ("speculative", Durable, Written));
    assert!(Durable > Written, "durable is the stronger boundary");
}

#[test]
fn mode_names_read_back_and_others_are_not_modes() {
    for mode in Mode::ALL {
        assert_eq!(Mode::from_name(mode.name()), Some(mode));
    }
    for name in ["", "Durable", "durable ", "written", "eager"] {
        assert_eq!(Mode::from_name(name), None);
    }
}

#[test]
fn boundaries_and_states_have_names_of_their_own() {
    assert_eq!(Boundary::Written.name(), "written");
    assert_eq!(Boundary::Durable.name(), "durable");
    let names: Vec<_> = (1..=4)
        .filter_map(RecordState::from_raw)
        .map(RecordState::name)
        .collect();
    assert_eq!(names, ["gated", "delayed", "ready", "leased"]);
}
