# Runs a command and says how it ended; what comes before this says whether it may be run. It leaves
#
#   $ayatori_attempt    what this run is called
#   $ayatori_directory  where to run, or nothing
#   $ayatori_told       a file that hears what is said, or nothing
#   ayatori_say         says something
#   ayatori_refuse      says why nothing is run, and ends
#   ayatori_end         what is to be done when the command has ended
#   $@                  the command

if [ "$ayatori_directory" ]; then
    case $ayatori_directory in /*) ;; *) ayatori_refuse 'no working directory' ;; esac
    cd -- "$ayatori_directory" 2>/dev/null || { mkdir -p -- "$ayatori_directory" && cd -- "$ayatori_directory"; } || ayatori_refuse 'no working directory'
    unset OLDPWD
fi

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
            exec -- "${@:3}"
            set -- "$2" "$1" $?
            printf "\nayatori %s: unstartable %s.\n" "$2" "$3"
            printf "\nayatori %s: unstartable %s.\n" "$2" "$3" >&2
            [ -z "$1" ] || printf "\nayatori %s: unstartable %s.\n" "$2" "$3" >>"$1"
            exit "$3"' "$0" "$ayatori_attempt" "$ayatori_told" "$@"
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
ayatori_end
exit "$ayatori_code"
