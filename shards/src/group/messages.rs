//! Raft's messages into those of the wire and back.
//!
//! Entries have no payload on Raft's side: it is fetched from where its handle
//! says when a message is encoded, and taken from the frame when one comes in.

use raft::eraftpb::{Entry as RaftEntry, Message, MessageType};
use wire::node::{encode_raft, Entry, RaftHead, RaftKind, RaftMessage};

use super::{
    membership::entry_type,
    storage::{Handle, MESSAGE_BYTES},
    Group,
};
use crate::{io::BatchBuffer, log::LogWriter};

const KINDS: [(MessageType, RaftKind); 12] = [
    (MessageType::MsgAppend, RaftKind::Append),
    (MessageType::MsgAppendResponse, RaftKind::AppendResponse),
    (MessageType::MsgRequestVote, RaftKind::Vote),
    (MessageType::MsgRequestVoteResponse, RaftKind::VoteResponse),
    (MessageType::MsgRequestPreVote, RaftKind::PreVote),
    (
        MessageType::MsgRequestPreVoteResponse,
        RaftKind::PreVoteResponse,
    ),
    (MessageType::MsgHeartbeat, RaftKind::Heartbeat),
    (
        MessageType::MsgHeartbeatResponse,
        RaftKind::HeartbeatResponse,
    ),
    (MessageType::MsgTransferLeader, RaftKind::TransferLeader),
    (MessageType::MsgTimeoutNow, RaftKind::TimeoutNow),
    (MessageType::MsgReadIndex, RaftKind::ReadIndex),
    (MessageType::MsgReadIndexResp, RaftKind::ReadIndexResponse),
];

fn kind_of(kind: MessageType) -> Option<RaftKind> {
    let found = KINDS.iter().find(|(raft, _)| *raft == kind);
    found.map(|(_, kind)| *kind)
}

fn type_of(kind: RaftKind) -> Option<MessageType> {
    let found = KINDS.iter().find(|(_, wire)| *wire == kind);
    found.map(|(raft, _)| *raft)
}

/// What Raft is told: the entries' payloads stay in the frame.
pub(super) fn to_raft(message: &RaftMessage<'_>) -> Option<Message> {
    let head = &message.head;
    let mut raft = Message::default();
    raft.set_msg_type(type_of(head.kind)?);
    raft.from = head.from;
    raft.to = head.to;
    raft.term = head.term;
    raft.log_term = head.log_term;
    raft.index = head.index;
    raft.commit = head.commit;
    raft.commit_term = head.commit_term;
    raft.reject = head.reject;
    raft.reject_hint = head.reject_hint;
    raft.request_snapshot = head.request_snapshot;
    raft.context = message.context.to_vec().into();
    for entry in message.entries.iter() {
        let mut to = RaftEntry::default();
        to.set_term(entry.term);
        to.set_index(entry.index);
        to.set_entry_type(entry_type(entry.membership));
        raft.entries.push(to);
    }
    Some(raft)
}

fn head_of(group: &Group, message: &Message, kind: RaftKind) -> RaftHead {
    RaftHead {
        group: group.id().0,
        generation: group.generation(),
        kind,
        reject: message.reject,
        from: message.from,
        to: message.to,
        term: message.term,
        log_term: message.log_term,
        index: message.index,
        commit: message.commit,
        commit_term: message.commit_term,
        reject_hint: message.reject_hint,
        request_snapshot: message.request_snapshot,
        entries: message.entries.len() as u32,
    }
}

/// Appends a message to a link's output. One with many bytes goes as several.
/// What cannot be sent is left out, as if it was lost: Raft sends it again.
pub(super) fn encode<B: BatchBuffer>(
    group: &Group,
    log: &LogWriter<B>,
    message: &Message,
    out: &mut Vec<u8>,
) {
    let Some(kind) = kind_of(message.get_msg_type()) else {
        return;
    };
    let mut head = head_of(group, message, kind);
    if message.entries.is_empty() {
        return encode_raft(&head, &message.context, out, |_| {});
    }
    let mut left: &[RaftEntry] = &message.entries;
    while !left.is_empty() {
        let mut bytes = 0;
        let mut count = 0;
        for entry in left {
            let Some(handle) = group.handle(entry.get_index(), entry.get_term()) else {
                break;
            };
            if !group.has_payload(log, entry.get_index(), handle) {
                break;
            }
            bytes += u64::from(handle.len);
            count += 1;
            if bytes >= MESSAGE_BYTES {
                break;
            }
        }
        let (now, later) = left.split_at(count);
        let Some(last) = now.last() else {
            return;
        };
        head.entries = count as u32;
        encode_raft(&head, &message.context, out, |out| {
            for entry in now {
                put_entry(group, log, entry, out);
            }
        });
        head.index = last.get_index();
        head.log_term = last.get_term();
        left = later;
    }
}

fn put_entry<B: BatchBuffer>(
    group: &Group,
    log: &LogWriter<B>,
    entry: &RaftEntry,
    out: &mut Vec<u8>,
) {
    let (index, term) = (entry.get_index(), entry.get_term());
    let Some(handle) = group.handle(index, term) else {
        return;
    };
    Entry::encode_fields(term, index, handle.sync, handle.membership, handle.len, out);
    group.visit_payload(log, index, handle, &mut |piece| {
        out.extend_from_slice(piece);
    });
}

impl Group {
    /// The handle of an entry of that term.
    pub(super) fn handle(&self, index: u64, term: u64) -> Option<&Handle> {
        let handle = self.store().get(index)?;
        (handle.term == term).then_some(handle)
    }

    fn has_payload<B: BatchBuffer>(&self, log: &LogWriter<B>, index: u64, handle: &Handle) -> bool {
        self.visit_payload(log, index, handle, &mut |_| {})
    }

    /// Calls `visit` with the payload, piece by piece, if it is in memory.
    pub(super) fn visit_payload<B: BatchBuffer>(
        &self,
        log: &LogWriter<B>,
        index: u64,
        handle: &Handle,
        visit: &mut dyn FnMut(&[u8]),
    ) -> bool {
        if handle.len == 0 {
            return true;
        }
        if let Some(payload) = self.store().payload_at_hand(index) {
            visit(payload);
            return true;
        }
        log.visit_cached(handle.payload, handle.len, visit)
    }
}
