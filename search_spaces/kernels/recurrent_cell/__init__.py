"""Recurrent networks: one step of an LSTM or GRU, and whole sequences."""

KERNELS = {
    "recurrent_cell": "kernel:RecurrentCell",
    "recurrent_sequence": "sequence:RecurrentSequence",
}
