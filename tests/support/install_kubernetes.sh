#!/bin/sh
# Install the published schemas of Kubernetes and JobSet, and a reader of YAML, into an environment of their own. $1 is an interpreter.
# Without them the tests of Kubernetes are skipped aloud.
set -u
folder=${ORCHESTRA_KUBERNETES_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/orchestra-tests/kubernetes}
[ -d "$folder" ] && "$folder/bin/python" -c 'import kubernetes_validate, kubeflow_trainer_api' 2>/dev/null && exit 0
"$1" -m venv "$folder" && "$folder/bin/python" -m pip install --quiet 'kubernetes-validate>=1.30' 'kubeflow-trainer-api>=2.0' >/dev/null 2>&1
"$folder/bin/python" -c 'import kubernetes_validate, kubeflow_trainer_api' 2>/dev/null ||
    echo "The schemas of Kubernetes could not be installed; its tests are skipped" >&2
exit 0
