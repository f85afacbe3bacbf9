"""How optimizers of Keras 2 are distributed: tf_keras, TensorFlow 2.15, and TensorFlow Addons."""
