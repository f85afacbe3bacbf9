"""How a Keras optimizer is distributed: the class that is put in front of its own class."""
