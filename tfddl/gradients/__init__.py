"""How gradients are combined over the ranks: buckets, compression, and the tape."""
