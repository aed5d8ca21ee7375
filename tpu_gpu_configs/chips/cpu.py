"""The processor at hand, cut into devices: for tests, no claim about speed."""

from kaiju_jax.costs import accelerator

CHIP = accelerator.Chip(name='CPU', platform='cpu', hbm_bytes=16e9)
