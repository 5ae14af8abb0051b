#!/bin/sh
# Runs the Job of a manifest and ends as its command did: run-job.sh MANIFEST [SECONDS]
#
#   its own code   the command ended by itself
#   124            it was not finished within SECONDS (an hour); it was cancelled
#   125            there is no code of the command; the last line says why
#   130            somebody cancelled it
#   143            this step was stopped; the Job was cancelled
set -eu
manifest=$1
deadline=$(($(date +%s) + ${2:-3600}))
job='' waiting=''

show() {
  kubectl get "$job" --output=jsonpath="$1"
}

cancel() {
  kubectl patch "$job" --type=merge --patch '{"spec":{"cancelRequested":true}}' >&2
}

stopped() {
  trap '' HUP INT TERM
  [ -z "$waiting" ] || kill "$waiting" 2>/dev/null || true
  [ -z "$job" ] || cancel
  exit 143
}
trap stopped HUP INT TERM

job=$(kubectl create --filename="$manifest" --output=name)
echo "created $job" >&2

while left=$((deadline - $(date +%s))) && [ "$left" -gt 0 ]; do
  # In the background, because a shell attends to signals only between commands, and while it waits like this.
  kubectl wait "$job" --for=condition=Finished --timeout="${left}s" >&2 &
  waiting=$!
  wait "$waiting" && break
  if found=$(kubectl get "$job" --ignore-not-found --output=name) && [ -z "$found" ]; then
    echo "somebody deleted $job" >&2
    exit 125
  fi
  sleep 1 # the API server may be away for a moment; the Job goes on meanwhile
done

read -r outcome reason code <<STATUS
$(show '{.status.result.outcome} {.status.result.reason} {.status.result.exitCode}')
STATUS

if [ -z "$outcome" ]; then
  kubectl describe "$job" >&2 # what it waits for
  cancel
  echo "not finished in time: cancelled" >&2
  exit 124
fi

# The output of a pod that was stopped, or of a sandbox, is in the log store alone.
kubectl logs --tail=-1 --selector="$(show '{.status.correlation.selector}')" || true

case $reason in
  Completed | NonZeroExit) exit "$code" ;; # in every other case the code says nothing about the command
esac
echo "$outcome: $reason: $(show '{.status.result.message}')" >&2
[ "$outcome" = Cancelled ] && exit 130
exit 125
