//! L1: the few unsafe or Linux-specific system calls, made safe
