"""Which GPU each process gets, on hosts that TensorFlow is made to see."""

import os
from contextlib import contextmanager
from unittest import mock

import pytest
import tensorflow as tf

from tests.harness import on_ranks


@contextmanager
def host(count, **environment):
    """A host with so many GPUs, and what is asked of TensorFlow there."""
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{number}", "GPU") for number in range(count)]
    asked = mock.Mock()
    with (
        mock.patch.dict(
            os.environ, {"CUDA_VISIBLE_DEVICES": "", "NCCL_MULTI_RANK_GPU_ENABLE": "", **environment}
        ),
        mock.patch.object(tf.config, "list_physical_devices", lambda kind: gpus if kind == "GPU" else []),
        mock.patch.object(tf.config, "set_visible_devices", asked.show),
        mock.patch.object(tf.config.experimental, "set_memory_growth", asked.grow),
    ):
        yield gpus, asked


@on_ranks(1, 2, 3)
def test_each_process_has_its_own(hvd):
    with host(4) as (gpus, asked):
        mine = gpus[hvd.local_rank()]
        assert hvd.set_visible_gpu() is mine
        assert asked.mock_calls == [mock.call.show(mine, "GPU"), mock.call.grow(mine, True)]
        assert hvd.set_visible_gpu(memory_growth=False) is mine
        assert asked.mock_calls[2:] == [mock.call.show(mine, "GPU")]


@on_ranks(1, 2)
def test_no_gpu(hvd):
    with host(0) as (_, asked):
        assert hvd.set_visible_gpu() is None
    assert not asked.mock_calls


@on_ranks(2, 3)
def test_more_processes_than_gpus(hvd):
    with host(hvd.size() - 1) as (gpus, _):
        if hvd.local_rank() < len(gpus):
            assert hvd.set_visible_gpu() is gpus[hvd.local_rank()]
            return
        text = rf"rank {hvd.rank()} has no GPU: .* runs {hvd.size()} processes, .* sees {len(gpus)} GPU"
        with pytest.raises(RuntimeError, match=text):
            hvd.set_visible_gpu()


@on_ranks(2)
def test_one_gpu_for_all_on_purpose(hvd):
    with host(1, NCCL_MULTI_RANK_GPU_ENABLE="1") as ((only,), _):
        assert hvd.set_visible_gpu() is only
    with host(1, CUDA_VISIBLE_DEVICES=str(hvd.rank())) as ((only,), _):  # as a scheduler does
        assert hvd.set_visible_gpu() is only


@on_ranks(1)
def test_too_late(hvd):
    with host(1) as (_, asked):
        asked.show.side_effect = RuntimeError("Visible devices cannot be modified after being initialized")
        with pytest.raises(
            RuntimeError, match=r"too late on rank 0: call it right after hvd.init.* cannot be modified"
        ):
            hvd.set_visible_gpu()


def test_before_init():
    import tfddl as hvd

    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.set_visible_gpu()
