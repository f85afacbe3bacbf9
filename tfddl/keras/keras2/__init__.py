"""What is different where Keras is Keras 2: tf_keras, TensorFlow 2.15, and TensorFlow Addons with it."""
