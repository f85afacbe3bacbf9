"""Where output goes: that of the ranks into one stream of lines and into files of each rank, and onto a full disk."""
