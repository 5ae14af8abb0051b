# Runs a command once and writes down how it ended. Any POSIX shell; builtins only, but for `mkdir` and `date` where
# nothing else helps. The lines that begin with # are not sent.
#
#   sh -c SCRIPT NAME ATTEMPT EARLIEST LATEST DIRECTORY COMMAND [ARGUMENT...]
#
# Until the command is started no variable is set but by a name that no environment is likely to hold, for a shell
# passes on what it assigns to a variable of the environment. What runs in ( ) or $( ) may use any.

ayatori_attempt=$1

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

# Seconds since 1970 by the kernel: when it booted and how long ago that was.
ayatori_kernel_clock() {
    while read -r name boot rest && [ "$name" != btime ]; do :; done </proc/stat
    [ "$name" = btime ] && read -r up rest </proc/uptime && echo "$((boot + ${up%%.*}))"
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

if [ "$4" ]; then
    case $4 in /*) ;; *) ayatori_refuse 'no working directory' ;; esac
    cd -- "$4" 2>/dev/null || { mkdir -p -- "$4" && cd -- "$4"; } || ayatori_refuse 'no working directory'
    unset OLDPWD
fi
shift 4

for ayatori_signal in HUP INT QUIT TERM; do
    trap "ayatori_stopped=1 ayatori_signal=$ayatori_signal; kill -$ayatori_signal \"\$!\" 2>/dev/null" "$ayatori_signal"
done
ayatori_stopped= ayatori_signal=
printf 'ayatori %s: starting.\n' "$ayatori_attempt" >&2

# What is started with & would read /dev/null instead of our input.
exec 3<&0
(
    trap - HUP INT QUIT TERM
    # A failed exec ends the shell. bash forgets the trap by then, but can be told to go on, unless in a subshell.
    trap 'case $? in 126 | 127) ayatori_say "unstartable $?" ;; esac' EXIT
    if (shopt -s execfail) 2>/dev/null; then
        exec "$BASH" -c 'shopt -s execfail
            exec -- "${@:2}"
            set -- "$1" $?
            printf "\nayatori %s: unstartable %s.\n" "$@"
            printf "\nayatori %s: unstartable %s.\n" "$@" >&2
            exit "$2"' "$0" "$ayatori_attempt" "$@"
    fi
    # Not every exec knows --, and only a name like this needs it.
    case $1 in
    -*) if (exec -- /bin/sh -c :) 2>/dev/null; then exec -- "$@"; fi ;;
    esac
    exec "$@"
) <&3 3<&- &
exec 3<&-

# A signal that came before there was anything to pass it on to.
[ -z "$ayatori_signal" ] || kill "-$ayatori_signal" "$!" 2>/dev/null

# A signal cuts `wait` short, and the next one tells the code, unless the first already had: then the shell knows
# nothing of the command any more, which is 127.
wait "$!" 2>/dev/null
ayatori_code=$?
while [ "$ayatori_signal" ]; do
    ayatori_signal=
    wait "$!" 2>/dev/null
    ayatori_again=$?
    [ "$ayatori_again" = 127 ] || ayatori_code=$ayatori_again
done

trap '' HUP INT QUIT TERM PIPE
ayatori_say "ended $ayatori_code${ayatori_stopped:+ after a signal}"
exit "$ayatori_code"
