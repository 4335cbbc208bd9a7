//! Group 0's state as bytes, for a checkpoint, and back.
//!
//! ```text
//! next_queue_id u64, next_join u64, dealt lower u64, dealt upper u64,
//! queues u32: queue_id u64, name_len u16, name, mode u8 (+ 128: its group waits for an
//!             operator on total loss; + 64: its setting was changed), copies u8, lease_ms u64,
//!             partitions u16, group u32 each; where its setting was changed: revision u32
//! opens u32:  node u32, log u16, cookie u64, open_counter u64, nonce u64
//! groups u32: group u32, generation u32, newest_peer u64, retired u32, peer u64 each
//! replaced u32: group u32, retired peer u64, new peer u64
//! eventful u32: group u32, promoted u32, peer u64 each, harmed u32, peer u64 each, ordered u8 (0 no, 1 yes, 2 and
//!              loss is accepted), answers u32 (0 where none is ordered): peer u64,
//!              last_term u64, last_index u64, counts u8
//! forgotten u32: node u32 each
//! lineages u32: node u32, log u16, token u64, last_token u64, recorded u64
//! seats u32:   node u32, holder u64 (0 nobody), first_join u64, order u32,
//!              former u32, peer u64 each
//! more:        sections to the end: kind u8, len u32, bytes
//!              1 roster: as nodes tell it to each other
//!              2 left: group u32, peer u64 each
//!              3 kept: the same
//!              4 levels: the cluster's u16, then of each log whose version knows more than
//!              the first: node u32, log u16, level u16
//!              5 readmitted: node u32 each
//! ```
//!
//! Plain little-endian. From `replaced` on, what is empty at the end is left out
//! (`eventful` and `forgotten` only together).

use std::collections::{BTreeMap, BTreeSet};

use wire::{node::Roster, vocabulary::Mode};

use super::{
    peer_node, Answer, Collecting, GroupHistory, Lineage, MetaState, Open, QueueDeclaration, Seat,
};
use crate::state::{command::CommandError, level::FIRST_LEVEL, reader::Reader};

/// With a queue's mode.
const HALTS: u8 = 128;
/// Likewise: a revision stands behind the groups.
const CHANGED: u8 = 64;
/// Sections at the end.
const ROSTER: u8 = 1;
const LEFT: u8 = 2;
const KEPT: u8 = 3;
const LEVELS: u8 = 4;
const READMITTED: u8 = 5;

impl MetaState {
    /// Appends the whole state to `out`; true if some queue's setting was changed since it
    /// was declared.
    pub fn capture(&self, out: &mut Vec<u8>) -> bool {
        let mut changed = false;
        let [lower, upper] = self.placement.dealt();
        for word in [self.next_queue_id, self.next_join, lower, upper] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        put_count(out, self.queues.len());
        for queue in self.queues.iter() {
            changed |= queue.revision > 0;
            put_queue(out, queue);
        }
        self.capture_nodes(out);
        changed
    }

