# Keeps a sandbox up in which nothing runs yet. The lines that begin with # are not sent.
#
#   sh -c SCRIPT NAME SANDBOX SECONDS
#
# SANDBOX is the name under which it tells who it is: an id of its own for each time the container is started, since a
# container that is started again has lost what ran in it, and maybe its files. The place with that id in its name
# holds what lasts:
#
#   hold   it waits here, and the process whose output is the container's log
#   start  who came first: the command, a stop, or the time that ran out
#   end    what came first: how the command ended, or a stop
#
# Every one of them is made by a hard link, which one of many gets and no other, and then never changes. What a stop and
# the end of the time have to say is written before, for later the disk may be full.

umask 077

ayatori_fail() {
    printf '\nayatori: the sandbox cannot wait for its command: %s.\n' "$1" >&2
    exit 1
}

mkdir -p /tmp || ayatori_fail 'there is no /tmp'

# It was up before. What ran then does not any more.
if { read -r old <"/tmp/.ayatori-$1"; } 2>/dev/null; then
    (
        cd "/tmp/.ayatori-$old" || exit
        ln lost start
        ln lost end
    ) 2>/dev/null
fi

read -r id </proc/sys/kernel/random/uuid || ayatori_fail 'it has no /proc'
place=/tmp/.ayatori-$id
mkdir "$place" || ayatori_fail 'its /tmp cannot be written to'
for word in stopped 'too late' lost; do
    printf 'ayatori %s: %s.\n' "$id" "$word" >"$place/${word#* }" || ayatori_fail 'its /tmp is full'
done
printf '%s\n' "$$" >"$place/held" && ln "$place/held" "$place/hold" || ayatori_fail 'its /tmp has no hard links'
printf '%s\n' "$id" >"$place/id" && mv -f "$place/id" "/tmp/.ayatori-$1" || ayatori_fail 'its /tmp cannot be written to'

left=$2
while [ "$left" -gt 0 ] && [ ! -e "$place/start" ]; do
    sleep 1
    left=$((left - 1))
done

if ln "$place/late" "$place/start" 2>/dev/null; then
    printf '\nayatori %s: too late.\n' "$id"
    exit 0
fi

# What the command has left stays readable until the sandbox is deleted, or expires.
while :; do
    sleep 3600
done
