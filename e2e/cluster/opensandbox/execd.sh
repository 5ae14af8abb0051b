#!/bin/sh
# Stands in for OpenSandbox's execd, which the server puts into every sandbox and no entrypoint needs.
exit 0
