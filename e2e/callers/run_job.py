"""Runs the Job of a manifest and ends as its command did: run_job.py NAMESPACE MANIFEST [SECONDS]"""

import signal
import sys
import time

import urllib3
import yaml
from kubernetes import client, config, watch

JOBS = {"group": "execution.ayatori.ddupan.top", "version": "v1alpha1", "plural": "jobs"}


def run(namespace, manifest, seconds=3600):
    """Creates a Job and returns its result; None if somebody deleted it. Cancels it if that takes too long."""
    jobs = client.CustomObjectsApi()
    job = jobs.create_namespaced_custom_object(namespace=namespace, body=manifest, **JOBS)
    name = job["metadata"]["name"]
    try:
        return wait(jobs, namespace, name, seconds)
    except BaseException:  # this process being told to stop, too
        cancel = {"spec": {"cancelRequested": True}}
        jobs.patch_namespaced_custom_object(namespace=namespace, name=name, body=cancel, **JOBS)
        raise


def wait(jobs, namespace, name, seconds):
    deadline = time.monotonic() + seconds
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
                    return None
        except (client.ApiException, urllib3.exceptions.HTTPError) as error:
            if 400 <= getattr(error, "status", 500) < 500 and error.status != 410:
                raise
            time.sleep(1)  # the API server may be away for a moment; the Job goes on meanwhile
    raise TimeoutError(f"Job {name} was not finished within {seconds} s: cancelled")


def main(namespace, manifest, *seconds):
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    config.load_config()  # a kubeconfig, or the account of the pod this runs in
    with open(manifest, encoding="utf-8") as file:
        result = run(namespace, yaml.safe_load(file), *map(int, seconds))
    if result is None:
        return "somebody deleted the Job"
    if result["reason"] in ("Completed", "NonZeroExit"):
        return result["exitCode"]
    return f"{result['outcome']}: {result['reason']}: {result.get('message', '')}"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
