#!/bin/sh
# Runs the one Job of a manifest and ends as its command did: run-job.sh MANIFEST [SECONDS]
#
#   its own code   the command ended by itself
#   124            it was not finished within SECONDS (an hour); it was cancelled
#   125            there is no code of the command; the last line says why
#   130            somebody cancelled it
#   143            this step was stopped; the Job was cancelled
set -eu
manifest=$1
deadline=$(($(date +%s) + ${2:-3600}))
made='' waiting='' said='' result=''

kind=Job.execution.ayatori.ddupan.top
# Of each object that is made. The manifest may name another namespace than kubectl's context.
what='{.kind}.{.apiVersion} {.metadata.namespace} {.metadata.name}{"\n"}'

# What a Job is doing, and what it waits for.
now='{.status.state} {.status.conditions[?(@.status=="False")].message}'
fields='{.status.result.outcome}|{.status.result.reason}|{.status.result.exitCode}'
fields="$fields|{.status.correlation.selector}|{.status.result.message}"

cancel() {
  # More than one, if the manifest was wrong. If it cannot be done, kubectl says why.
  echo "$made" | while read -r _ of name; do
    kubectl patch "$kind" "$name" --namespace="$of" --type=merge --patch '{"spec":{"cancelRequested":true}}' >&2 || true
  done
}

ask() {
  kubectl get "$kind" "$job" --namespace="$namespace" "$@"
}

stopped() {
  trap '' HUP INT TERM
  [ -z "$waiting" ] || kill "$waiting" 2>/dev/null || true
  [ -z "$made" ] || cancel
  exit 143
}
trap stopped HUP INT TERM

if ! made=$(kubectl create --filename="$manifest" --output=jsonpath="$what") ||
  [ "$(echo "$made" | wc -l)" -ne 1 ] || [ "${made%%/*}" != "$kind" ]; then
  [ -z "$made" ] || cancel
  echo "$manifest did not make exactly one Job" >&2
  exit 125
fi
read -r _ namespace job <<MADE
$made
MADE
echo "created Job $job in namespace $namespace" >&2

while left=$((deadline - $(date +%s))) && [ "$left" -gt 0 ]; do
  # In the background, because a shell attends to signals only between commands, and while it waits like this.
  kubectl wait "$kind/$job" --namespace="$namespace" --for=condition=Finished \
    --timeout="$((left < 10 ? left : 10))s" >/dev/null 2>&1 &
  waiting=$!
  wait "$waiting" && result=$(ask --output=jsonpath="$fields") && break
  # The API server may be away for a moment; the Job goes on meanwhile.
  if seen=$(ask --ignore-not-found --output=jsonpath="$now"); then
    [ -n "$seen" ] || { echo "somebody deleted Job $job" >&2; exit 125; }
    [ "$seen" = "$said" ] || echo "$seen" >&2
    said=$seen
  fi
  sleep 1
done

if [ -z "$result" ]; then
  kubectl describe "$kind" "$job" --namespace="$namespace" >&2 || true # what it waits for
  cancel
  echo "not finished in time" >&2
  exit 124
fi
IFS='|' read -r outcome reason code selector message <<RESULT
$result
RESULT

if [ -n "$selector" ]; then
  if [ -n "$(kubectl get pods --namespace="$namespace" --selector="$selector" --output=name)" ]; then
    kubectl logs --namespace="$namespace" --tail=-1 --selector="$selector" || true
  else
    echo "no pod of it is left: what it printed is in the log store" >&2
  fi
fi

case $reason in
  Completed | NonZeroExit) exit "$code" ;; # in every other case the code says nothing about the command
esac
ask --output=jsonpath="$now{\"\n\"}" >&2 || true # what it waited for to the end
echo "$outcome: $reason: $message" >&2
[ "$outcome" = Cancelled ] && exit 130
exit 125
