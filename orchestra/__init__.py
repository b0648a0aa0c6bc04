"""Actors that send each other typed messages, on one machine or many.

A public name is imported when it is first used; `__init__.pyi` lists them. So `import orchestra` costs nothing, and the
command line answers at once.
"""

import sys

if sys.platform == "win32":  # before anything else is imported, which would fail with the name of a module
    _SAID = (
        "orchestra does not run on Windows, since it needs the sockets and processes of Linux: use WSL (wsl --install)"
    )
    if sys.argv[0].endswith(("orchestra", "orchestra.exe")):
        sys.exit(f"orchestra: {_SAID}")
    raise ImportError(_SAID)

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
