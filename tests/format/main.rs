//! The on-disk format as it was released: directories that each later version
//! must read, or refuse in one sentence without touching them.
//!
//! `tests/fixtures/README.md` says what the fixtures are and how they are made.

#[path = "../support/mod.rs"]
mod support;

mod archive;
mod by_page;
mod fixture;
mod make;
mod page;
mod read;
mod refuse;
