"""What is known of a text beside its tokens: scores, and where it was found."""

from typing import Any
from typing import NamedTuple

import numpy as np


class Scores(NamedTuple):
  """What a token-level head gave the tokens of a text.

  Attributes:
    version: of the head.
    score_LC: float32, of at least the text's tokens; NaN where the call that
      judges a token has not been read.
  """

  version: bytes
  score_LC: np.ndarray


class Memo:
  """What is remembered of a text that grows, and is looked up in each round.

  Attributes:
    pages: the tokens and the salt of each full page, from the beginning.
    found: the state of a tree and the tokens of the text that were looked up
      in it, and the match; None before.
  """

  def __init__(self):
    self.pages: list[tuple[bytes, bytes]] = []
    self.found: tuple[Any, Any] | None = None
