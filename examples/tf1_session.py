"""A program of TF1: a graph, a session and a hook, on as many processes as it is started with.

    tfddlrun -np 2 python examples/tf1_session.py
    python examples/tf1_session.py

Ends with an error unless the accuracy on held-out digits is at least 0.9.
"""

import argparse
import contextlib
import sys
import tempfile

import images
import numpy as np
import tensorflow as tf

import tfddl as hvd

v1 = tf.compat.v1
REQUIRED_ACCURACY = 0.9


def build(pixels: int, rate: float) -> dict[str, tf.Tensor]:
    """The graph of a network with one hidden layer."""
    x = v1.placeholder(tf.float32, [None, pixels])
    labels = v1.placeholder(tf.int64, [None])
    first = v1.get_variable("first", [pixels, 64], initializer=v1.glorot_uniform_initializer())
    bias = v1.get_variable("bias", [64], initializer=v1.zeros_initializer())
    last = v1.get_variable("last", [64, 10], initializer=v1.glorot_uniform_initializer())
    logits = tf.matmul(tf.nn.relu(tf.matmul(x, first) + bias), last)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
    optimizer = hvd.DistributedOptimizer(v1.train.AdagradOptimizer(rate))
    return {
        "x": x,
        "labels": labels,
        "update": optimizer.minimize(loss, v1.train.get_or_create_global_step()),
        "correct": tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, axis=1), labels), tf.float32)),
        # The loss of all processes, which each of them prints alike.
        "loss": hvd.allreduce(loss),
    }


def main() -> None:
    """Trains, evaluates, reports."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--steps", type=int, default=400, help="for one process; N processes take an N-th of it"
    )
    parser.add_argument("--batch-size", type=int, default=32, help="images per process and step")
    options = parser.parse_args()
    hvd.init()
    v1.disable_eager_execution()
    v1.set_random_seed(hvd.rank())
    data = images.load()
    train, test = (array.reshape(len(array), -1) for array in (data.train_images, data.test_images))
    graph = build(train.shape[1], 0.05 * hvd.size())
    steps = options.steps // hvd.size()
    draw = np.random.default_rng(hvd.rank())
    with contextlib.ExitStack() as stack:
        # Rank 0 alone writes checkpoints; the hook gives all what it has initialized or read.
        directory = stack.enter_context(tempfile.TemporaryDirectory()) if hvd.rank() == 0 else None
        session = stack.enter_context(
            v1.train.MonitoredTrainingSession(
                checkpoint_dir=directory, hooks=[hvd.BroadcastGlobalVariablesHook(0)]
            )
        )
        for step in range(steps):
            chosen = draw.integers(0, len(train), options.batch_size)
            feeds = {graph["x"]: train[chosen], graph["labels"]: data.train_labels[chosen]}
            _, loss = session.run([graph["update"], graph["loss"]], feeds)
            if step % 50 == 0 and hvd.rank() == 0:
                print(f"step {step}: loss {loss:.3f}", flush=True)
        correct = session.run(graph["correct"], {graph["x"]: test, graph["labels"]: data.test_labels})
    if hvd.rank() == 0:
        print(f"held-out accuracy: {correct:.4f}", flush=True)
    if correct < REQUIRED_ACCURACY:
        sys.exit(f"The accuracy is below {REQUIRED_ACCURACY}. Received: {correct:.4f}")


if __name__ == "__main__":
    main()
