"""Attention by kernels: PyTorch's FlexAttention for local windows, Triton for selected segments."""
