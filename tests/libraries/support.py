"""The tests of all libraries share this."""


def callbacks(hvd):
    """The callbacks of a usual `fit`."""
    return [hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()]
