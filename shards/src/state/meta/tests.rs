//! Group 0: declarations, opens, recoveries, bytes.

use super::*;
use crate::state::command::CommandError;
use proptest::prelude::*;

fn declare(name: &str) -> DeclareRequest {
    DeclareRequest {
        name: name.to_owned(),
        ..DeclareRequest::default()
    }
}

fn created(state: &mut MetaState, request: DeclareRequest) -> u64 {
    match state.apply(&MetaCommand::Declare(request)) {
        MetaOutcome::Declared {
            created: true,
            queue_id,
        } => queue_id,
        other => panic!("not created: {other:?}"),
    }
}

#[test]
fn a_new_queue_takes_defaults_and_a_redeclare_keeps_what_it_omits() {
    let mut state = MetaState::new(32);
    let mut request = declare("a");
    request.lease_ms = Some(5_000);
    let id = created(&mut state, request);
    let queue = state.by_name("a").unwrap();
    assert_eq!((queue.queue_id, id), (1, 1));
    assert_eq!((queue.mode, queue.copies), (Mode::Durable, 0));
    assert_eq!((queue.lease_ms, queue.groups.len()), (5_000, 1));
    let again = state.apply(&MetaCommand::Declare(declare("a")));
    let kept = MetaOutcome::Declared {
        created: false,
        queue_id: id,
    };
    assert_eq!(again, kept);
    assert_eq!(state.by_id(id).unwrap().lease_ms, 5_000);
}

#[test]
fn a_redeclare_that_differs_names_the_field_and_both_values() {
    let mut state = MetaState::new(32);
    created(&mut state, declare("a"));
    let cases: [(DeclareRequest, &str, &str, &str); 4] = [
        (
            DeclareRequest {
                mode: Some(Mode::Buffered),
                ..declare("a")
            },
            "mode",
            "durable",
            "buffered",
        ),
        (
            DeclareRequest {
                copies: Some(255),
                ..declare("a")
            },
            "copies",
            "majority",
            "all",
        ),
        (
            DeclareRequest {
                partitions: Some(2),
                ..declare("a")
            },
            "partitions",
            "1",
            "2",
        ),
        (
            DeclareRequest {
                lease_ms: Some(1),
                ..declare("a")
            },
            "lease",
            "30000 ms",
            "1 ms",
        ),
    ];
    let before = state.by_name("a").cloned();
    for (request, field, stands, asked) in cases {
        let outcome = state.apply(&MetaCommand::Declare(request));
        let expected = MetaOutcome::Conflict {
            field,
            stands: stands.to_owned(),
            asked: asked.to_owned(),
        };
        assert_eq!(outcome, expected);
    }
    assert_eq!(state.by_name("a").cloned(), before);
}

#[test]
fn a_declare_that_is_not_valid_changes_nothing() {
    let mut state = MetaState::new(2);
    let long = "x".repeat(256);
    for name in ["", long.as_str(), "a\nb", "a\0"] {
        let outcome = state.apply(&MetaCommand::Declare(declare(name)));
        assert!(matches!(outcome, MetaOutcome::Refused { .. }), "{name:?}");
    }
    for partitions in [0, MAX_PARTITIONS + 1] {
        let request = DeclareRequest {
            partitions: Some(partitions),
            ..declare("a")
        };
        let outcome = state.apply(&MetaCommand::Declare(request));
        assert!(matches!(outcome, MetaOutcome::Refused { .. }));
    }
    let request = DeclareRequest {
        lease_ms: Some(0),
        ..declare("a")
    };
    let outcome = state.apply(&MetaCommand::Declare(request));
    assert!(matches!(outcome, MetaOutcome::Refused { .. }));
    assert!(state.is_empty());
    assert_eq!(created(&mut state, declare("a")), 1);
}

#[test]
fn ids_are_never_reused_also_not_after_delete_and_replay() {
    let log = [
        MetaCommand::Declare(declare("a")),
        MetaCommand::Declare(declare("b")),
        MetaCommand::Delete { queue_id: 2 },
        MetaCommand::Delete { queue_id: 2 },
        MetaCommand::Delete { queue_id: 99 },
        MetaCommand::Declare(declare("b")),
    ];
    let mut state = MetaState::new(4);
    let outcomes: Vec<_> = log.iter().map(|command| state.apply(command)).collect();
    assert_eq!(outcomes[2], MetaOutcome::Deleted { existed: true });
    assert_eq!(outcomes[3], MetaOutcome::Deleted { existed: false });
    assert_eq!(outcomes[4], MetaOutcome::Deleted { existed: false });
    assert_eq!(state.by_name("b").unwrap().queue_id, 3);
    assert!(state.by_id(2).is_none());
    let mut replayed = MetaState::new(4);
    for command in &log {
        replayed.apply(&MetaCommand::decode(&command.encode()).unwrap());
    }
    assert_eq!(replayed.by_name("b"), state.by_name("b"));
    assert_eq!(created(&mut replayed, declare("c")), 4);
}

