# Runs the command in a sandbox that waits for it, unless something else came first. Followed by launch.sh. The lines
# that begin with # are not sent.
#
# Nothing is in these words but the script: a daemon that is asked to run them may log them. The environment has
#
#   ayatori_id         the hold that it is meant for; in another there is nothing to do
#   ayatori_directory  where to run, or nothing
#   ayatori_words      how many words the command has
#   ayatori_word_1...  each of them

# What is set here is not passed on, unlike what came in the environment.
ayatori_attempt=$ayatori_id ayatori_cwd=$ayatori_directory ayatori_left=$ayatori_words
unset ayatori_id ayatori_directory ayatori_words
ayatori_directory=$ayatori_cwd

ayatori_place=/tmp/.ayatori-$ayatori_attempt
[ -e "$ayatori_place/hold" ] || exit 0

# Whatever the environment makes of programs.
ayatori_tool() {
    (
        unset LD_PRELOAD LD_LIBRARY_PATH
        PATH=$PATH:/usr/bin:/bin
        exec "$@" 2>/dev/null
    )
}

ayatori_told=$ayatori_place/told.$$
ayatori_tool rm -f "$ayatori_told"
printf 'ayatori %s: starting%s.\n' "$ayatori_attempt" "$(ayatori_tool date +' at %s')" >"$ayatori_told" &&
    ayatori_tool ln "$ayatori_told" "$ayatori_place/start" || {
    ayatori_tool rm -f "$ayatori_told"
    exit 0
}
# From here on this is the only one. The name is taken off what is `start` now.
ayatori_tool rm -f "$ayatori_told"

ayatori_say() {
    printf '\nayatori %s: %s.\n' "$ayatori_attempt" "$1"
    printf '\nayatori %s: %s.\n' "$ayatori_attempt" "$1" >&2
    printf '\nayatori %s: %s.\n' "$ayatori_attempt" "$1" >>"$ayatori_told"
}

# The end counts that is there first.
ayatori_end() {
    ayatori_tool ln "$ayatori_told" "$ayatori_place/end"
    ayatori_tool rm -f "$ayatori_told"
}

ayatori_refuse() {
    ayatori_say "$1"
    ayatori_end
    exit 125
}

# The output of the command is the container's, where that can be had.
read -r ayatori_log <"$ayatori_place/hold"
ayatori_log=/proc/$ayatori_log/fd
if (: >>"$ayatori_log/1" && : >>"$ayatori_log/2") 2>/dev/null; then
    exec >>"$ayatori_log/1" 2>>"$ayatori_log/2"
fi

set --
while [ "$ayatori_left" -gt 0 ]; do
    ayatori_left=$((ayatori_left - 1)) ayatori_word=ayatori_word_$(($# + 1))
    eval "set -- \"\$@\" \"\$$ayatori_word\""
    unset "$ayatori_word"
done

