//! Tidegate client.
