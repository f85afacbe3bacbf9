"""Training that goes on after a rank or a host is lost: `tfddl.elastic`, with Horovod's names.

    state.py       what a program wants to keep: State, ObjectState; variables_state.py: TensorFlowState, KerasState
    commits.py     commits in files outside the processes
    extra_state.py values beside the variables: outer states of local steps, residuals of compressions
    training.py    run: restores, trains, and restores again
    survive.py     whether a process goes on with the ranks that are left
    hand_over.py   the end of a start at a commit, when hosts come or go
    fit.py         ElasticCallback: fit goes on in the middle of an epoch; fit_state.py, fit_data.py, callback_states.py
    callbacks.py   commits during fit, with Horovod's names
    errors.py      the exceptions that make run restore a state

`tfddlrun --elastic` starts a job again on the ranks that are left (`tfddl.launch.elastic`).
"""

from tfddl.elastic.callbacks import CommitStateCallback, UpdateBatchStateCallback, UpdateEpochStateCallback
from tfddl.elastic.errors import HorovodInternalError, HostsUpdatedInterrupt
from tfddl.elastic.fit import add_to_every_fit as add_to_every_fit
from tfddl.elastic.state import ObjectState, State
from tfddl.elastic.training import run
from tfddl.elastic.variables_state import KerasState, TensorFlowKerasState, TensorFlowState

__all__ = [
    "CommitStateCallback",
    "HorovodInternalError",
    "HostsUpdatedInterrupt",
    "KerasState",
    "ObjectState",
    "State",
    "TensorFlowKerasState",
    "TensorFlowState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]