    /// What is known of nodes and groups.
    fn capture_nodes(&self, out: &mut Vec<u8>) {
        put_count(out, self.opens.len());
        for ((node, log), open) in &self.opens {
            out.extend_from_slice(&node.to_le_bytes());
            out.extend_from_slice(&log.to_le_bytes());
            open.encode(out);
        }
        put_count(out, self.groups.len());
        for (group, history) in &self.groups {
            out.extend_from_slice(&group.to_le_bytes());
            out.extend_from_slice(&history.generation.to_le_bytes());
            out.extend_from_slice(&history.newest_peer.to_le_bytes());
            put_count(out, history.retired.len());
            for peer in &history.retired {
                out.extend_from_slice(&peer.to_le_bytes());
            }
        }
        let replaced: Vec<_> = self.replaced().collect();
        let eventful = self.histories().filter(|(_, it)| it.is_eventful());
        let eventful: Vec<_> = eventful.collect();
        let lineages = self.opens.iter().map(|(log, open)| (log, open.lineage));
        let lineages = lineages.filter(|(_, lineage)| *lineage != Lineage::default());
        let lineages: Vec<_> = lineages.collect();
        let kept = self.groups.values().any(|it| !it.kept.is_empty());
        let levels = self.levels();
        let sections = self.roster.is_some() || kept || levels.is_some();
        let last = !lineages.is_empty() || !self.seats.is_empty() || sections;
        let more = !eventful.is_empty() || !self.forgotten.is_empty() || last;
        if replaced.is_empty() && !more {
            return;
        }
        put_count(out, replaced.len());
        for (group, retired, new) in replaced {
            out.extend_from_slice(&group.to_le_bytes());
            out.extend_from_slice(&retired.to_le_bytes());
            out.extend_from_slice(&new.to_le_bytes());
        }
        if !more {
            return;
        }
        put_count(out, eventful.len());
        for (group, history) in eventful {
            out.extend_from_slice(&group.to_le_bytes());
            put_events(out, history);
        }
        put_count(out, self.forgotten.len());
        for node in &self.forgotten {
            out.extend_from_slice(&node.to_le_bytes());
        }
        if !last {
            return;
        }
        put_count(out, lineages.len());
        for ((node, log), lineage) in lineages {
            out.extend_from_slice(&node.to_le_bytes());
            out.extend_from_slice(&log.to_le_bytes());
            lineage.encode(out);
        }
        if !self.seats.is_empty() || sections {
            put_seats(out, &self.seats);
        }
        self.put_members(out);
        if kept {
            put_section(out, KEPT, |out| self.put_peers(out, |it| &it.kept));
        }
        if let Some(levels) = levels {
            put_section(out, LEVELS, |out| out.extend_from_slice(&levels));
        }
        let again = self.seats.iter().filter(|(_, seat)| seat.readmitted);
        let again: Vec<u8> = again.flat_map(|(node, _)| node.to_le_bytes()).collect();
        if !again.is_empty() {
            put_section(out, READMITTED, |out| out.extend_from_slice(&again));
        }
    }

    fn put_peers(&self, out: &mut Vec<u8>, of: impl Fn(&GroupHistory) -> &BTreeSet<u64>) {
        for (group, history) in &self.groups {
            for peer in of(history) {
                out.extend_from_slice(&group.to_le_bytes());
                out.extend_from_slice(&peer.to_le_bytes());
            }
        }
    }

    /// The section's bytes; `None` where nothing is above the first level.
    fn levels(&self) -> Option<Vec<u8>> {
        let mut out = self.level.to_le_bytes().to_vec();
        let above = self.opens.iter().filter(|(_, it)| it.level > FIRST_LEVEL);
        for ((node, log), open) in above {
            out.extend_from_slice(&node.to_le_bytes());
            out.extend_from_slice(&log.to_le_bytes());
            out.extend_from_slice(&open.level.to_le_bytes());
        }
        (self.level > FIRST_LEVEL || out.len() > 2).then_some(out)
    }

    fn put_members(&self, out: &mut Vec<u8>) {
        let Some(roster) = &self.roster else {
            return;
        };
        put_section(out, ROSTER, |out| roster.encode(out));
        put_section(out, LEFT, |out| self.put_peers(out, |it| &it.left));
    }

    fn read_section(&mut self, kind: u8, bytes: &[u8]) -> Result<(), CommandError> {
        let mut reader = Reader::new(bytes);
        match kind {
            ROSTER => {
                let roster = Roster::decode(reader.rest());
                let roster = roster.map_err(|_| CommandError::Malformed("a roster"))?;
                self.roster = Some(roster);
            }
            LEFT | KEPT => {
                while !reader.is_empty() {
                    let (group, peer) = (reader.u32()?, reader.u64()?);
                    let history = self.history(group);
                    let peers = if kind == LEFT {
                        &mut history.left
                    } else {
                        &mut history.kept
                    };
                    peers.insert(peer);
                }
            }
            LEVELS => {
                self.level = reader.u16()?;
                while !reader.is_empty() {
                    let open = self.opens.get_mut(&(reader.u32()?, reader.u16()?));
                    let open = open.ok_or(CommandError::Malformed("a log is not known"))?;
                    open.level = reader.u16()?;
                }
            }
            READMITTED => {
                while !reader.is_empty() {
                    let seat = self.seats.get_mut(&reader.u32()?);
                    let seat = seat.ok_or(CommandError::Malformed("a seat is not known"))?;
                    seat.readmitted = true;
                }
            }
            _ => return Err(CommandError::Malformed("an unknown section")),
        }
        Ok(())
    }

