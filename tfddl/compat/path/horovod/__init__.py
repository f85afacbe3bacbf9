"""The package `horovod` that `tfddlrun --horovod` puts on the path of the ranks: tfddl with Horovod's names."""

import tfddl.compat.horovod  # noqa: F401 puts itself into the place of this module
