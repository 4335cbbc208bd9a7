use super::*;
use crate::log::contract::LogEffect;
use crate::log::testing::VecBuffer;
use crate::log::Extent;

const SEGMENT_BYTES: u64 = 64 * 1024;
const BLOCK: u64 = 4096;

struct Rig {
    log: LogWriter<VecBuffer>,
    effects: Vec<LogEffect<VecBuffer>>,
    now_ms: u64,
    index: u64,
}

#[derive(Debug, PartialEq, Eq)]
enum Seen {
    Write {
        id: u64,
        offset: u64,
        bytes: u64,
        dsync: bool,
    },
    Sync {
        id: u64,
        segments: Vec<u64>,
    },
    Prepare(u64),
}

impl Rig {
    fn new(options: LogOptions) -> Self {
        let geometry = Geometry::new(SEGMENT_BYTES, BLOCK as u32).unwrap();
        let start = LogStart {
            log_id: LogId(1),
            geometry,
            epoch: 1,
            open_counter: 1,
            end: geometry.start_of(1),
            last_sequence: 0,
            last_checksum: 0,
            ready_through: 1 + u64::from(options.spare_segments),
            links: Vec::new(),
            kept_from: 1,
            free: Vec::new(),
        };
        Rig {
            log: LogWriter::new(start, options),
            effects: Vec::new(),
            now_ms: 0,
            index: 0,
        }
    }

    fn with(method: SyncMethod) -> Self {
        Rig::new(LogOptions {
            sync_method: method,
            ..options()
        })
    }

    fn append(&mut self, len: usize, demand: Boundary) -> Appended {
        self.try_append(len, demand).unwrap()
    }

    fn try_append(&mut self, len: usize, demand: Boundary) -> Result<Appended, AppendError> {
        self.index += 1;
        let item = ItemHeader {
            kind: ItemKind::Entry,
            group: 3,
            term: 1,
            index: self.index,
            sync: demand == Boundary::Durable,
        };
        let payload: Vec<u8> = (0..len)
            .map(|n| (n as u64 * 7 + self.index) as u8)
            .collect();
        let (front, back) = payload.split_at(len / 3);
        self.log.append(item, &[front, back], demand)
    }

    fn submit(&mut self) -> Vec<Seen> {
        self.effects.clear();
        self.log.submit(self.now_ms, &mut self.effects);
        self.effects
            .iter()
            .map(|effect| match effect {
                LogEffect::Write {
                    id,
                    segment,
                    offset,
                    buffer,
                    dsync,
                } => Seen::Write {
                    id: *id,
                    offset: segment * SEGMENT_BYTES + offset,
                    bytes: buffer.bytes().len() as u64,
                    dsync: *dsync,
                },
                LogEffect::Sync { id, segments } => Seen::Sync {
                    id: *id,
                    segments: segments.clone(),
                },
                LogEffect::PrepareSegment { sequence, .. } => Seen::Prepare(*sequence),
                LogEffect::RemoveSegments { .. } => unreachable!("nothing is released here"),
            })
            .collect()
    }

    fn one_write(&mut self) -> (u64, bool) {
        match self.submit()[..] {
            [Seen::Write { id, dsync, .. }] => (id, dsync),
            ref other => panic!("{other:?}"),
        }
    }

    fn one_sync(&mut self) -> u64 {
        match self.submit()[..] {
            [Seen::Sync { id, .. }] => id,
            ref other => panic!("{other:?}"),
        }
    }

    fn frontiers(&self) -> (u64, u64) {
        let frontiers = self.log.frontiers();
        (
            frontiers.written_next.0 - SEGMENT_BYTES,
            frontiers.durable_next.0 - SEGMENT_BYTES,
        )
    }
}

fn options() -> LogOptions {
    LogOptions {
        segment_bytes: SEGMENT_BYTES,
        block_bytes: BLOCK as u32,
        background_sync_interval_ms: 0,
        sync_method: SyncMethod::Fdatasync,
        cache_bytes: 1 << 20,
        backlog_bytes: 1 << 20,
        spare_segments: 1,
        reserve_segments: 0,
    }
}

