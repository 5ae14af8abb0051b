#!/bin/sh
# Stands in for OpenSandbox's execd, which the server puts into every sandbox and a sandbox's own entrypoint never needs.
exit 0
