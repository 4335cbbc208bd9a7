//! The cluster's feature level ([`crate::state::level`]), and what each node's version knows.
//!
//! 1. It is raised by group 0's leader once every member said, with its opens, that its
//!    version knows more; it never goes down.
//! 2. It is not raised above what the last open of any log says: one whose version was put
//!    back meanwhile is waited for. From then on such a node is not linked any more.

use super::{MetaOutcome, MetaState};

impl MetaState {
    /// The cluster's feature level.
    pub fn level(&self) -> u16 {
        self.level
    }

    /// What the node's version knows, as it said when it opened its logs last; `None`: it
    /// has said nothing.
    pub fn level_of(&self, node: u32) -> Option<u16> {
        let opens = self.opens.range((node, 0)..=(node, u16::MAX));
        opens.map(|(_, open)| open.level).min()
    }

    pub(super) fn raise_level(&mut self, level: u16) -> MetaOutcome {
        let counts = |node: &u32| !self.forgotten.contains(node);
        let mut opens = self.opens.iter().filter(|((node, _), _)| counts(node));
        if let Some(((node, _), open)) = opens.find(|(_, open)| open.level < level) {
            let known = open.level;
            let reason = format!("node {node} knows feature level {known}, and not {level}");
            return MetaOutcome::Refused { reason };
        }
        self.level = self.level.max(level);
        MetaOutcome::Noted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::meta::{Lineage, MetaCommand, Open};

    fn opened(state: &mut MetaState, node: u32, log: u16, level: u16) {
        let counter = state.last_open(node, log).map_or(1, |it| it.counter + 1);
        let open = Open {
            cookie: node.into(),
            counter,
            nonce: counter,
            lineage: Lineage::default(),
            level,
        };
        let outcome = state.apply(&MetaCommand::Opened { node, log, open });
        assert_eq!(outcome, MetaOutcome::Opened { node, log });
    }

    fn raise(state: &mut MetaState, level: u16) -> u16 {
        state.apply(&MetaCommand::Level { level });
        state.level()
    }

    #[test]
    fn the_level_rises_with_the_last_log_and_never_goes_down() {
        let mut state = MetaState::new(1);
        for (node, log) in [(1, 0), (1, 1), (2, 0), (2, 1)] {
            opened(&mut state, node, log, 3);
        }
        assert_eq!(raise(&mut state, 3), 3);
        assert_eq!(raise(&mut state, 2), 3);
        opened(&mut state, 2, 1, 5);
        opened(&mut state, 1, 0, 5);
        opened(&mut state, 1, 1, 5);
        assert_eq!((state.level_of(1), state.level_of(2)), (Some(5), Some(3)));
        assert_eq!(state.level_of(3), None);
        assert_eq!(raise(&mut state, 5), 3, "a log of node 2 is behind");
        opened(&mut state, 2, 0, 4);
        assert_eq!(raise(&mut state, 5), 3);
        assert_eq!(raise(&mut state, 4), 4);
        // Nobody waits for one that is gone for good.
        state.apply(&MetaCommand::Forget { node: 2 });
        assert_eq!(raise(&mut state, 5), 5);
    }

    #[test]
    fn levels_are_kept_in_a_captured_state_and_a_state_without_any_is_at_the_first() {
        let mut state = MetaState::new(1);
        opened(&mut state, 1, 0, 1);
        let mut without = Vec::new();
        state.capture(&mut without);
        let restored = MetaState::restore(1, &without).unwrap();
        assert_eq!((restored.level(), restored.level_of(1)), (1, Some(1)));
        opened(&mut state, 1, 0, 7);
        opened(&mut state, 2, 0, 6);
        raise(&mut state, 6);
        let mut bytes = Vec::new();
        state.capture(&mut bytes);
        let restored = MetaState::restore(1, &bytes).unwrap();
        assert_eq!(restored.level(), 6);
        assert_eq!(
            (restored.level_of(1), restored.level_of(2)),
            (Some(7), Some(6))
        );
        let mut again = Vec::new();
        restored.capture(&mut again);
        assert_eq!(again, bytes);
    }

    #[test]
    fn an_open_of_an_earlier_version_is_of_the_first_level() {
        let command = MetaCommand::Opened {
            node: 1,
            log: 2,
            open: Open {
                cookie: 3,
                counter: 4,
                nonce: 5,
                lineage: Lineage::default(),
                level: 9,
            },
        };
        let bytes = command.encode();
        assert_eq!(MetaCommand::decode(&bytes), Ok(command));
        let mut before = bytes[..bytes.len() - 2].to_vec();
        before[1] = 2;
        let Ok(MetaCommand::Opened { open, .. }) = MetaCommand::decode(&before) else {
            panic!("not an open");
        };
        assert_eq!(open.level, 1);
    }
}
