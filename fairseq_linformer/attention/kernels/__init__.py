"""Attention by kernels: PyTorch's FlexAttention for local windows."""
