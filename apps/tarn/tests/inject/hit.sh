#!/bin/bash
# hit.sh: stands in $HIT_FOLDER/bin before a program of $HIT_FOLDER/real, by the name that it is called by. Call number $HIT_CALL of all
# such calls is hit: it fails and does nothing (fails), fails after it has done its work (late), or whoever made it is killed before it
# does anything (before) or after it has done its work (after), or gets SIGTERM (term) or SIGHUP (hup) before it does it.
set -euo pipefail
program=${0##*/}
real=$HIT_FOLDER/real/$program
exec 9>> "$HIT_FOLDER/calls"
flock 9
echo "$program ${1-}" >&9
number=$(wc -l < "$HIT_FOLDER/calls")
exec 9>&-
[ "$number" = "$HIT_CALL" ] || exec "$real" "$@"
case $HIT_HOW in
    fails) ;;
    late) "$real" "$@" > /dev/null ;;
    term)
        kill -TERM "$PPID"
        exec "$real" "$@"
        ;;
    hup)
        kill -HUP "$PPID"
        exec "$real" "$@"
        ;;
    before) kill -KILL "$PPID" ;;
    after)
        "$real" "$@" > /dev/null || true
        kill -KILL "$PPID"
        ;;
esac
echo "$program: it does not work today" >&2
exit 1
