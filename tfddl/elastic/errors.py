"""The exceptions after which `tfddl.elastic.run` restores a state and calls its function again."""


class HorovodInternalError(RuntimeError):
    """A collective failed because of another rank: the state goes back to its last commit. Horovod's name."""


class HostsUpdatedInterrupt(RuntimeError):
    """The hosts of the job have changed: the state stays as it is. Horovod's name.

    Args:
        skip_sync: Whether the ranks that go on may keep their state without another broadcast.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__()
        self.skip_sync = skip_sync
