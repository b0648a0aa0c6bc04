"""The environment with the published schemas of Kubernetes, which `install_kubernetes.sh` makes."""

import os
from pathlib import Path


def kubernetes_python() -> Path:
    """Return the interpreter of that environment."""
    cache = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(os.environ.get("ORCHESTRA_KUBERNETES_ENV") or f"{cache}/orchestra-tests/kubernetes")
    return folder / "bin" / "python"


def kubernetes_missing() -> str:
    """Return why YAML cannot be checked here; empty if it can."""
    if kubernetes_python().exists():
        return ""
    return "the schemas of Kubernetes are not installed; `make test-engines` does it"
