"""Ranks whose processors have different instruction sets: compiled programs give them the same weights."""

import os
from types import SimpleNamespace

import pytest
import tensorflow as tf

from tests.harness import long, run_script
from tfddl.build import support
from tfddl.runtime import processors

SCRIPT = """
import os
if os.environ["OMPI_COMM_WORLD_RANK"] == "1":  # as on a host with an old processor
    os.environ["ONEDNN_MAX_CPU_ISA"] = "SSE41"
    os.environ["XLA_FLAGS"] = "--xla_cpu_max_isa=SSE4_2"
import keras
import tfddl as hvd
from tests.keras import support

hvd.init()
network = support.model()
optimizer = hvd.DistributedOptimizer(keras.optimizers.AdamW(0.01, global_clipnorm=0.5))
network.compile(optimizer, "mse", jit_compile=True)
x, y = support.shard(support.data(hvd.size()), hvd.rank(), hvd.size())
broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
network.fit(x, y, batch_size=support.BATCH, epochs=3, verbose=0, callbacks=[broadcast])
support.check_equal_on_all_ranks(hvd, network.variables + network.optimizer.variables)
print("flags", os.environ["XLA_FLAGS"], flush=True)
"""
OLD = "sse4_1 sse4_2 avx f16c"
AVX512 = OLD + " avx2 fma avx512f avx512bw avx512cd avx512dq avx512vl"


@pytest.mark.skipif(
    support.major_minor(tf.__version__) < support.XLA_MAX_ISA,
    reason="XLA before TensorFlow 2.19 has no such limit",
)
@pytest.mark.parametrize("size", [2, long(3)])
def test_compiled_weights(size):
    result = run_script(size, SCRIPT)
    assert result.code == 0, result.output
    assert result.output.count("flags --xla_cpu_max_isa=SSE4_2") == size
    assert result.output.count("different instruction sets (rank") == 1


@pytest.mark.parametrize(
    ("flags", "limit", "name"),
    [
        ("", "", ""),
        ("", "--xla_cpu_max_isa=AVX2", ""),
        ("sse4_2", "", "SSE4_2"),
        (OLD, "", "AVX"),
        (OLD + " avx2", "", "AVX"),  # without fused operations
        (AVX512, "", "AVX512"),
        (AVX512 + " avx512_bf16", "", "AVX512"),
        (AVX512 + " avx512_vnni avx512_bf16", "", "AVX512_BF16"),
        (AVX512, "--xla_cpu_max_isa=avx2 --xla_dump_to=/tmp", "AVX2"),
        (OLD, "--xla_cpu_max_isa=AVX512", "AVX"),
        (AVX512, "--xla_cpu_max_isa=unheard_of", "AVX512"),
    ],
)
def test_instruction_set(monkeypatch, flags, limit, name):
    monkeypatch.setattr(processors, "_processor_flags", lambda: set(flags.split()))
    monkeypatch.setenv("XLA_FLAGS", limit)
    assert processors.instruction_set() == name


@pytest.mark.parametrize(
    ("sets", "version", "flags", "says"),
    [
        (("AVX2", "AVX2"), "2.21.0", "", None),
        (("AVX512", ""), "2.21.0", "", None),  # ARM, or no /proc
        (("AVX512", "AVX2"), "2.21.0", "--xla_cpu_max_isa=AVX2", "XLA compiles for AVX2 on all ranks"),
        (("AVX512", "AVX2"), "2.18.1", "", "use jit_compile=False, or TensorFlow 2.19 or later"),
        (("AVX2", "AVX512"), "2.21.0", "", "XLA compiles for AVX2 on all ranks"),
    ],
)
def test_limit(monkeypatch, sets, version, flags, says):
    """On rank 0 of two ranks."""
    job = SimpleNamespace(rank=0, instruction_sets=sets)
    monkeypatch.setattr(processors.discover, "tensorflow_version", lambda: version)
    monkeypatch.setenv("XLA_FLAGS", "")
    processors.limit_xla(job)
    assert os.environ["XLA_FLAGS"] == flags
    said = processors.about_xla(job)
    assert said is None if says is None else says in said
