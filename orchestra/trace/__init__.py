"""Traces: recording the messages of a run, reading them again, and analysing them.

with RunTrace(Path("runs/qmix_8m/1")) as trace:
stops = story(Query(type="LoadParamsMsg", where=Where("version == 57")).deliveries(trace))
"""

from orchestra.trace.analysis.story import StoryKey, StoryStop, cause_of, consequences_of, story
from orchestra.trace.reading.query import DeliveryRow, Query
from orchestra.trace.reading.run_trace import RunTrace
from orchestra.trace.reading.where import Where

__all__ = [
    "DeliveryRow",
    "Query",
    "RunTrace",
    "StoryKey",
    "StoryStop",
    "Where",
    "cause_of",
    "consequences_of",
    "story",
]