#[test]
fn queues_list_in_byte_order_from_after_a_name() {
    let mut state = MetaState::new(4);
    for name in ["b", "a/b", "é", "B", "e\u{301}"] {
        created(&mut state, declare(name));
    }
    let names = |after: &str| -> Vec<String> {
        state
            .iter_from(after)
            .map(|queue| queue.name.to_string())
            .collect()
    };
    assert_eq!(names(""), ["B", "a/b", "b", "e\u{301}", "é"]);
    assert_eq!(names("b"), ["e\u{301}", "é"]);
    assert_eq!(names("aa"), ["b", "e\u{301}", "é"]);
    assert!(names("é").is_empty());
}

#[test]
fn placement_keeps_the_kinds_apart_and_spreads_partitions() {
    let mut state = MetaState::new(8);
    let mut seen = [0u32; 9];
    for at in 0..16 {
        for mode in Mode::ALL {
            let request = DeclareRequest {
                mode: Some(mode),
                partitions: Some(3),
                ..declare(&format!("{at}-{}", mode.name()))
            };
            let id = created(&mut state, request);
            let groups = &state.by_id(id).unwrap().groups;
            assert_eq!(groups.iter().collect::<BTreeSet<_>>().len(), 3);
            for group in groups.iter() {
                assert_eq!(*group <= 4, mode == Mode::Durable);
                seen[*group as usize] += 1;
            }
        }
    }
    assert_eq!(seen, [0, 12, 12, 12, 12, 24, 24, 24, 24]);
}

#[test]
fn placement_works_with_any_number_of_groups() {
    for groups in 0..6u32 {
        let mut state = MetaState::new(groups);
        for mode in Mode::ALL {
            let request = DeclareRequest {
                mode: Some(mode),
                partitions: Some(9),
                ..declare(mode.name())
            };
            let id = created(&mut state, request);
            let placed = &state.by_id(id).unwrap().groups;
            assert!(placed
                .iter()
                .all(|group| (1..=groups.max(1)).contains(group)));
        }
    }
}

#[test]
fn opens_are_noted_retried_and_refused() {
    let mut state = MetaState::new(4);
    let of = |cookie, counter, nonce| Open {
        cookie,
        counter,
        nonce,
        lineage: Lineage::default(),
        level: 1,
    };
    let mut opened = |log, open| state.apply(&MetaCommand::Opened { node: 1, log, open });
    let mut open = |log, counter, nonce| opened(log, of(9, counter, nonce));
    let noted = |log| MetaOutcome::Opened { node: 1, log };
    assert_eq!(open(0, 5, 77), noted(0));
    assert_eq!(open(0, 5, 77), noted(0));
    assert!(matches!(open(0, 5, 78), MetaOutcome::Refused { .. }));
    assert!(matches!(open(0, 4, 77), MetaOutcome::Refused { .. }));
    assert_eq!(open(1, 1, 1), noted(1));
    assert_eq!(open(0, 7, 78), noted(0));
    let foreign = opened(0, of(8, 9, 79));
    assert!(
        matches!(foreign, MetaOutcome::Refused { .. }),
        "a wiped directory"
    );
    assert_eq!(state.last_open(1, 0), Some(of(9, 7, 78)));
    assert_eq!(state.last_open(2, 0), None);
}

#[test]
fn a_recovery_raises_the_generation_and_never_reuses_a_peer_id() {
    let mut state = MetaState::new(4);
    let old = peer_id(3, FOUNDING_JOIN);
    let new = state.next_peer_id(3);
    assert_eq!((peer_node(new), peer_join(new)), (3, 2));
    assert_eq!(state.generation(2), FIRST_GENERATION);
    let recover = |group, generation, retired_peer, new_peer| MetaCommand::Recovered {
        group,
        generation,
        retired_peer,
        new_peer,
    };
    let first = recover(2, 2, old, new);
    assert_eq!(state.apply(&first), MetaOutcome::History { group: 2 });
    assert_eq!(state.apply(&first), MetaOutcome::History { group: 2 });
    assert_eq!(state.generation(2), 2);
    assert!(state.is_retired(2, old) && !state.is_retired(1, old));
    assert_eq!(state.next_join_number(), 3);
    for wrong in [
        recover(2, 2, old, peer_id(3, 9)),
        recover(2, 1, new, peer_id(3, 9)),
        recover(2, 3, new, old),
        recover(2, 3, new, new),
        recover(4, 2, old, new),
    ] {
        let outcome = state.apply(&wrong);
        assert!(matches!(outcome, MetaOutcome::Refused { .. }), "{wrong:?}");
    }
    assert_eq!(state.generation(2), 2);
    let next = state.next_peer_id(3);
    let recovered = state.apply(&recover(2, 3, new, next));
    assert_eq!(recovered, MetaOutcome::History { group: 2 });
    assert!(state.is_retired(2, new) && state.is_retired(2, old));
}

