//! Windows that are too small for chance.
