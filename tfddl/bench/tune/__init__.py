"""`tfddl tune`: finds the settings with which a model's steps are fastest on the network of a job."""
