"""Tries the container recipes of deploy/ in chroots, on machines without Docker and Apptainer."""
