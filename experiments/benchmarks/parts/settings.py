"""The settings of `benchmarks.decode` and `.serve`; imports no jax."""

import dataclasses
from typing import Annotated
from typing import Literal

from kaiju_jax.experiments.benchmarks.load_test import load
from kaiju_jax.experiments.benchmarks.parts import open_shapes
from kaiju_jax.runs import flags

_DTYPES = 'float32', 'bfloat16'
_Ends = Annotated[tuple[int, ...], flags.Numbers()]
_PEERS = (
  *('transformers:float32', 'transformers:bfloat16'),
  *('llama.cpp:float32', 'llama.cpp:int8'),
)


@dataclasses.dataclass(frozen=True)
class DecodeSettings:
  """What `benchmarks.decode` compares."""

  # What to measure.
  parts: tuple[Literal['speed', 'quality', 'local'], ...] = ('speed', 'quality')
  # The shape of the model.
  shape: Literal[*open_shapes.NAMES] = 'arcee-97m'
  # A GGUF file in place of a shape with random weights; for `speed` alone.
  model: str | None = None
  # Compare servers, too: by the wall clock, with the first arm.
  http: bool = False
  # What `transformers` computes in; none for an empty list.
  peers: tuple[str, ...] = _DTYPES
  # Our arms.
  arms: tuple[Literal['none', 'weights', 'all'], ...] = (
    *('none', 'weights', 'all'),
  )
  # Devices that share our model and its cache.
  tensor: flags.Positive = 1
  # Rows.
  batch: flags.Positive = 1
  # Tokens of a prompt.
  length: flags.Positive = 128
  # The longer context of the part `local`.
  far: flags.Positive = 32_768
  # Decoding steps in a turn.
  steps: flags.Positive = 8
  # How often every side runs.
  turns: flags.Positive = 4
  # Seconds of what; of the processor where others use the machine too.
  clock: Literal['wall', 'processor'] = 'wall'

  def check(self) -> None:
    """Refuses what cannot be measured: ValueError, which names the flag."""
    if self.peers:
      flags.choose('peers', self.peers, _DTYPES)
    if self.model and self.parts != ('speed',):
      raise ValueError(f'--parts={",".join(self.parts)}: --model has speed.')
    if self.http and not (self.model and self.clock == 'wall'):
      raise ValueError('--http: needs --model, and the wall clock.')


@dataclasses.dataclass(frozen=True)
class ServeSettings:
  """What `benchmarks.serve` measures, under which load."""

  # What is measured beside the throughput.
  parts: tuple[Literal['reuse', 'between', 'overload', 'curve'], ...] = (
    *('reuse', 'between', 'overload', 'curve'),
  )
  # Which peers run, and in which dtype; none for an empty list.
  peers: tuple[str, ...] = _PEERS
  # How often contenders run.
  turns: flags.Positive = 2
  # Sequences in flight.
  rows: flags.Positive = 8
  # Requests of a load.
  count: Annotated[int, flags.Bounds(2)] = 24
  # How long a Poisson load lasts, about.
  seconds: Annotated[float, flags.Bounds(1.0)] = 30.0
  # Layers of the model.
  layers: flags.Positive = 12
  # Devices that share our model and its cache.
  tensor: flags.Positive = 1
  # Fewest and most tokens of a prompt.
  prompt: _Ends = (32, 256)
  # Fewest and most tokens of an answer.
  answer: _Ends = (32, 96)
  # Tokens of long prompts.
  long: Annotated[int, flags.Bounds(2)] = 2048
  # Seconds to a first token, at most.
  wait: float = 2.5
  # Compare a server over HTTP with its engine, and no peers.
  http: bool = False
  # Where the figures go as JSON.
  json: str | None = None
  # Where the figure goes (png).
  figure: str | None = None

  def check(self) -> None:
    """Refuses what cannot be measured.

    Raises:
      ValueError: names the flag.
    """
    if self.peers:  # None at all is a choice, too.
      flags.choose('peers', self.peers, _PEERS)
    if 'between' in self.parts and self.rows < 2:
      raise ValueError('--rows=1: the part between needs two.')

  def load(self, rate: float, count: int | None = None) -> load.Load:
    """Returns a load at a rate, by default for about `seconds`."""
    if count is None:
      count = max(int(rate * self.seconds), 8)
    prompt, answer = ((x[0], x[-1]) for x in (self.prompt, self.answer))
    return load.Load(rate=rate, count=count, prompt=prompt, answer=answer)
