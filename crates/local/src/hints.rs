//! What a step that has failed may be about, and what to do.

/// What a shell says of a program that a signal has ended: this, and the signal's number.
const SIGNALLED: i32 = 128;
const PIPE: i32 = 13;

/// What an exit status may mean that is not the program's own.
pub(crate) fn of_status(status: i32) -> &'static str {
    match status {
        status if status == SIGNALLED + PIPE => {
            " (SIGPIPE: the reader of a pipe ended before its writer, as in `yes | head`, which fails the step under `pipefail`; write \
             `(yes || true) | head`, or say `shell = \"bash -eu\"`)"
        }
        _ => "",
    }
}
