//! L3: decorators of ports that crash, fail or delay on purpose
