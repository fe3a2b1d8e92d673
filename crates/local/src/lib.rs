//! L3: the world of N nodes on one machine
