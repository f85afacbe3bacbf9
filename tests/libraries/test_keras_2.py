"""Libraries of Keras 2. Each rank has data of its own, so weights are equal only if gradients are combined."""

import importlib

import numpy as np
import pytest
import tensorflow as tf

from tests.harness import on_ranks
from tests.keras2.support import check_equal_on_all_ranks
from tests.libraries.support import callbacks

keras = tf.keras


def _fit(hvd, model, *data, **options):
    """Two epochs; then all ranks have equal weights."""
    model.fit(*data, epochs=2, verbose=0, callbacks=callbacks(hvd), **options)
    check_equal_on_all_ranks(hvd, model.trainable_weights)


def _texts(hvd):
    tokens = np.random.default_rng(hvd.rank()).integers(0, 100, (32, 16))
    return {"input_ids": tokens, "attention_mask": np.ones_like(tokens)}


@pytest.mark.parametrize("jit", [False, True])
@on_ranks(2)
def test_a_classifier_of_transformers(hvd, jit):
    """Its `compile` without a loss takes that of the model; its optimizer decays weights by their names."""
    transformers = importlib.import_module("transformers")
    keras.utils.set_random_seed(hvd.rank())
    model = transformers.TFBertForSequenceClassification(
        transformers.BertConfig(
            vocab_size=100,
            hidden_size=32,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=64,
        )
    )
    optimizer, _ = transformers.create_optimizer(
        1e-3, num_train_steps=8, num_warmup_steps=2, weight_decay_rate=0.01
    )
    model.compile(hvd.DistributedOptimizer(optimizer), metrics=["accuracy"], jit_compile=jit)
    x = _texts(hvd)
    x["labels"] = x["input_ids"][:, 0] % 2
    _fit(hvd, model, tf.data.Dataset.from_tensor_slices(x).batch(8))


@on_ranks(2)
def test_a_loop_with_a_model_of_transformers(hvd):
    transformers = importlib.import_module("transformers")
    keras.utils.set_random_seed(hvd.rank())
    model = transformers.TFT5ForConditionalGeneration(
        transformers.T5Config(
            vocab_size=100,
            d_model=32,
            d_kv=8,
            d_ff=64,
            num_layers=1,
            num_heads=2,
            decoder_start_token_id=0,
        )
    )
    optimizer = keras.optimizers.Adam(1e-3)
    tokens = tf.constant(_texts(hvd)["input_ids"])

    @tf.function
    def step():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            loss = tf.reduce_mean(model(input_ids=tokens, labels=tokens, training=True).loss)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    model(input_ids=tokens, decoder_input_ids=tokens)
    hvd.broadcast_variables(model.variables, 0)
    for _ in range(3):
        step()
    check_equal_on_all_ranks(hvd, model.variables)


@on_ranks(2)
def test_towers_of_tensorflow_recommenders(hvd):
    """The towers are built in the first step; the gradients of embeddings are sparse."""
    recommenders = importlib.import_module("tensorflow_recommenders")
    keras.utils.set_random_seed(hvd.rank())
    names = [str(number) for number in range(40)]

    class Towers(recommenders.Model):
        def __init__(self):
            super().__init__()
            self.users, self.items = (
                keras.Sequential([keras.layers.StringLookup(vocabulary=names), keras.layers.Embedding(41, 8)])
                for _ in range(2)
            )
            candidates = tf.data.Dataset.from_tensor_slices(names).batch(20).map(self.items)
            metrics = recommenders.metrics.FactorizedTopK(candidates)
            self.task = recommenders.tasks.Retrieval(metrics=metrics)

        def compute_loss(self, features, training=False):
            users, items = self.users(features["user"]), self.items(features["item"])
            return self.task(users, items, compute_metrics=not training)

    model = Towers()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adagrad(0.5)))
    draws = np.random.default_rng(hvd.rank())
    rows = {"user": draws.choice(names, 128), "item": draws.choice(names, 128)}
    _fit(hvd, model, tf.data.Dataset.from_tensor_slices(rows).batch(32))


@on_ranks(2)
def test_bayesian_layers_and_variational_inference(hvd):
    probability = importlib.import_module("tensorflow_probability")
    keras.utils.set_random_seed(hvd.rank())
    normal = probability.distributions.Normal
    model = keras.Sequential(
        [
            keras.Input((1,)),
            probability.layers.DenseFlipout(2),
            probability.layers.DistributionLambda(
                lambda t: normal(t[..., :1], 1e-3 + tf.math.softplus(t[..., 1:]))
            ),
        ]
    )
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), lambda y, q: -q.log_prob(y))
    x = np.random.default_rng(hvd.rank()).normal(size=(64, 1)).astype("float32")
    _fit(hvd, model, x, 2 * x, batch_size=16)

    surrogate = probability.experimental.vi.build_factored_surrogate_posterior(event_shape=[3])
    hvd.broadcast_variables(surrogate.trainable_variables, 0)
    optimizer = hvd.DistributedOptimizer(keras.optimizers.Adam(0.1))
    target = normal(tf.constant([1.0, 2.0, 3.0]), 1.0)
    probability.vi.fit_surrogate_posterior(
        lambda z: tf.reduce_sum(target.log_prob(z), -1), surrogate, optimizer, num_steps=100, seed=hvd.rank()
    )
    check_equal_on_all_ranks(hvd, surrogate.trainable_variables)
    np.testing.assert_allclose(surrogate.sample(2000, seed=1).numpy().mean(0), [1, 2, 3], atol=0.5)


