"""Trains a GAN: two models, each with a distributed optimizer of its own, in one `train_step`.

    tfddlrun -np 2 python examples/gan.py
    python examples/gan.py

The generator learns to put points on a circle, from which the data are drawn. Ends with an error unless at least 0.6 of its
points lie near the circle, all around it, and all processes hold the same weights.
"""

import common
import keras
import numpy as np
import tensorflow as tf

import tfddl as hvd

NOISE, RADIUS, SPREAD, POINTS = 8, 2.0, 0.1, 16_384


def network(inputs: int, outputs: int) -> keras.Model:
    """Two hidden layers."""
    layers = [keras.layers.Dense(64, activation="relu") for _ in range(2)]
    return keras.Sequential([keras.Input((inputs,)), *layers, keras.layers.Dense(outputs)])


class GAN(keras.Model):
    """Two networks that learn from each other."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.critic = network(NOISE, 2), network(2, 1)
        self.loss_of = keras.losses.BinaryCrossentropy(from_logits=True)
        self.trackers = [keras.metrics.Mean(name="generator_loss"), keras.metrics.Mean(name="critic_loss")]
        self.seeds = keras.random.SeedGenerator()

    def compile(
        self, generator_optimizer: keras.optimizers.Optimizer, critic_optimizer: keras.optimizers.Optimizer
    ):
        """Takes one optimizer for each network."""
        super().compile()
        self.generator_optimizer, self.critic_optimizer = generator_optimizer, critic_optimizer

    @property
    def metrics(self) -> list[keras.metrics.Metric]:
        """What `fit` reports, and starts anew in each epoch."""
        return self.trackers

    def call(self, noise: tf.Tensor) -> tf.Tensor:
        """Points, float32 [n, 2], for noise, float32 [n, 8]."""
        return self.generator(noise)

    def train_step(self, real: tf.Tensor) -> dict[str, tf.Tensor]:
        """One step of the critic, then one of the generator."""
        noise = keras.random.normal((tf.shape(real)[0], NOISE), seed=self.seeds)
        with tf.GradientTape() as tape:
            judged = self.critic(tf.concat([real, self.generator(noise)], axis=0))
            # Not quite certain of the real ones: a critic that is too sure teaches nothing.
            truth = tf.concat([tf.fill(tf.shape(real[:, :1]), 0.9), tf.zeros_like(real[:, :1])], axis=0)
            critic_loss = self.loss_of(truth, judged)
        weights = self.critic.trainable_variables
        self.critic_optimizer.apply_gradients(zip(tape.gradient(critic_loss, weights), weights, strict=True))
        with tf.GradientTape() as tape:
            judged = self.critic(self.generator(noise))
            generator_loss = self.loss_of(tf.ones_like(judged), judged)
        weights = self.generator.trainable_variables
        self.generator_optimizer.apply_gradients(
            zip(tape.gradient(generator_loss, weights), weights, strict=True)
        )
        for tracker, loss in zip(self.trackers, (generator_loss, critic_loss), strict=True):
            tracker.update_state(loss)
        return {tracker.name: tracker.result() for tracker in self.trackers}


def circle() -> np.ndarray:
    """Points near the circle, float32 [n, 2], the same in every process."""
    generator = np.random.default_rng(0)
    angles = generator.uniform(0, 2 * np.pi, POINTS)
    points = RADIUS * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return (points + generator.normal(0, SPREAD, points.shape)).astype("float32")


def quality(points: np.ndarray) -> float:
    """The part of the points near the circle, times the part of its 8 sectors where there are at least 3 in 100."""
    near = np.abs(np.linalg.norm(points, axis=1) - RADIUS) < 5 * SPREAD
    sectors = np.histogram(np.arctan2(*points[near].T), bins=8, range=(-np.pi, np.pi))[0]
    return float(np.mean(near) * np.mean(sectors >= 0.03 * len(points)))


def main() -> None:
    """Trains, draws points, reports."""
    arguments = common.parser(__doc__, epochs=20)
    arguments.set_defaults(batch_size=128)
    options = arguments.parse_args()
    hvd.init()
    # Each process draws noise of its own.
    keras.utils.set_random_seed(options.seed + hvd.rank())
    mine = hvd.data.shard(circle())
    model = GAN()
    model.compile(
        hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3, beta_1=0.5), name="generator"),
        hvd.DistributedOptimizer(keras.optimizers.Adam(2e-3, beta_1=0.5), name="critic"),
    )
    model.fit(
        mine,
        batch_size=options.batch_size,
        epochs=options.epochs,
        verbose=2 if hvd.rank() == 0 else 0,
        callbacks=[hvd.callbacks.BroadcastGlobalVariablesCallback(0), hvd.callbacks.MetricAverageCallback()],
    )
    noise = np.random.default_rng(1).normal(size=(4096, NOISE)).astype("float32")
    points = model.predict(noise, batch_size=1024, verbose=0)
    common.conclude(model, "points on the circle", quality(points), 0.6)


if __name__ == "__main__":
    main()
