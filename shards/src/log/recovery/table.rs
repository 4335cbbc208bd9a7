//! The decision table of recovery: what is seen at a place of the log, and what
//! follows from it. Every combination matches exactly one row (tested).

/// What stands at the place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Header {
    /// A block of zeros.
    Zero,
    /// A header that verifies.
    Intact,
    /// Anything else.
    Bad,
}

/// Whether the body verifies (counts only under an intact header).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Body {
    Intact,
    Bad,
}

/// Whether the header belongs to this log and this place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Here,
    Elsewhere,
}

/// Whether the header follows the last batch that was accepted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Chain {
    Follows,
    Breaks,
}

/// The place against the last known durable frontier.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Frontier {
    Below,
    /// At or above it.
    Beyond,
}

/// What the clean marker of the last open says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Marker {
    /// There is none: the log was not stopped cleanly.
    Absent,
    /// The log ends here, with the last batch's checksum.
    EndsHere,
    /// The log ends further on.
    GoesOn,
    /// The log has passed the marker's end, or ends there with other bytes.
    Contradicts,
}

/// Whether the kernel has run without a break since the last completed open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Boot {
    Same,
    Other,
}

/// What lies behind a place that holds no acceptable batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    /// Only zeros.
    Nothing,
    /// One intact batch, the next but one of the chain, and zeros: its
    /// predecessor never arrived, so nothing was answered from either.
    Unanswered,
    /// Anything else.
    More,
}

/// One combination.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Finding {
    pub header: Header,
    pub body: Body,
    pub place: Place,
    pub chain: Chain,
    pub frontier: Frontier,
    pub marker: Marker,
    pub boot: Boot,
    pub after: After,
}

impl Finding {
    /// Whether a batch of this log, following its predecessor, stands here.
    pub(super) fn is_sound(&self) -> bool {
        self.header == Header::Intact
            && self.body == Body::Intact
            && self.place == Place::Here
            && self.chain == Chain::Follows
    }
}

/// What to do at a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Hand the batch out and go on behind it.
    Accept,
    /// The log ends; nothing follows.
    End,
    /// The log ends; what follows was never answered.
    CutUnanswered,
    /// The log ends; what follows was not durable when the power went.
    CutTorn,
    /// The log ends; something that may have been answered is damaged.
    CutDamage,
    /// Durable bytes are damaged: report, skip, go on.
    Damage,
}

/// An action, and whether the log then still remembers all it answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    pub action: Action,
    pub remembers: bool,
}

/// A row: each field a set of values, empty meaning any.
struct Row {
    header: &'static [Header],
    body: &'static [Body],
    place: &'static [Place],
    chain: &'static [Chain],
    frontier: &'static [Frontier],
    marker: &'static [Marker],
    boot: &'static [Boot],
    after: &'static [After],
    verdict: Verdict,
}

impl Row {
    fn matches(&self, finding: &Finding) -> bool {
        any(self.header, &finding.header)
            && any(self.body, &finding.body)
            && any(self.place, &finding.place)
            && any(self.chain, &finding.chain)
            && any(self.frontier, &finding.frontier)
            && any(self.marker, &finding.marker)
            && any(self.boot, &finding.boot)
            && any(self.after, &finding.after)
    }
}

fn any<T: PartialEq>(set: &[T], value: &T) -> bool {
    set.is_empty() || set.contains(value)
}

/// The verdict for `finding`.
pub(crate) fn decide(finding: &Finding) -> Verdict {
    ROWS.iter()
        .find(|row| row.matches(finding))
        .map_or(UNDECIDED, |row| row.verdict)
}

/// Never used while the table is complete; the choice that loses nothing silently.
const UNDECIDED: Verdict = forgets(Action::CutDamage);

const fn keeps(action: Action) -> Verdict {
    Verdict {
        action,
        remembers: true,
    }
}

const fn forgets(action: Action) -> Verdict {
    Verdict {
        action,
        remembers: false,
    }
}

/// The four ways in which a place with bytes on it holds no batch of the log,
/// and the one in which it holds nothing; each with its rows.
macro_rules! row {
    (sound: $($rest:tt)*) => { row!(@ [Header::Intact] [Body::Intact] [Place::Here] [Chain::Follows] $($rest)*) };
    (zero: $($rest:tt)*) => { row!(@ [Header::Zero] [] [] [] $($rest)*) };
    (bad: $($rest:tt)*) => { row!(@ [Header::Bad] [] [] [] $($rest)*) };
    (body: $($rest:tt)*) => { row!(@ [Header::Intact] [Body::Bad] [] [] $($rest)*) };
    (elsewhere: $($rest:tt)*) => { row!(@ [Header::Intact] [Body::Intact] [Place::Elsewhere] [] $($rest)*) };
    (breaks: $($rest:tt)*) => { row!(@ [Header::Intact] [Body::Intact] [Place::Here] [Chain::Breaks] $($rest)*) };
    (@ [$($header:expr)?] [$($body:expr)?] [$($place:expr)?] [$($chain:expr)?]
       [$($frontier:ident)*] [$($marker:ident)*] [$($boot:ident)*] [$($after:ident)*] $verdict:expr) => {
        Row {
            header: &[$($header)?],
            body: &[$($body)?],
            place: &[$($place)?],
            chain: &[$($chain)?],
            frontier: &[$(Frontier::$frontier),*],
            marker: &[$(Marker::$marker),*],
            boot: &[$(Boot::$boot),*],
            after: &[$(After::$after),*],
            verdict: $verdict,
        }
    };
}

