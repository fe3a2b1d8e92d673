//! L3: movers of file trees: copy, hash, verify, publish
