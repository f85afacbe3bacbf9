"""`make soak`: a long job whose memory stays flat, and training steps that repeat bit for bit."""