fn failure() -> Result<(), IoFailure> {
    Err(IoFailure {
        message: "broken".into(),
        out_of_space: false,
    })
}

#[test]
fn a_lone_record_is_written_at_once_and_what_arrives_meanwhile_gathers() {
    let mut rig = Rig::with(SyncMethod::Fdatasync);
    let first = rig.append(10, Boundary::Written);
    let (one, _) = rig.one_write();
    rig.append(10, Boundary::Written);
    let (two, _) = rig.one_write();
    for _ in 0..5 {
        rig.append(10, Boundary::Written);
    }
    assert_eq!(rig.submit(), [], "two are in flight");
    rig.log.write_done(two, Ok(()));
    assert_eq!(
        rig.submit(),
        [],
        "a completed batch behind an open one still counts"
    );
    assert_eq!(rig.frontiers(), (0, 0));
    rig.log.write_done(one, Ok(()));
    assert_eq!(rig.frontiers(), (2 * BLOCK, 0));
    assert!(rig.log.frontiers().written_next >= first.end);
    assert_eq!(rig.submit().len(), 1, "all five in one batch");
}

#[test]
fn fdatasync_follows_a_durable_demand_and_covers_what_was_written_when_issued() {
    let mut rig = Rig::with(SyncMethod::Fdatasync);
    let first = rig.append(10, Boundary::Durable);
    let (one, dsync) = rig.one_write();
    assert!(!dsync);
    rig.log.write_done(one, Ok(()));
    let sync = rig.one_sync();
    rig.append(10, Boundary::Durable);
    let (two, _) = rig.one_write();
    rig.log.write_done(two, Ok(()));
    assert_eq!(rig.submit(), [], "one sync at a time");
    rig.log.sync_done(sync, Ok(()));
    assert_eq!(rig.frontiers(), (2 * BLOCK, BLOCK));
    assert!(rig.log.frontiers().durable_next >= first.end);
    let sync = rig.one_sync();
    rig.log.sync_done(sync, Ok(()));
    assert_eq!(rig.frontiers(), (2 * BLOCK, 2 * BLOCK));
}

#[test]
fn dsync_only_for_all_durable_batches_with_nothing_plain_unsynced() {
    let mut rig = Rig::with(SyncMethod::Dsync);
    rig.append(10, Boundary::Durable);
    let (one, dsync) = rig.one_write();
    assert!(dsync);
    rig.append(10, Boundary::Durable);
    let (two, dsync) = rig.one_write();
    assert!(dsync, "behind another O_DSYNC write");
    rig.log.write_done(two, Ok(()));
    assert_eq!(rig.frontiers(), (0, 0), "covers its own bytes only");
    rig.log.write_done(one, Ok(()));
    assert_eq!(rig.frontiers(), (2 * BLOCK, 2 * BLOCK));

    rig.append(10, Boundary::Durable);
    rig.append(10, Boundary::Written);
    let (mixed, dsync) = rig.one_write();
    assert!(!dsync, "one item does not want durable");
    rig.append(10, Boundary::Durable);
    let (behind, dsync) = rig.one_write();
    assert!(!dsync, "a plain batch is in flight");
    rig.log.write_done(mixed, Ok(()));
    let sync = rig.one_sync();
    rig.log.write_done(behind, Ok(()));
    rig.log.sync_done(sync, Ok(()));
    assert_eq!(rig.frontiers(), (4 * BLOCK, 3 * BLOCK));
    rig.append(10, Boundary::Durable);
    let seen = rig.submit();
    assert!(
        matches!(
            seen[..],
            [Seen::Write { dsync: false, .. }, Seen::Sync { .. }]
        ),
        "{seen:?}"
    );
    for effect in seen {
        match effect {
            Seen::Write { id, .. } => rig.log.write_done(id, Ok(())),
            Seen::Sync { id, .. } => rig.log.sync_done(id, Ok(())),
            Seen::Prepare(_) => {}
        }
    }
    let sync = rig.one_sync();
    rig.log.sync_done(sync, Ok(()));
    assert_eq!(rig.frontiers(), (5 * BLOCK, 5 * BLOCK));
    rig.append(10, Boundary::Durable);
    assert!(rig.one_write().1, "durable caught up: O_DSYNC again");
}

