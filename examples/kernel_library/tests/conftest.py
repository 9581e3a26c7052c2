"""Without a CUDA device the kernels run in Triton's interpreter, which has to be said first."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
