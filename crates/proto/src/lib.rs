//! L1: messages between processes. Parsers are total: whatever the bytes are, they return a value or an error, and
//! take no more memory than the named bounds allow.

pub mod data;