    /// The state that was captured, over `data_groups` groups.
    ///
    /// # Errors
    /// The bytes are no captured state.
    pub fn restore(data_groups: u32, bytes: &[u8]) -> Result<Self, CommandError> {
        let mut reader = Reader::new(bytes);
        let mut state = MetaState::new(data_groups);
        state.next_queue_id = reader.u64()?;
        state.next_join = reader.u64()?;
        state.placement.restore([reader.u64()?, reader.u64()?]);
        for _ in 0..reader.u32()? {
            let queue = read_queue(&mut reader)?;
            let known = state.queues.by_id(queue.queue_id).is_some();
            if known || state.queues.by_name(&queue.name).is_some() {
                return Err(CommandError::Malformed("a queue is there twice"));
            }
            state.queues.insert(queue.into());
        }
        for _ in 0..reader.u32()? {
            let key = (reader.u32()?, reader.u16()?);
            state.opens.insert(key, Open::decode(&mut reader)?);
        }
        for _ in 0..reader.u32()? {
            let group = reader.u32()?;
            let mut history = GroupHistory {
                generation: reader.u32()?,
                newest_peer: reader.u64()?,
                ..GroupHistory::new()
            };
            for _ in 0..reader.u32()? {
                history.retired.insert(reader.u64()?);
            }
            state.groups.insert(group, history);
        }
        if !reader.is_empty() {
            for _ in 0..reader.u32()? {
                let (group, retired, new) = (reader.u32()?, reader.u64()?, reader.u64()?);
                if let Some(history) = state.groups.get_mut(&group) {
                    history.replaced.insert(retired, new);
                }
            }
        }
        if !reader.is_empty() {
            for _ in 0..reader.u32()? {
                let group = reader.u32()?;
                let history = state.groups.get_mut(&group);
                let history = history.ok_or(CommandError::Malformed("a group is not known"))?;
                read_events(&mut reader, history)?;
            }
            for _ in 0..reader.u32()? {
                state.forgotten.insert(reader.u32()?);
            }
        }
        if !reader.is_empty() {
            for _ in 0..reader.u32()? {
                let open = state.opens.get_mut(&(reader.u32()?, reader.u16()?));
                let open = open.ok_or(CommandError::Malformed("a log is not known"))?;
                open.lineage = Lineage::decode(&mut reader)?;
            }
        }
        if !reader.is_empty() {
            state.seats = read_seats(&mut reader)?;
        }
        while !reader.is_empty() {
            let (kind, len) = (reader.u8()?, reader.u32()? as usize);
            state.read_section(kind, reader.slice(len)?)?;
        }
        reader.end()?;
        Ok(state)
    }
}

fn put_section(out: &mut Vec<u8>, kind: u8, put: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    let at = out.len();
    put_count(out, 0);
    put(out);
    let len = (out.len() - at - 4) as u32;
    if let Some(field) = out.get_mut(at..at + 4) {
        field.copy_from_slice(&len.to_le_bytes());
    }
}

fn put_seats(out: &mut Vec<u8>, seats: &BTreeMap<u32, Seat>) {
    put_count(out, seats.len());
    for (node, seat) in seats {
        out.extend_from_slice(&node.to_le_bytes());
        for word in [seat.holder.unwrap_or(0), seat.first_join] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(&seat.order.to_le_bytes());
        put_count(out, seat.former.len());
        for peer in &seat.former {
            out.extend_from_slice(&peer.to_le_bytes());
        }
    }
}

