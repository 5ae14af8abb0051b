"""Runs the Job of a manifest and ends as its command did: run_job.py NAMESPACE MANIFEST [SECONDS]

Ends with 125 where there is no code of the command, and with 143 if it is stopped itself.
"""

import math
import signal
import sys
import time

import urllib3
import yaml
from kubernetes import client, config, watch

JOBS = {"group": "execution.ayatori.ddupan.top", "version": "v1alpha1", "plural": "jobs"}
# Seconds. A connection may die without a word, and is then read from for ever unless there is a limit.
ANSWER, WATCH = 10, 60


def run(namespace, manifest, seconds=3600):
    """Creates a Job and returns its result. Cancels it if that takes too long."""
    configuration = client.Configuration.get_default_copy()
    configuration.retries = 0  # whoever is not answered is asked again by `wait`, for as long as there is time
    jobs = client.CustomObjectsApi(client.ApiClient(configuration))
    job = jobs.create_namespaced_custom_object(
        namespace=namespace,
        body=manifest,
        field_validation="Strict",  # a misspelt field is refused, not dropped
        _request_timeout=ANSWER,
        **JOBS,
    )
    name = job["metadata"]["name"]
    try:
        return wait(jobs, namespace, name, seconds)
    except BaseException:  # this process being told to stop, too
        cancel(jobs, namespace, name)
        raise


def cancel(jobs, namespace, name):
    try:
        jobs.patch_namespaced_custom_object(
            namespace=namespace,
            name=name,
            body={"spec": {"cancelRequested": True}},
            _request_timeout=ANSWER,
            **JOBS,
        )
        print(f"Job {name} was cancelled", file=sys.stderr)
    except (client.ApiException, urllib3.exceptions.HTTPError) as error:
        print(f"Job {name} could not be cancelled: {error}", file=sys.stderr)


def wait(jobs, namespace, name, seconds):
    deadline = time.monotonic() + seconds
    said = None
    while (left := deadline - time.monotonic()) > 0:
        turn = math.ceil(min(left, WATCH))
        try:  # every watch begins with the Job as it is
            for event in watch.Watch().stream(
                jobs.list_namespaced_custom_object,
                namespace=namespace,
                field_selector=f"metadata.name={name}",
                timeout_seconds=turn,
                _request_timeout=(ANSWER, turn + ANSWER),
                **JOBS,
            ):
                status = event["object"].get("status", {})
                conditions = status.get("conditions", [])
                if any(c["type"] == "Finished" and c["status"] == "True" for c in conditions):
                    return status["result"]
                if event["type"] == "DELETED":
                    raise RuntimeError(f"somebody deleted Job {name}")
                waits_for = "; ".join(c["message"] for c in conditions if c["status"] == "False")
                if waits_for and waits_for != said:
                    print(f"{name} waits: {waits_for}", file=sys.stderr)
                    said = waits_for
        except (client.ApiException, urllib3.exceptions.HTTPError) as error:
            if 400 <= getattr(error, "status", 500) < 500 and error.status not in (410, 429):
                raise
            time.sleep(1)  # the API server may be away for a moment; the Job goes on meanwhile
    raise TimeoutError(f"Job {name} was not finished within {seconds} s")


def main(namespace, manifest, *seconds):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    config.load_config()  # a kubeconfig, or the account of the pod this runs in
    with open(manifest, encoding="utf-8") as file:
        result = run(namespace, yaml.safe_load(file), *map(int, seconds))
    if result["reason"] in ("Completed", "NonZeroExit"):
        return result["exitCode"]
    raise RuntimeError(f"{result['outcome']}: {result['reason']}: {result.get('message', '')}")


if __name__ == "__main__":
    try:
        code = main(*sys.argv[1:])
    except Exception as error:  # Python would end with 1, which is a code that commands have
        print(error, file=sys.stderr)
        code = 125
    sys.exit(code)
