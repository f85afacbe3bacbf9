"""The gallery of docs/guides/examples.md: runs the examples, and writes what they print and a picture of each."""