#[test]
fn an_o_dsync_completion_before_a_plain_one_is_durable() {
    let mut rig = Rig::with(SyncMethod::Dsync);
    rig.append(10, Boundary::Durable);
    let (one, _) = rig.one_write();
    rig.append(10, Boundary::Written);
    let (two, dsync) = rig.one_write();
    assert!(!dsync);
    rig.log.write_done(two, Ok(()));
    rig.log.write_done(one, Ok(()));
    assert_eq!(rig.frontiers(), (2 * BLOCK, BLOCK));
}

#[test]
fn demand_durable_syncs_what_was_only_written() {
    let mut rig = Rig::with(SyncMethod::Fdatasync);
    let item = rig.append(10, Boundary::Written);
    let (one, _) = rig.one_write();
    rig.log.write_done(one, Ok(()));
    assert_eq!(rig.submit(), []);
    rig.log.demand_durable(item.end);
    let sync = rig.one_sync();
    rig.log.sync_done(sync, Ok(()));
    assert!(rig.log.frontiers().durable_next >= item.end);

    let open = rig.append(10, Boundary::Written);
    rig.log.demand_durable(open.end);
    let (two, _) = rig.one_write();
    rig.log.write_done(two, Ok(()));
    let sync = rig.one_sync();
    rig.log.sync_done(sync, Ok(()));
    assert!(rig.log.frontiers().durable_next >= open.end);
}

#[test]
fn the_timer_makes_written_bytes_durable() {
    let mut rig = Rig::new(LogOptions {
        background_sync_interval_ms: 50,
        ..options()
    });
    assert_eq!(rig.log.next_timer_ms(), None);
    rig.append(10, Boundary::Written);
    let (one, _) = rig.one_write();
    rig.log.write_done(one, Ok(()));
    assert_eq!(rig.submit(), []);
    assert_eq!(rig.log.next_timer_ms(), Some(50));
    rig.now_ms = 50;
    let sync = rig.one_sync();
    rig.log.sync_done(sync, Ok(()));
    assert_eq!(rig.frontiers(), (BLOCK, BLOCK));
}

#[test]
fn an_idle_log_records_its_frontier_once() {
    for method in [SyncMethod::Dsync, SyncMethod::Fdatasync] {
        let mut rig = Rig::with(method);
        rig.append(10, Boundary::Durable);
        let (one, dsync) = rig.one_write();
        rig.log.write_done(one, Ok(()));
        if !dsync {
            let sync = rig.one_sync();
            rig.log.sync_done(sync, Ok(()));
        }
        assert_eq!(rig.submit(), [], "not idle yet");
        assert_eq!(rig.log.next_timer_ms(), Some(100));
        rig.now_ms = 100;
        let (frontier, dsync) = rig.one_write();
        rig.log.write_done(frontier, Ok(()));
        if !dsync {
            let sync = rig.one_sync();
            rig.log.sync_done(sync, Ok(()));
        }
        assert_eq!(rig.frontiers(), (2 * BLOCK, 2 * BLOCK));
        rig.now_ms = 10_000;
        assert_eq!(rig.submit(), []);
        assert_eq!(rig.log.next_timer_ms(), None, "an idle log does nothing");
        assert!(rig.log.clean_marker().is_some());
    }
}

