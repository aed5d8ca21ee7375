"""The settings of `benchmarks.serve`; imports no jax."""

import dataclasses
from typing import Annotated
from typing import Literal

from kaiju_jax.experiments.benchmarks.load_test import load
from kaiju_jax.runs import flags

_Ends = Annotated[tuple[int, ...], flags.Numbers()]
_PEERS = (
  *('transformers:float32', 'transformers:bfloat16'),
  *('llama.cpp:float32', 'llama.cpp:int8'),
)


@dataclasses.dataclass(frozen=True)
class Settings:
  """What is measured, under which load."""

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