// Columns: what stands there; frontier, marker, boot, after; verdict.
const ROWS: &[Row] = &[
    row!(sound: [] [Absent GoesOn] [] [] keeps(Action::Accept)),
    row!(sound: [] [EndsHere Contradicts] [] [] forgets(Action::Accept)),
    // Below the durable frontier nothing ends the log.
    row!(zero: [Below] [] [] [] keeps(Action::Damage)),
    row!(bad: [Below] [] [] [] keeps(Action::Damage)),
    row!(body: [Below] [] [] [] keeps(Action::Damage)),
    row!(elsewhere: [Below] [] [] [] keeps(Action::Damage)),
    row!(breaks: [Below] [] [] [] keeps(Action::Damage)),
    // A clean stop further on says the same.
    row!(zero: [Beyond] [GoesOn] [] [] keeps(Action::Damage)),
    row!(bad: [Beyond] [GoesOn] [] [] keeps(Action::Damage)),
    row!(body: [Beyond] [GoesOn] [] [] keeps(Action::Damage)),
    row!(elsewhere: [Beyond] [GoesOn] [] [] keeps(Action::Damage)),
    row!(breaks: [Beyond] [GoesOn] [] [] keeps(Action::Damage)),
    // Zeros to the end.
    row!(zero: [Beyond] [Absent] [Same] [Nothing] keeps(Action::End)),
    row!(zero: [Beyond] [Absent] [Other] [Nothing] forgets(Action::End)),
    row!(zero: [Beyond] [EndsHere] [] [Nothing] keeps(Action::End)),
    row!(zero: [Beyond] [Contradicts] [] [Nothing] forgets(Action::End)),
    // A hole.
    row!(zero: [Beyond] [Absent] [Same] [Unanswered] keeps(Action::CutUnanswered)),
    row!(zero: [Beyond] [Absent] [Same] [More] forgets(Action::CutDamage)),
    row!(zero: [Beyond] [Absent] [Other] [Unanswered More] forgets(Action::CutTorn)),
    row!(zero: [Beyond] [EndsHere Contradicts] [] [Unanswered More] forgets(Action::CutDamage)),
    // Bytes that are no batch of the log: torn by a power cut, else damaged.
    row!(bad: [Beyond] [Absent] [Same] [] forgets(Action::CutDamage)),
    row!(bad: [Beyond] [Absent] [Other] [] forgets(Action::CutTorn)),
    row!(bad: [Beyond] [EndsHere Contradicts] [] [] forgets(Action::CutDamage)),
    row!(body: [Beyond] [Absent] [Same] [] forgets(Action::CutDamage)),
    row!(body: [Beyond] [Absent] [Other] [] forgets(Action::CutTorn)),
    row!(body: [Beyond] [EndsHere Contradicts] [] [] forgets(Action::CutDamage)),
    row!(elsewhere: [Beyond] [Absent] [Same] [] forgets(Action::CutDamage)),
    row!(elsewhere: [Beyond] [Absent] [Other] [] forgets(Action::CutTorn)),
    row!(elsewhere: [Beyond] [EndsHere Contradicts] [] [] forgets(Action::CutDamage)),
    row!(breaks: [Beyond] [Absent] [Same] [] forgets(Action::CutDamage)),
    row!(breaks: [Beyond] [Absent] [Other] [] forgets(Action::CutTorn)),
    row!(breaks: [Beyond] [EndsHere Contradicts] [] [] forgets(Action::CutDamage)),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn every_finding() -> Vec<Finding> {
        let mut all = Vec::new();
        for header in [Header::Zero, Header::Intact, Header::Bad] {
            for body in [Body::Intact, Body::Bad] {
                for place in [Place::Here, Place::Elsewhere] {
                    for chain in [Chain::Follows, Chain::Breaks] {
                        for frontier in [Frontier::Below, Frontier::Beyond] {
                            for marker in [
                                Marker::Absent,
                                Marker::EndsHere,
                                Marker::GoesOn,
                                Marker::Contradicts,
                            ] {
                                for boot in [Boot::Same, Boot::Other] {
                                    for after in [After::Nothing, After::Unanswered, After::More] {
                                        all.push(Finding {
                                            header,
                                            body,
                                            place,
                                            chain,
                                            frontier,
                                            marker,
                                            boot,
                                            after,
                                        });
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
        all
    }

    #[test]
    fn each_combination_matches_exactly_one_row() {
        let all = every_finding();
        assert_eq!(all.len(), 3 * 2 * 2 * 2 * 2 * 4 * 2 * 3);
        for finding in &all {
            let rows = ROWS.iter().filter(|row| row.matches(finding)).count();
            assert_eq!(rows, 1, "{finding:?}");
        }
        for (index, row) in ROWS.iter().enumerate() {
            assert!(
                all.iter().any(|finding| row.matches(finding)),
                "row {index} is dead"
            );
        }
    }

    #[test]
    fn only_sound_batches_are_accepted_and_durable_bytes_never_cut() {
        for finding in every_finding() {
            let verdict = decide(&finding);
            assert_eq!(
                verdict.action == Action::Accept,
                finding.is_sound(),
                "{finding:?}"
            );
            if finding.frontier == Frontier::Below && !finding.is_sound() {
                assert_eq!(verdict.action, Action::Damage, "{finding:?}");
            }
        }
    }

    #[test]
    fn memory_survives_a_new_boot_only_by_the_clean_marker() {
        for finding in every_finding() {
            let ends = !matches!(decide(&finding).action, Action::Accept | Action::Damage);
            if ends && decide(&finding).remembers && finding.boot == Boot::Other {
                assert_eq!(finding.marker, Marker::EndsHere, "{finding:?}");
            }
        }
    }
}
