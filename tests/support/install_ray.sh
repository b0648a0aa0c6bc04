#!/bin/sh
# Install Ray into an environment of its own, which sees the packages of the interpreter $1 as well. Without Ray its tests
# are skipped aloud.
set -u
python=$1
folder=${ORCHESTRA_RAY_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/orchestra-tests/ray}
[ -x "$folder/bin/ray" ] && exit 0
cd / || exit 0
below=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$python" -m venv "$folder" &&
    echo "$below" >"$("$folder/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/below.pth" &&
    "$folder/bin/python" -m pip install --quiet 'ray[default]>=2.40' >/dev/null 2>&1
[ -x "$folder/bin/ray" ] || echo "Ray could not be installed; its tests are skipped" >&2
exit 0
