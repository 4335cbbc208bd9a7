//! Where an item's payload goes on after a fragment ends.

use std::collections::VecDeque;

use super::position::LogPosition;

/// Fragment ends that are not item ends, each with the place where the item's
/// payload goes on; in log order.
///
/// A fragment ends where its batch's body ends, and a batch starts with its
/// header: no payload byte ever stands at a recorded end, so an address at one
/// means the place behind it.
#[derive(Debug, Default, Clone)]
pub(crate) struct FragmentMap {
    links: VecDeque<(LogPosition, LogPosition)>,
}

impl FragmentMap {
    /// Records that the payload ending at `end` goes on at `next`.
    pub(crate) fn push(&mut self, end: LogPosition, next: LogPosition) {
        debug_assert!(self.links.back().is_none_or(|last| last.0 < end) && end < next);
        self.links.push_back((end, next));
    }

    /// Forgets the links of places below `position`.
    pub(super) fn forget_below(&mut self, position: LogPosition) {
        while self.links.front().is_some_and(|link| link.1 <= position) {
            self.links.pop_front();
        }
    }

    /// Links of fragments that end at or below `position`, where a batch ends: a
    /// fragment may fill its batch.
    pub(super) fn up_to(
        &self,
        position: LogPosition,
    ) -> impl Iterator<Item = (LogPosition, LogPosition)> + '_ {
        let links = self.links.iter().copied();
        links.take_while(move |link| link.0 <= position)
    }

    /// The pieces of `len` payload bytes from `position` on.
    pub(crate) fn pieces(&self, position: LogPosition, len: u32) -> Pieces<'_> {
        Pieces {
            map: self,
            link: self.links.partition_point(|link| link.0 < position),
            position,
            left: len,
        }
    }

    /// The place of the byte `bytes` further on.
    pub(super) fn advance(&self, position: LogPosition, bytes: u32) -> LogPosition {
        let mut pieces = self.pieces(position, bytes);
        pieces.by_ref().for_each(drop);
        pieces.place()
    }
}

/// Contiguous pieces of a payload range, in order.
pub(crate) struct Pieces<'a> {
    map: &'a FragmentMap,
    /// The first link not behind `position`.
    link: usize,
    position: LogPosition,
    left: u32,
}

impl Pieces<'_> {
    /// The place of the byte after those handed out.
    fn place(&mut self) -> LogPosition {
        if let Some((end, next)) = self.map.links.get(self.link) {
            if *end == self.position {
                self.position = *next;
                self.link += 1;
            }
        }
        self.position
    }
}

impl Iterator for Pieces<'_> {
    type Item = (LogPosition, u32);

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let position = self.place();
        let len = match self.map.links.get(self.link) {
            // The end is behind `position`: the difference is at least 1.
            Some((end, _)) => (end.0 - position.0).min(u64::from(self.left)) as u32,
            None => self.left,
        };
        self.position = LogPosition(position.0 + u64::from(len));
        self.left -= len;
        Some((position, len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map() -> FragmentMap {
        let mut map = FragmentMap::default();
        map.push(LogPosition(100), LogPosition(150));
        map.push(LogPosition(200), LogPosition(260));
        map
    }

    fn pieces(map: &FragmentMap, position: u64, len: u32) -> Vec<(u64, u32)> {
        map.pieces(LogPosition(position), len)
            .map(|(place, len)| (place.0, len))
            .collect()
    }

    #[test]
    fn a_range_continues_behind_each_fragment_end() {
        let map = map();
        assert_eq!(pieces(&map, 90, 5), [(90, 5)]);
        assert_eq!(pieces(&map, 90, 10), [(90, 10)]);
        assert_eq!(pieces(&map, 90, 65), [(90, 10), (150, 50), (260, 5)]);
        assert_eq!(pieces(&map, 100, 1), [(150, 1)]);
        assert_eq!(pieces(&map, 300, 7), [(300, 7)]);
        assert_eq!(pieces(&map, 90, 0), []);
    }

    #[test]
    fn advancing_never_rests_on_a_fragment_end() {
        let map = map();
        let advance = |position, bytes| map.advance(LogPosition(position), bytes).0;
        assert_eq!(advance(90, 0), 90);
        assert_eq!(advance(90, 9), 99);
        assert_eq!(advance(90, 10), 150);
        assert_eq!(advance(90, 60), 260);
        assert_eq!(advance(90, 61), 261);
    }

    #[test]
    fn forgotten_links_leave_later_ones() {
        let mut map = map();
        map.forget_below(LogPosition(150));
        assert_eq!(pieces(&map, 160, 50), [(160, 40), (260, 10)]);
    }
}
