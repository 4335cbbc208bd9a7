//! How a replica's generation ends (R6).
//!
//! 1. A replica that stopped its generation does nothing in it any more: no vote, no
//!    acknowledgement, no message, whatever restarts come between.
//! 2. What it answers about its history is durable, and so is that it stopped.

use wire::vocabulary::Boundary;

use super::{node::Committed, Group, GroupError, GroupState, Members, PeerId, Recovered, Tail};
use crate::{
    io::BatchBuffer,
    log::{LogPosition, LogWriter},
};

impl Group {
    /// Stops the generation on this replica, for good. It may answer once the log is
    /// durable up to the position returned.
    ///
    /// # Errors
    /// The log refused; nothing happened then.
    pub fn stop<B: BatchBuffer>(
        &mut self,
        log: &mut LogWriter<B>,
    ) -> Result<LogPosition, GroupError> {
        let was = std::mem::replace(&mut self.stopped, true);
        match self.append_own_state(log) {
            Ok(end) => {
                // What was to leave once it was persisted does not leave any more.
                self.forget_pending();
                Ok(end)
            }
            Err(error) => {
                self.stopped = was;
                Err(error)
            }
        }
    }

    /// It stopped its generation.
    pub fn is_stopped(&self) -> bool {
        self.stopped
    }

    /// Everything it ever reported durable in its generation is still there.
    pub fn keeps_reported(&self) -> bool {
        self.keeps_reported
    }

    /// Index and term of the last entry, applied or not.
    pub fn last(&self) -> (u64, u64) {
        self.store().last_entry()
    }

    /// What a stopped replica has not applied, as if it were committed: the next
    /// generation begins behind all of it. Changes of membership end with their
    /// generation.
    pub fn rest_of_history(&self) -> Vec<Committed> {
        let first = self.last_applied().0 + 1;
        let mut rest = Vec::new();
        for index in first..=self.store().last() {
            self.push_entry(index, &mut rest);
        }
        rest.retain(|entry| !entry.membership);
        rest
    }

    /// The replica that the next generation begins with: this one's history, all of it
    /// applied, and nobody else.
    pub fn begun_anew(&self, generation: u32, peer: PeerId) -> Recovered {
        let (last_index, last_term) = self.last();
        let mut tail = Tail::new(last_index, last_term);
        tail.commit(last_index);
        Recovered {
            state: GroupState {
                generation,
                peer,
                vote: 0,
                commit: last_index,
                base_index: last_index,
                base_term: last_term,
                members: Members::of_voters(vec![peer.0]),
                stopped: false,
                keeps_reported: true,
                ..self.state()
            },
            last_index,
            last_term,
            tail,
        }
    }
}

impl GroupState {
    /// The replica was dropped: its node has no part in the group, and all that is kept
    /// is the name that it had.
    pub fn is_dropped(&self) -> bool {
        let Members { voters, learners } = &self.members;
        !self.keeps_reported && voters.is_empty() && learners.is_empty()
    }
}

impl Recovered {
    /// What is left of a replica whose node has no part in the group any more.
    pub fn dropped(state: GroupState) -> Self {
        let (answers_at, generation, peer) = (state.answers_at, state.generation, state.peer);
        let mut dropped = Recovered::emptied(answers_at, generation, peer, Members::default());
        dropped.state.term = state.term;
        dropped
    }

    /// A replica without any history: `members` bring it everything.
    pub fn emptied(answers_at: Boundary, generation: u32, peer: PeerId, members: Members) -> Self {
        Recovered {
            state: GroupState {
                generation,
                peer,
                term: 0,
                vote: 0,
                commit: 0,
                base_index: 0,
                base_term: 0,
                members,
                stopped: false,
                // Not before it has caught up and is promoted.
                keeps_reported: false,
                answers_at,
            },
            last_index: 0,
            last_term: 0,
            tail: Tail::default(),
        }
    }
}
