"""The cross-entropy of logits and targets."""
