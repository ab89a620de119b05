"""What a Dataset from memmodel contains, and how it is written and read."""
