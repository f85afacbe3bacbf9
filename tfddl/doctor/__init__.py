"""`tfddl doctor`: looks at an installation and a host, and says what to mend."""
