"""The experts of each token, chosen by the router's logits."""

KERNELS = {"topk_routing": "kernel:TopkRouting"}
