#!/bin/sh
# Install Ray and orchestra, with all that it needs, into an environment of their own. $1 is an interpreter. Without Ray its
# tests are skipped aloud.
set -u
root=$(cd "$(dirname "$0")/../.." && pwd)
folder=${ORCHESTRA_RAY_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/orchestra-tests/ray}
complete() { [ -x "$folder/bin/ray" ] && (cd / && "$folder/bin/python" -c 'import ray, torch, orchestra') 2>/dev/null; }
complete && exit 0
mkdir -p "$folder"
{ "$1" -m venv --clear "$folder" &&
    "$folder/bin/python" -m pip install --quiet --constraint "$root/constraints.txt" --editable "$root[ray,hosts]"; } >"$folder.log" 2>&1
complete || { tail -3 "$folder.log" >&2; echo "Ray could not be installed; its tests are skipped" >&2; }
exit 0
