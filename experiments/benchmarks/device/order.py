"""The slices in the order of their worth, and what each may cost.

Seconds are our guesses for one H100, compilation included. No device has run
them: a run corrects them by what its first cases took.
"""

from typing import NamedTuple


class Slice(NamedTuple):
  """A module of this package."""

  answers: str  # Its question.
  seconds: int  # An estimate of all its cases.
  # Seconds that one run gives it before the slices behind it have had their
  # turn; a later run goes on.
  most: int
  # Whether each case has a process of its own, whose memory starts empty.
  apart: bool = False
  # Whether its process itself uses the device; otherwise it starts commands
  # that do.
  device: bool = True
  # Whether a rehearsal chooses the kernels of the platform that it plays, and
  # interprets them; otherwise it runs what a CPU runs.
  plays: bool = True


SLICES = {
  'ceilings': Slice(
    'what rates do a large matmul and a large copy reach on this device?',
    15,
    60,
  ),
  'numerics': Slice(
    'does every kernel compute what its definition says?', 908, 180
  ),
  'attention': Slice(
    'how fast are forward and backward against cuDNN and XLA, and half-int8'
    ' against bf16?',
    350,
    120,
  ),
  'int8_matmul': Slice(
    "how fast is int8 against bf16 and XLA's s8 product?", 120, 60
  ),
  'paged_decode': Slice(
    'how near does a decoding step come to one read of the cache?', 168, 75
  ),
  'squinch': Slice('how near does the codec come to a copy?', 60, 40),
  'autotune': Slice('which block sizes are fastest?', 2400, 240),
  'step': Slice(
    'how fast is a training step of 250m in int8 against bf16, in how much'
    ' memory?',
    405,
    150,
    apart=True,
    plays=False,
  ),
  'decode': Slice(
    'how many tokens per second does 250m decode, at batches of 1 to 256?',
    250,
    120,
    apart=True,
    plays=False,
  ),
  'needle': Slice(
    'is the needle found in float and in int8?',
    330,
    240,
    apart=True,
    plays=False,
  ),
  'startup': Slice(
    'how long does a command take to its first step and its first token?',
    240,
    240,
    device=False,
    plays=False,
  ),
}

# The kernel of a slice, and the seconds that one of its shapes may take.
KERNELS = {
  'attention': ('visibility_attention', 25),
  'int8_matmul': ('int8_matmul', 10),
  'paged_decode': ('paged_decode', 12),
  'squinch': ('squinch', 5),
}
