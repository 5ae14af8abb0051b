#!/bin/sh
# Stands in for the bootstrap of OpenSandbox's execd image: runs the sandbox's entrypoint and ends as it ends. Asked
# to terminate it passes that on, waits, and ends with 0 whatever the entrypoint's code, as the real one does.
entrypoint=
trap 'kill -TERM "$entrypoint" 2>/dev/null; wait "$entrypoint"; exit 0' TERM
"$@" &
entrypoint=$!
wait "$entrypoint"
