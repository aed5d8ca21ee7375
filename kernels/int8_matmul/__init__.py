"""int8 matmul: quantizes rows, multiplies codes and applies the scales."""
