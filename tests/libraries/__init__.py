"""Libraries on top of TensorFlow and Keras, in their users' way, with tfddl: `make test-libraries`."""
