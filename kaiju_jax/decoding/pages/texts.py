"""Data kept with a text's tokens: scores, and the last lookup."""

from typing import Any
from typing import NamedTuple

import numpy as np


class Scores(NamedTuple):
  """A token-level head's scores, by the head's digest `version`.

  `score_LC` is float32, for at least all of a text's tokens; NaN where not read
  back yet.
  """

  version: bytes
  score_LC: np.ndarray


class Memo:
  """A growing text's full pages and last match, for repeated lookups."""

  def __init__(self):
    self.pages: list[tuple[bytes, bytes]] = []
    self.found: tuple[Any, Any] | None = None
