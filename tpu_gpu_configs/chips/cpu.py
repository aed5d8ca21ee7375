"""This machine's processor, cut into devices for tests; it has no speeds."""

from kaiju_jax.costs import accelerator

CHIP = accelerator.Chip(name='CPU', platform='cpu', hbm_bytes=16e9)
