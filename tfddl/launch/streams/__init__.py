"""The output of the ranks: one stream of lines, and files of each rank."""
