"""What reinforcement-learning actors say to each other."""

from messages.control import (
    CheckpointMsg,
    EvaluatedMsg,
    EvaluateMsg,
    JoinMsg,
    MembersMsg,
    PaceMsg,
    ProgressMsg,
    SavedMsg,
    SaveMsg,
    TrainedMsg,
)
from messages.experience import InsertTransitionMsg
from messages.params import LoadParamsMsg
from messages.sampling import BatchTrainingDataMsg, SampleBatchMsg, UpdatePriorityMsg

__all__ = [
    "BatchTrainingDataMsg",
    "CheckpointMsg",
    "EvaluateMsg",
    "EvaluatedMsg",
    "InsertTransitionMsg",
    "JoinMsg",
    "LoadParamsMsg",
    "MembersMsg",
    "PaceMsg",
    "ProgressMsg",
    "SampleBatchMsg",
    "SaveMsg",
    "SavedMsg",
    "TrainedMsg",
    "UpdatePriorityMsg",
]
