"""int8 matmul: quantization in front, scales behind."""
