//! A small-scope model of rules R1 to R7: one group on up to four nodes, a few
//! entries, every order of steps, checked exhaustively with `stateright`.
//!
//! Read in this order:
//! - [`state`]: what a node, group 0 and the outside observer hold;
//! - [`step`]: what can happen, one file for each theme;
//! - [`gates`]: when a leader commits, applies, passes its barrier, confirms;
//! - [`promises`]: what must never happen, and what must stay possible;
//! - [`heal`]: that there is a way out of every state;
//! - [`rules`]: what can be dropped, to see that it was needed;
//! - [`drops`]: which scope shows it;
//! - [`scope`]: the bounds of a run; [`model`] joins them; [`run`] reports.
//!
//! What the model leaves out is listed in `docs/replication-model.md`. The words
//! and names are those of the design; the code of the server carries them too.

pub mod drops;
pub mod gates;
pub mod heal;
pub mod model;
pub mod promises;
pub mod rules;
pub mod run;
pub mod scope;
pub mod state;
pub mod step;
mod symmetry;
