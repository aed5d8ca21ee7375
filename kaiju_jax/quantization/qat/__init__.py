"""Quantization-aware training: every custom_vjp between floats and int8.

From the sources: forward weights, keys and values are int8, and matmuls are
int8×int8; activations and local gradients are bf16; master weights and their
accumulation are f32; QKᵀ is int8 and PV bf16 ("half-int8"). Our guess: weights
have a scale per output channel, activations a scale per token, and gradients go
straight through the rounding, with the quantized operands:

    y  = (Σ x_codes · w_codes) · s_x · s_w      s8×s8→s32, one f32 multiply
    dx = dy · s_w · w_codes                     in the model's dtype,
    dw = x_codes · s_x · dy                     accumulated in f32

A function that reads `Quantized` never gets a float weight: the gradient leaves
through the carrier (`quantization/int8.py`).

    straight_through   floats → codes: weights, activations, keys and values
    project            einsums of activations and weights
    attend             attention over int8 keys and values
    table              the embedding's lookup

Import the package, `from kaiju_jax.quantization import qat`, and call
`qat.einsum`.
"""

from kaiju_jax.quantization.qat.attend import attention
from kaiju_jax.quantization.qat.attend import coded_queries
from kaiju_jax.quantization.qat.attend import remaining_scales
from kaiju_jax.quantization.qat.project import columns_of
from kaiju_jax.quantization.qat.project import einsum
from kaiju_jax.quantization.qat.straight_through import enter
from kaiju_jax.quantization.qat.straight_through import quantize
from kaiju_jax.quantization.qat.straight_through import quantize_kv
from kaiju_jax.quantization.qat.straight_through import values
from kaiju_jax.quantization.qat.table import lookup
from kaiju_jax.quantization.qat.table import lookup_rows

__all__ = (
  'attention',
  'coded_queries',
  'columns_of',
  'einsum',
  'enter',
  'lookup',
  'lookup_rows',
  'quantize',
  'quantize_kv',
  'remaining_scales',
  'values',
)
