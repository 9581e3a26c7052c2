"""Attention of query heads in groups, sliding windows and packed sequences."""

KERNELS = {
    "grouped_attention": "kernel:GroupedAttention",
    "varlen_attention": "varlen:VarlenAttention",
}
