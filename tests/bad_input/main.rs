//! Bad input, against the real server process: whatever comes in, the server
//! answers with a typed error or closes, never panics, never hangs, keeps its
//! memory bounded and serves everyone else.

mod bodies;
mod configuration;
mod crowds;
mod frames;
mod limits;
mod machine;
mod rawwire;
mod requests;
mod settles;
