from .analysis.story import StoryKey, StoryStop, cause_of, consequences_of, story
from .reading.query import DeliveryRow, Query
from .reading.run_trace import RunTrace
from .reading.where import Where

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
