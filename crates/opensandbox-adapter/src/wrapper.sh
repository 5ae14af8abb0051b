# Says whether a command may still be run; followed by launch.sh, which runs it. Any POSIX shell; builtins only, but
# for `mkdir` and `date` where nothing else helps. The lines that begin with # are not sent.
#
#   sh -c SCRIPT NAME ATTEMPT EARLIEST LATEST DIRECTORY MARKS COMMAND [ARGUMENT...]
#
# Until the command is started no variable is set but by a name that no environment is likely to hold, for a shell
# passes on what it assigns to a variable of the environment. What runs in ( ) or $( ) may use any.

ayatori_attempt=$1 ayatori_told= ayatori_marked=

# To both streams: each keeps its order, so whichever is drained last has this line at its end. The empty line ends
# what the command left unfinished.
ayatori_say() {
    printf '\nayatori %s: %s.\n' "$ayatori_attempt" "$1"
    printf '\nayatori %s: %s.\n' "$ayatori_attempt" "$1" >&2
}

ayatori_refuse() {
    ayatori_say "$1"
    exit 125
}

# All that shows the end is the log.
ayatori_end() {
    :
}

# Seconds since 1970 by the kernel: when it booted and how long ago that was, rather late than early, for both are
# rounded down.
ayatori_kernel_clock() {
    while read -r name boot rest && [ "$name" != btime ]; do :; done </proc/stat
    [ "$name" = btime ] && read -r up rest </proc/uptime && echo "$((boot + ${up%%.*} + 1))"
}

# 0: in time, 1: too late, 2: nobody knows. A clock that is behind the request is none: some containers are shown an
# uptime of their own.
ayatori_in_time() {
    for clock in ayatori_kernel_clock 'date +%s'; do
        now=$($clock 2>/dev/null)
        case $now in '' | *[!0-9]*) continue ;; esac
        [ "$now" -ge "$1" ] || continue
        [ "$now" -lt "$2" ]
        return
    done
    return 2
}

(ayatori_in_time "$2" "$3")
case $? in
0) ;;
1) ayatori_refuse 'too late' ;;
*) ayatori_refuse 'no clock' ;;
esac

# A container can be started again, by its runtime or by somebody, and its disk remembers the first time: wherever it can
# be written, for some places are emptied. Where nothing can be written nothing would remember, so nothing is started.
for ayatori_mark in $5; do
    [ ! -e "$ayatori_mark" ] || ayatori_refuse 'started before'
done
for ayatori_mark in $5; do
    (set -C && : >"$ayatori_mark") 2>/dev/null && ayatori_marked=1
done
[ "$ayatori_marked" ] || ayatori_refuse 'no place'
unset ayatori_mark ayatori_marked

ayatori_directory=$4
shift 5