fn any_member_command() -> impl Strategy<Value = MemberCommand> {
    let node = || 0..7u32;
    let members = proptest::collection::vec((node(), "[a-z]{0,4}"), 0..6);
    prop_oneof![
        members.prop_map(|members| MemberCommand::Found { members }),
        (node(), "[a-z]{0,4}", ".{0,8}").prop_map(|(node, address, zone)| MemberCommand::Add {
            node,
            address,
            zone,
        }),
        (0..8u32, node(), node()).prop_map(|(group, from, to)| MemberCommand::Move {
            group,
            from,
            to
        }),
        (0..8u32, 1..3u32, node(), node()).prop_map(|(group, generation, from, to)| {
            MemberCommand::Moved {
                group,
                generation,
                from,
                to,
            }
        }),
        node().prop_map(|node| MemberCommand::Leave { node }),
        node().prop_map(|node| MemberCommand::Remove { node }),
    ]
}

fn any_command() -> impl Strategy<Value = MetaCommand> {
    let mode = proptest::option::of(proptest::sample::select(&Mode::ALL[..]));
    let option = proptest::option::of::<proptest::arbitrary::StrategyFor<u8>>;
    let request = (
        ".{0,40}",
        mode,
        option(any::<u8>()),
        proptest::option::of(any::<u16>()),
        proptest::option::of(any::<u64>()),
        proptest::option::of(any::<bool>()),
    );
    prop_oneof![
        request.prop_map(|(name, mode, copies, partitions, lease_ms, halts)| {
            MetaCommand::Declare(DeclareRequest {
                name,
                mode,
                copies,
                partitions,
                lease_ms,
                halts,
            })
        }),
        any::<u64>().prop_map(|queue_id| MetaCommand::Delete { queue_id }),
        any::<(u32, u16, [u64; 6])>().prop_map(|(node, log, words)| {
            let [cookie, counter, nonce, token, last_token, recorded] = words;
            let open = Open {
                cookie,
                counter,
                nonce,
                lineage: Lineage {
                    token,
                    last_token,
                    recorded,
                },
                level: 1,
            };
            MetaCommand::Opened { node, log, open }
        }),
        any::<(u32, u32, u64, u64)>().prop_map(|(group, generation, retired_peer, new_peer)| {
            MetaCommand::Recovered {
                group,
                generation,
                retired_peer,
                new_peer,
            }
        }),
        (0..8u32, 0..4u32, any::<bool>(), any::<u64>()).prop_map(
            |(group, node, nameless, word)| {
                let retired_peer = match nameless {
                    true => nameless_peer(node, word % 4),
                    false => peer_id(node, word % 8),
                };
                MetaCommand::Rejoin {
                    group,
                    retired_peer,
                    harmed: word & 8 == 0,
                }
            }
        ),
        (0..4u32, any::<u32>()).prop_map(|(node, order)| MetaCommand::Replace { node, order }),
        any_member_command().prop_map(MetaCommand::Members),
        (0..4u64, 0..3usize, any::<u8>(), 0..3u32).prop_map(|(queue_id, mode, copies, base)| {
            MetaCommand::Change {
                queue_id,
                mode: Mode::ALL[mode],
                copies,
                base,
            }
        }),
    ]
}

proptest! {
    #[test]
    fn commands_read_back_and_no_cut_decodes(command in any_command()) {
        let mut bytes = command.encode();
        prop_assert_eq!(MetaCommand::decode(&bytes), Ok(command));
        for end in 0..bytes.len() {
            prop_assert!(MetaCommand::decode(&bytes[..end]).is_err());
        }
        bytes.push(0);
        prop_assert_eq!(MetaCommand::decode(&bytes), Err(CommandError::Malformed("bytes left over")));
    }

    #[test]
    fn no_bytes_make_decode_panic(mut bytes in proptest::collection::vec(any::<u8>(), 0..64), kind in 0u8..18) {
        if let Some(first) = bytes.first_mut() {
            *first = kind;
        }
        if let Some(second) = bytes.get_mut(1) {
            *second %= 2;
        }
        if let Ok(command) = MetaCommand::decode(&bytes) {
            // An open of the version before is written as one of this.
            if bytes[..2] != [3, 1] {
                prop_assert_eq!(command.encode(), bytes);
            }
        }
    }

    /// Any commands, valid or not: nothing panics and a replay agrees.
    #[test]
    fn replay_gives_the_same_state(commands in proptest::collection::vec(any_command(), 0..40)) {
        let (mut one, mut two) = (MetaState::new(6), MetaState::new(6));
        for command in &commands {
            one.apply(command);
        }
        for command in &commands {
            two.apply(&MetaCommand::decode(&command.encode()).unwrap());
        }
        prop_assert!(one.iter_from("").eq(two.iter_from("")));
        prop_assert_eq!(one.next_join_number(), two.next_join_number());
        prop_assert_eq!(&one.opens, &two.opens);
        prop_assert_eq!(&one.groups, &two.groups);
        prop_assert_eq!(&one.roster, &two.roster);
        if let Some(roster) = &one.roster {
            for group in 1..=6 {
                prop_assert_eq!(roster.holders(group).len(), roster.copies());
            }
        }
        let mut bytes = Vec::new();
        one.capture(&mut bytes);
        let mut again = Vec::new();
        MetaState::restore(6, &bytes).unwrap().capture(&mut again);
        prop_assert_eq!(bytes, again);
    }
}