#[test]
fn a_failed_write_or_sync_latches_for_good() {
    for fail_write in [true, false] {
        let mut rig = Rig::with(SyncMethod::Fdatasync);
        rig.append(10, Boundary::Durable);
        let (one, _) = rig.one_write();
        rig.log.write_done(one, Ok(()));
        let sync = rig.one_sync();
        rig.append(10, Boundary::Written);
        let (two, _) = rig.one_write();
        if fail_write {
            rig.log.write_done(two, failure());
            rig.log.sync_done(sync, Ok(()));
        } else {
            rig.log.sync_done(sync, failure());
            assert!(!rig.log.is_quiet());
            rig.log.write_done(two, Ok(()));
        }
        assert!(rig.log.is_latched() && rig.log.is_quiet());
        assert_eq!(rig.frontiers(), (0, 0));
        assert_eq!(
            rig.try_append(1, Boundary::Durable),
            Err(AppendError::Latched)
        );
        rig.log.demand_durable(LogPosition(u64::MAX));
        rig.now_ms = 1 << 30;
        assert_eq!(rig.submit(), []);
        assert_eq!(rig.log.next_timer_ms(), None);
        assert_eq!(rig.log.clean_marker(), None);
        assert_eq!(
            rig.log.latch_record().unwrap().durable_next.0,
            SEGMENT_BYTES
        );
    }
}

#[test]
fn large_items_go_on_over_batches_and_segments_and_are_found_everywhere() {
    let mut rig = Rig::new(LogOptions {
        spare_segments: 3,
        ..options()
    });
    rig.append(5_000, Boundary::Written);
    let len = 150_000;
    let item = rig.append(len, Boundary::Durable);
    let payload: Vec<u8> = (0..len).map(|n| (n as u64 * 7 + 2) as u8).collect();
    let read = |rig: &Rig, from: usize, count: usize| {
        let mut bytes = Vec::new();
        let place = rig.log.advance(item.payload, from as u32);
        assert!(rig.log.visit_cached(place, count as u32, &mut |piece| bytes
            .extend_from_slice(piece)));
        bytes
    };
    assert_eq!(read(&rig, 0, len), payload);
    assert_eq!(read(&rig, 60_000, 70_000), payload[60_000..130_000]);
    loop {
        let seen = rig.submit();
        if seen.is_empty() {
            break;
        }
        for effect in seen {
            match effect {
                Seen::Write { id, .. } => {
                    assert!(rig.log.frontiers().written_next < item.end);
                    rig.log.write_done(id, Ok(()));
                }
                Seen::Sync { id, .. } => rig.log.sync_done(id, Ok(())),
                Seen::Prepare(sequence) => rig.log.segment_ready(sequence, Ok(())),
            }
        }
    }
    assert!(rig.log.frontiers().durable_next >= item.end);
    assert_eq!(read(&rig, 0, len), payload);
    assert_eq!(read(&rig, 149_999, 1), payload[149_999..]);
    let extents: Vec<Extent> = rig.log.extents(item.payload, len as u32);
    assert_eq!(
        extents
            .iter()
            .map(|extent| extent.len as usize)
            .sum::<usize>(),
        len
    );
    assert_eq!(
        extents
            .iter()
            .map(|extent| extent.segment)
            .collect::<Vec<_>>(),
        [1, 2, 3]
    );
    for pair in extents.windows(2) {
        assert_eq!(
            pair[0].offset + u64::from(pair[0].len),
            SEGMENT_BYTES,
            "fills its segment"
        );
    }
}

