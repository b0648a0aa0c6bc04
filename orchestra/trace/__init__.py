"""Traces: recording the messages of a run, reading them again, and analysing them.

    with RunTrace(Path("runs/qmix_8m/1")) as trace:
        stops = story(Query(type="LoadParamsMsg", where=Where("version == 57")).deliveries(trace))

A public name is imported when it is first used; `__init__.pyi` lists them.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