@on_ranks(2)
def test_a_gaussian_process_of_gpflow(hvd):
    """In a loop, and by `minimize` of a distributed optimizer."""
    gpflow = importlib.import_module("gpflow")
    draws = np.random.default_rng(hvd.rank())
    x = draws.uniform(size=(64, 1))
    y = np.sin(6 * x) + 0.1 * draws.normal(size=x.shape)
    model = gpflow.models.SVGP(
        gpflow.kernels.SquaredExponential(),
        gpflow.likelihoods.Gaussian(),
        draws.uniform(size=(8, 1)),
        num_data=64 * hvd.size(),
    )
    hvd.broadcast_variables(model.variables, 0)
    loss = model.training_loss_closure(iter(tf.data.Dataset.from_tensor_slices((x, y)).repeat().batch(16)))
    plain = keras.optimizers.Adam(0.01)

    @tf.function
    def step():
        with hvd.DistributedGradientTape(tf.GradientTape()) as tape:
            value = loss()
        gradients = tape.gradient(value, model.trainable_variables)
        plain.apply_gradients(zip(gradients, model.trainable_variables, strict=True))

    for _ in range(5):
        step()
    check_equal_on_all_ranks(hvd, model.trainable_variables)
    distributed = hvd.DistributedOptimizer(keras.optimizers.Adam(0.01))
    for _ in range(3):
        distributed.minimize(loss, model.trainable_variables)
    check_equal_on_all_ranks(hvd, model.trainable_variables)


@on_ranks(2)
def test_a_graph_network_of_spektral(hvd):
    """Its batches are sparse adjacency matrices from a generator."""
    sparse = importlib.import_module("scipy.sparse")
    data, layers = (importlib.import_module(f"spektral.{name}") for name in ("data", "layers"))
    keras.utils.set_random_seed(hvd.rank())

    class Graphs(data.Dataset):
        def read(self):
            return [self.graph(np.random.default_rng([hvd.rank(), number])) for number in range(24)]

        def graph(self, draws):
            nodes = draws.integers(5, 10)
            edges = sparse.csr_matrix((draws.uniform(size=(nodes, nodes)) < 0.4).astype("float32"))
            x = draws.normal(size=(nodes, 4)).astype("float32")
            return data.Graph(x=x, a=edges, y=np.eye(2, dtype="float32")[int(x.sum() > 0)])

    class Network(keras.Model):
        def __init__(self):
            super().__init__()
            self.convolution = layers.GCSConv(8, activation="relu")
            self.pool, self.dense = layers.GlobalAvgPool(), keras.layers.Dense(2, "softmax")

        def call(self, inputs):
            x, edges, graphs = inputs
            return self.dense(self.pool([self.convolution([x, edges]), graphs]))

    model = Network()
    model.compile(hvd.DistributedOptimizer(keras.optimizers.Adam(0.01)), "categorical_crossentropy")
    loader = data.DisjointLoader(Graphs(), batch_size=8)
    _fit(hvd, model, loader.load(), steps_per_epoch=loader.steps_per_epoch)


@on_ranks(2)
def test_an_agent_of_tf_agents(hvd):
    """The agent calls the optimizer in a step of its own."""
    dqn_agent = importlib.import_module("tf_agents.agents.dqn.dqn_agent")
    q_network = importlib.import_module("tf_agents.networks.q_network")
    specs = importlib.import_module("tf_agents.specs.tensor_spec")
    time_step = importlib.import_module("tf_agents.trajectories.time_step")
    trajectory = importlib.import_module("tf_agents.trajectories.trajectory")
    keras.utils.set_random_seed(hvd.rank())
    observed, action = specs.TensorSpec([4], tf.float32), specs.BoundedTensorSpec([], tf.int32, 0, 1)
    network = q_network.QNetwork(observed, action, fc_layer_params=(8,))
    optimizer = hvd.DistributedOptimizer(keras.optimizers.legacy.Adam(1e-3))
    agent = dqn_agent.DqnAgent(
        time_step.time_step_spec(observed), action, q_network=network, optimizer=optimizer
    )
    agent.initialize()
    hvd.broadcast_variables([*network.variables, *agent._target_q_network.variables], 0)
    train = tf.function(agent.train)
    draws = np.random.default_rng(hvd.rank())
    for _ in range(3):
        kind = tf.ones([8, 2], tf.int32)
        train(
            trajectory.Trajectory(
                step_type=kind,
                observation=tf.constant(draws.normal(size=(8, 2, 4)), tf.float32),
                action=tf.constant(draws.integers(0, 2, (8, 2)), tf.int32),
                policy_info=(),
                next_step_type=kind,
                reward=tf.ones([8, 2]),
                discount=tf.ones([8, 2]),
            )
        )
    check_equal_on_all_ranks(hvd, network.variables)


@on_ranks(2)
def test_image_restoration_of_csbdeep(hvd, tmp_path):
    """The library calls `fit`; the optimizer and the callbacks are handed to it."""
    models = importlib.import_module("csbdeep.models")
    keras.utils.set_random_seed(hvd.rank())
    config = models.Config(
        "YX",
        unet_n_depth=1,
        unet_n_first=4,
        train_epochs=2,
        train_steps_per_epoch=3,
        train_batch_size=4,
        train_tensorboard=False,
    )
    model = models.CARE(config, "model", basedir=str(tmp_path / str(hvd.rank())))
    model.prepare_for_training(optimizer=hvd.DistributedOptimizer(keras.optimizers.Adam(1e-3)))
    model.callbacks = [*callbacks(hvd), *model.callbacks]
    x = np.random.default_rng(hvd.rank()).normal(size=(12, 32, 32, 1)).astype("float32")
    model.train(x, x + 1, (x[:4], x[:4] + 1))
    check_equal_on_all_ranks(hvd, model.keras_model.trainable_weights)