fn read_seats(reader: &mut Reader<'_>) -> Result<BTreeMap<u32, Seat>, CommandError> {
    let mut seats = BTreeMap::new();
    for _ in 0..reader.u32()? {
        let node = reader.u32()?;
        let holder = Some(reader.u64()?).filter(|holder| *holder != 0);
        let mut seat = Seat {
            holder,
            first_join: reader.u64()?,
            order: reader.u32()?,
            ..Seat::default()
        };
        for _ in 0..reader.u32()? {
            seat.former.insert(reader.u64()?);
        }
        seats.insert(node, seat);
    }
    Ok(seats)
}

fn put_events(out: &mut Vec<u8>, history: &GroupHistory) {
    for peers in [&history.promoted, &history.harmed] {
        put_count(out, peers.len());
        for peer in peers {
            out.extend_from_slice(&peer.to_le_bytes());
        }
    }
    let ordered = history.collecting.as_ref();
    out.push(ordered.map_or(0, |it| 1 + u8::from(it.accepts_loss)));
    let answers = ordered.map(|it| &it.answers);
    put_count(out, answers.map_or(0, |answers| answers.len()));
    for answer in answers.into_iter().flat_map(|answers| answers.values()) {
        answer.encode(out);
    }
}

fn read_events(reader: &mut Reader<'_>, history: &mut GroupHistory) -> Result<(), CommandError> {
    for peers in [&mut history.promoted, &mut history.harmed] {
        for _ in 0..reader.u32()? {
            peers.insert(reader.u64()?);
        }
    }
    let ordered = reader.u8()?;
    if ordered > 2 {
        return Err(CommandError::Malformed("an unknown order"));
    }
    let mut collecting = Collecting {
        accepts_loss: ordered == 2,
        ..Collecting::default()
    };
    for _ in 0..reader.u32()? {
        let answer = Answer::decode(reader)?;
        collecting.answers.insert(peer_node(answer.peer), answer);
    }
    history.collecting = (ordered > 0).then_some(collecting);
    Ok(())
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(&(count as u32).to_le_bytes());
}

fn put_queue(out: &mut Vec<u8>, queue: &QueueDeclaration) {
    out.extend_from_slice(&queue.queue_id.to_le_bytes());
    // Names have at most 255 bytes.
    out.extend_from_slice(&(queue.name.len() as u16).to_le_bytes());
    out.extend_from_slice(queue.name.as_bytes());
    let halts = if queue.halts { HALTS } else { 0 };
    let changed = if queue.revision > 0 { CHANGED } else { 0 };
    out.extend_from_slice(&[queue.mode as u8 | halts | changed, queue.copies]);
    out.extend_from_slice(&queue.lease_ms.to_le_bytes());
    out.extend_from_slice(&(queue.groups.len() as u16).to_le_bytes());
    for group in queue.groups.iter() {
        out.extend_from_slice(&group.to_le_bytes());
    }
    if queue.revision > 0 {
        out.extend_from_slice(&queue.revision.to_le_bytes());
    }
}