#[test]
fn a_missing_segment_holds_writes_back_and_the_backlog_refuses() {
    let mut rig = Rig::new(LogOptions {
        spare_segments: 0,
        backlog_bytes: 100_000,
        ..options()
    });
    rig.append(60_000, Boundary::Written);
    let (one, _) = rig.one_write();
    rig.log.write_done(one, Ok(()));
    rig.append(30_000, Boundary::Written);
    let seen = rig.submit();
    assert!(
        matches!(seen[..], [Seen::Prepare(2), Seen::Write { .. }]),
        "{seen:?}"
    );
    if let Seen::Write { id, .. } = seen[1] {
        rig.log.write_done(id, Ok(()));
    }
    rig.log.segment_ready(2, failure());
    rig.append(30_000, Boundary::Written);
    assert_eq!(rig.submit(), []);
    assert!(rig.log.segment_failure().is_some());
    assert!(!rig.log.is_latched());
    let refused = rig.try_append(60_000, Boundary::Written);
    assert!(
        matches!(refused, Err(AppendError::Backlog { .. })),
        "{refused:?}"
    );
    rig.now_ms = rig.log.next_timer_ms().unwrap();
    assert_eq!(rig.submit(), [Seen::Prepare(2)]);
    rig.log.segment_ready(2, Ok(()));
    let seen = rig.submit();
    assert!(matches!(seen[..], [Seen::Write { .. }]), "{seen:?}");
}

#[test]
fn an_item_above_the_backlog_bound_goes_in_when_nothing_waits() {
    let mut rig = Rig::new(LogOptions {
        backlog_bytes: 10,
        ..options()
    });
    assert!(rig.try_append(1_000, Boundary::Written).is_ok());
    assert!(matches!(
        rig.try_append(1, Boundary::Written),
        Err(AppendError::Backlog { .. })
    ));
}

/// What is taken while no further segment is ready leaves half of the reserve to
/// what must go on once it is known that the disk is full.
#[test]
fn a_burst_leaves_half_of_the_reserve() {
    let mut rig = Rig::new(LogOptions {
        spare_segments: 1,
        reserve_segments: 1,
        ..options()
    });
    // Segments 1 and 2 are ready, and the second one is held back.
    let mut taken = 0;
    while rig.try_append(3_000, Boundary::Written).is_ok() {
        taken += 3_000;
    }
    let room = SEGMENT_BYTES + SEGMENT_BYTES / 2;
    assert!(taken < room && taken > room - 8_000, "{taken}");
    rig.submit();
    let failure = IoFailure {
        message: "full".to_owned(),
        out_of_space: true,
    };
    rig.log.segment_ready(3, Err(failure));
    // A publish would not come this far now; a settle does.
    assert!(rig.try_append(20_000, Boundary::Written).is_ok());
    let end = rig.log.frontiers().appended;
    assert!(end.0 < 3 * SEGMENT_BYTES, "it fits: {end}");
}

/// A group that was refused what it says of itself would never serve again.
#[test]
fn what_a_group_says_of_itself_is_not_refused_for_room() {
    let mut rig = Rig::new(LogOptions {
        backlog_bytes: 10,
        ..options()
    });
    rig.append(1_000, Boundary::Written);
    assert!(rig.try_append(0, Boundary::Durable).is_ok());
    let state = ItemHeader {
        kind: ItemKind::GroupState,
        group: 3,
        term: 2,
        index: 0,
        sync: true,
    };
    let appended = rig.log.append(state, &[&[7; 60]], Boundary::Durable);
    assert!(appended.is_ok());
    assert!(rig.try_append(1, Boundary::Written).is_err());
}

#[test]
fn empty_payloads_have_a_place_and_an_end() {
    let mut rig = Rig::with(SyncMethod::Fdatasync);
    let item = rig.append(0, Boundary::Written);
    assert_eq!(item.payload, item.end);
    assert!(rig.log.visit_cached(item.payload, 0, &mut |_| {}));
    assert_eq!(rig.log.extents(item.payload, 0), []);
}

#[test]
fn what_is_not_in_memory_is_not_visited_in_part() {
    let mut rig = Rig::new(LogOptions {
        cache_bytes: 0,
        ..options()
    });
    let item = rig.append(100, Boundary::Durable);
    let (one, _) = rig.one_write();
    rig.log.write_done(one, Ok(()));
    let sync = rig.one_sync();
    rig.log.sync_done(sync, Ok(()));
    rig.submit();
    let mut visits = 0;
    assert!(!rig
        .log
        .visit_cached(item.payload, 100, &mut |_| visits += 1));
    assert_eq!(visits, 0);
}
