"""Messages of the reinforcement-learning actors."""

from messages.control import ClaimRoleMsg as ClaimRoleMsg
from messages.control import CollectMsg as CollectMsg
from messages.control import EvaluateMsg as EvaluateMsg
from messages.control import EvaluationResultMsg as EvaluationResultMsg
from messages.control import JoinMsg as JoinMsg
from messages.control import NotSavedMsg as NotSavedMsg
from messages.control import ProgressMsg as ProgressMsg
from messages.control import SaveCheckpointMsg as SaveCheckpointMsg
from messages.control import SaveStateMsg as SaveStateMsg
from messages.control import StateSavedMsg as StateSavedMsg
from messages.control import TrainResultMsg as TrainResultMsg
from messages.control import WorkerCountMsg as WorkerCountMsg
from messages.experience import InsertTransitionMsg as InsertTransitionMsg
from messages.params import Decision as Decision
from messages.params import LoadParamsMsg as LoadParamsMsg
from messages.params import ProbesMsg as ProbesMsg
from messages.params import PullParamsMsg as PullParamsMsg
from messages.params import SyncMsg as SyncMsg
from messages.params import VersionMsg as VersionMsg
from messages.sampling import BatchTrainingDataMsg as BatchTrainingDataMsg
from messages.sampling import SampleBatchMsg as SampleBatchMsg
from messages.sampling import UpdatePriorityMsg as UpdatePriorityMsg
from messages.shards import DrawEpisodesMsg as DrawEpisodesMsg
from messages.shards import ShardEpisodesMsg as ShardEpisodesMsg
from messages.shards import ShardSizeMsg as ShardSizeMsg
