"""How a Keras optimizer is distributed: the class put in front of its own, and what that class does."""
