"""`tfddl analyze`: reads the flight records of a job and names the operation at which its ranks part."""
