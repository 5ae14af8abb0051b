"""Runs the Job of a manifest and ends as its command did: run_job.py NAMESPACE MANIFEST [SECONDS]

Ends with 125 where there is no code of the command, and with 143 if it is stopped itself.
"""

import signal
import sys
import time

import urllib3
import yaml
from kubernetes import client, config, watch

JOBS = {"group": "execution.ayatori.ddupan.top", "version": "v1alpha1", "plural": "jobs"}


def run(namespace, manifest, seconds=3600):
    """Creates a Job and returns its result. Cancels it if that takes too long."""
    jobs = client.CustomObjectsApi()
    job = jobs.create_namespaced_custom_object(
        namespace=namespace,
        body=manifest,
        field_validation="Strict",  # a misspelt field is refused, not dropped
        **JOBS,
    )
    name = job["metadata"]["name"]
    try:
        return wait(jobs, namespace, name, seconds)
    except BaseException:  # this process being told to stop, too
        cancel = {"spec": {"cancelRequested": True}}
        jobs.patch_namespaced_custom_object(namespace=namespace, name=name, body=cancel, **JOBS)
        raise


def wait(jobs, namespace, name, seconds):
    deadline = time.monotonic() + seconds
    said = None
    while (left := int(deadline - time.monotonic())) > 0:
        try:  # every watch begins with the Job as it is
            for event in watch.Watch().stream(
                jobs.list_namespaced_custom_object,
                namespace=namespace,
                field_selector=f"metadata.name={name}",
                timeout_seconds=left,
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
    raise TimeoutError(f"Job {name} was not finished within {seconds} s: cancelled")


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
