"""Which GPU each process gets, from `init()` and from `set_visible_gpu()`, on hosts that TensorFlow is made to see."""

import logging
import os
from contextlib import contextmanager
from unittest import mock

import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tfddl.runtime import gpu
from tfddl.runtime.job import process

LATE = RuntimeError("Visible devices cannot be modified after being initialized")


@contextmanager
def host(count, **environment):
    """A host with so many GPUs, and what is asked of TensorFlow there. No `init()` has run in this process yet."""
    gpus = [tf.config.PhysicalDevice(f"/physical_device:GPU:{number}", "GPU") for number in range(count)]
    visible = list(gpus)
    asked = mock.Mock()
    asked.show.side_effect = lambda device, kind: visible.__setitem__(slice(None), [device])
    plain = {"CUDA_VISIBLE_DEVICES": "", "NCCL_MULTI_RANK_GPU_ENABLE": "", "TFDDL_PIN_GPU": ""}
    with (
        mock.patch.object(process, "pinning_is_done", False),
        mock.patch.dict(os.environ, {**plain, **environment}),
        mock.patch.object(tf.config, "list_physical_devices", lambda kind: gpus if kind == "GPU" else []),
        mock.patch.object(tf.config, "get_visible_devices", lambda kind: visible if kind == "GPU" else []),
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
        asked.show.side_effect = LATE
        with pytest.raises(
            RuntimeError, match=r"too late on rank 0: call it right after hvd.init.* cannot be modified"
        ):
            hvd.set_visible_gpu()


def test_before_init():
    import tfddl as hvd

    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.set_visible_gpu()


def rank_of(local_size, local_rank=0):
    """The job of one of the ranks of a host."""
    return mock.Mock(rank=4 + local_rank, local_rank=local_rank, local_size=local_size)


def seen():
    return tf.config.get_visible_devices("GPU")


@on_ranks(2)
def test_init_pins_once(hvd):
    hvd.shutdown()
    with host(2) as (gpus, asked):
        hvd.init()
        assert asked.mock_calls == [
            mock.call.show(gpus[hvd.local_rank()], "GPU")
        ]  # memory growth is left alone
        asked.show.side_effect = LATE
        hvd.shutdown()
        hvd.init()
        assert len(asked.mock_calls) == 1


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("index", [0, 1])
def test_a_gpu_for_each_rank(count, index, caplog):
    with host(count) as (gpus, _):
        gpu.pin_once(rank_of(2, index))
        assert seen() == [gpus[index]]
        assert tf.config.list_physical_devices("GPU") == gpus  # gpus[hvd.local_rank()] of Horovod's programs
    assert not caplog.records


@pytest.mark.parametrize(
    "count, local_size, environment",
    [
        (0, 2, {}),
        (4, 1, {}),
        (2, 2, {"TFDDL_PIN_GPU": "0"}),
        (1, 2, {"TFDDL_PIN_GPU": "0"}),
        (1, 2, {"CUDA_VISIBLE_DEVICES": "1"}),  # as Slurm does for each task
        (1, 2, {"NCCL_MULTI_RANK_GPU_ENABLE": "1"}),
    ],
)
def test_nothing_to_pin(count, local_size, environment, caplog):
    with host(count, **environment) as (_, asked):
        gpu.pin_once(rank_of(local_size))
    assert not asked.mock_calls and not caplog.records


def test_shared_gpus_go_round():
    with host(2, NCCL_MULTI_RANK_GPU_ENABLE="1") as (gpus, _):
        gpu.pin_once(rank_of(4, 2))
        assert seen() == [gpus[0]]


@pytest.mark.parametrize("count", [1, 2])
def test_too_few_gpus_are_one_warning(count, caplog):
    with caplog.at_level(logging.WARNING, "tfddl"):
        for index in range(3):
            with host(count) as (_, asked):
                gpu.pin_once(rank_of(3, index))
            assert not asked.mock_calls
    (record,) = caplog.records
    assert f"sees {count} GPU(s) for the 3 ranks on host {os.uname().nodename}" in record.message
    assert "Start at most one process for each GPU" in record.message


def test_tensorflow_has_started_is_one_warning(caplog):
    for index in range(2):
        with host(2) as (_, asked):
            asked.show.side_effect = LATE
            gpu.pin_once(rank_of(2, index))
            gpu.pin_once(rank_of(2, index))
    (record,) = caplog.records
    assert "too late to give each of the 2 ranks" in record.message and str(LATE) in record.message


def test_the_programs_choice_before_init():
    with host(2) as (gpus, asked):
        tf.config.set_visible_devices(gpus[1], "GPU")
        gpu.pin_once(rank_of(2, 0))
        assert seen() == [gpus[1]] and len(asked.mock_calls) == 1


def test_the_programs_choice_after_init():
    with host(2) as (gpus, _):
        gpu.pin_once(rank_of(2, 0))
        tf.config.set_visible_devices(gpus[1], "GPU")
        assert seen() == [gpus[1]]


@on_ranks(2)
def test_set_visible_gpu_after_the_pinning(hvd):
    with host(2) as (gpus, asked):
        gpu.pin_once(rank_of(2, hvd.local_rank()))
        mine = gpus[hvd.local_rank()]
        assert hvd.set_visible_gpu() is mine and seen() == [mine]
        assert mock.call.grow(mine, True) in asked.mock_calls