fn read_queue(reader: &mut Reader<'_>) -> Result<QueueDeclaration, CommandError> {
    let queue_id = reader.u64()?;
    let name_len = usize::from(reader.u16()?);
    let name = std::str::from_utf8(reader.slice(name_len)?)
        .map_err(|_| CommandError::Malformed("a name is not UTF-8"))?
        .into();
    let mode = reader.u8()?;
    let (halts, changed) = (mode & HALTS != 0, mode & CHANGED != 0);
    let mode = Mode::from_raw(mode & !(HALTS | CHANGED));
    let mode = mode.ok_or(CommandError::Malformed("an unknown mode"))?;
    let copies = reader.u8()?;
    let lease_ms = reader.u64()?;
    let groups = (0..reader.u16()?).map(|_| reader.u32());
    let groups = groups.collect::<Result<Vec<u32>, _>>()?.into();
    let revision = if changed { reader.u32()? } else { 0 };
    if changed && revision == 0 {
        return Err(CommandError::Malformed("a change without a revision"));
    }
    Ok(QueueDeclaration {
        queue_id,
        name,
        mode,
        copies,
        lease_ms,
        halts,
        revision,
        groups,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::meta::{DeclareRequest, MetaCommand};

    fn captured(state: &MetaState) -> Vec<u8> {
        let mut out = Vec::new();
        state.capture(&mut out);
        out
    }

    fn declare(name: &str, mode: Mode) -> MetaCommand {
        MetaCommand::Declare(DeclareRequest {
            name: name.to_owned(),
            mode: Some(mode),
            partitions: Some(3),
            halts: Some(name == "b"),
            ..DeclareRequest::default()
        })
    }

    #[test]
    fn a_captured_state_goes_on_as_the_one_it_was_taken_from() {
        let mut state = MetaState::new(8);
        state.apply(&declare("a", Mode::Durable));
        state.apply(&declare("b", Mode::Buffered));
        state.apply(&MetaCommand::Delete { queue_id: 1 });
        state.apply(&MetaCommand::Change {
            queue_id: 2,
            mode: Mode::Speculative,
            copies: 2,
            base: 0,
        });
        state.apply(&MetaCommand::Opened {
            node: 1,
            log: 0,
            open: Open {
                cookie: 8,
                counter: 3,
                nonce: 9,
                lineage: Lineage {
                    token: 5,
                    last_token: 4,
                    recorded: 2,
                },
                level: 1,
            },
        });
        state.apply(&MetaCommand::Recovered {
            group: 5,
            generation: 2,
            retired_peer: super::super::peer_id(1, 1),
            new_peer: super::super::peer_id(1, 2),
        });
        state.apply(&MetaCommand::Promoting {
            group: 5,
            generation: 2,
            peer: super::super::peer_id(2, 3),
        });
        state.apply(&MetaCommand::Collect {
            group: 5,
            generation: 2,
            accepts_loss: true,
        });
        state.apply(&MetaCommand::Answered {
            group: 5,
            generation: 2,
            answer: Answer {
                peer: super::super::peer_id(2, 3),
                last_term: 4,
                last_index: 9,
                counts: true,
            },
        });
        state.apply(&MetaCommand::Rejoin {
            group: 6,
            retired_peer: super::super::peer_id(3, 1),
            harmed: true,
        });
        state.apply(&MetaCommand::Forget { node: 3 });
        for node in [4, 2] {
            state.apply(&MetaCommand::Replace { node, order: 6 });
        }
        state.apply(&MetaCommand::Rejoin {
            group: 0,
            retired_peer: super::super::nameless_peer(2, 77),
            harmed: true,
        });
        let bytes = captured(&state);
        let mut restored = MetaState::restore(8, &bytes).unwrap();
        assert_eq!(captured(&restored), bytes);
        let next = declare("c", Mode::Buffered);
        assert_eq!(restored.apply(&next), state.apply(&next));
        assert_eq!(captured(&restored), captured(&state));
        // Four of the cuts leave what a state without the last parts is.
        let whole = (0..bytes.len()).filter(|cut| MetaState::restore(8, &bytes[..*cut]).is_ok());
        assert_eq!(whole.count(), 4);
    }

    #[test]
    fn two_queues_of_one_name_or_one_number_are_refused() {
        let mut state = MetaState::new(8);
        state.apply(&declare("a", Mode::Durable));
        state.apply(&declare("b", Mode::Durable));
        let bytes = captured(&state);
        // Behind four words and the count: number, length of the name, name, rest.
        let (first, second) = (36, 36 + 8 + 2 + 1 + 2 + 8 + 2 + 3 * 4);
        let with = |at: usize, from: usize, len: usize| {
            let mut bent = bytes.clone();
            bent.copy_within(from..from + len, at);
            MetaState::restore(8, &bent)
        };
        assert!(with(first, first, 8).is_ok());
        let twice = Some(CommandError::Malformed("a queue is there twice"));
        assert_eq!(with(second, first, 8).err(), twice);
        assert_eq!(with(second + 8, first + 8, 3).err(), twice);
    }
}
