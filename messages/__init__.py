"""Messages of the reinforcement-learning actors."""

from messages.control import (
    EvaluateMsg,
    EvaluationResultMsg,
    JoinMsg,
    ProgressMsg,
    SaveCheckpointMsg,
    SaveStateMsg,
    SetCollectingMsg,
    StateSavedMsg,
    TrainResultMsg,
    WorkerCountMsg,
)
from messages.experience import InsertTransitionMsg
from messages.params import LoadParamsMsg
from messages.sampling import BatchTrainingDataMsg, SampleBatchMsg, UpdatePriorityMsg

__all__ = [
    "BatchTrainingDataMsg",
    "EvaluateMsg",
    "EvaluationResultMsg",
    "InsertTransitionMsg",
    "JoinMsg",
    "LoadParamsMsg",
    "ProgressMsg",
    "SampleBatchMsg",
    "SaveCheckpointMsg",
    "SaveStateMsg",
    "SetCollectingMsg",
    "StateSavedMsg",
    "TrainResultMsg",
    "UpdatePriorityMsg",
    "WorkerCountMsg",
]
