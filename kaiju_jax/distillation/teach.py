"""Reads a corpus with a teacher and samples its distribution of every token.

Documents are read in rows of L tokens. One that is longer than the rest of its
row is read in several *windows*, which overlap: each token has the tokens of
its own document before it in its row, all of them or at least `overlap` · L. A
window's first tokens are therefore context alone. Trees are never cut.

With L = 8, overlap 0.25 and a document of 13 tokens, where `-` is context:

    row 0   0 1 2 3 4 5 6 7
    row 1   - - 8 9 10 11 12     6 and 7 stand there again

Windows and noise depend on the corpus alone, so that a run that continues an
interrupted one makes the same targets. Our guess: all of it; the sources say
only that targets are sampled offline.
"""

from collections.abc import Callable
from collections.abc import Iterator
from collections.abc import Mapping
import math
from typing import Any
from typing import NamedTuple

import jax
from jax import lax
import numpy as np

from kaiju_jax.data import packing
from kaiju_jax.data import text
from kaiju_jax.distillation import config as config_lib
from kaiju_jax.distillation import record as record_lib
from kaiju_jax.distillation import sample
from kaiju_jax.model import batches
from kaiju_jax.model import transformer

# The most elements of the float32 logits that a device holds at a time.
_LOGITS = 2**26


class Window(NamedTuple):
  """A part of a document in one of the teacher's rows."""

  document: int  # Its number in the corpus.
  low: int  # The document's first token in the row.
  # The first token that the teacher predicts; context stands before it.
  first: int
  end: int  # One past the last.


class TeacherBatch(NamedTuple):
  """A batch for the teacher."""

  batch: packing.Batch  # Rows [B, L].
  # int64, the corpus number of each token that is predicted here; −1 for
  # context and padding. Over all batches, row by row, the numbers are 0, 1, 2 …
  # without gaps.
  number_BL: np.ndarray


def check(corpus: text.Corpus, length: int, overlap: float) -> None:
  """Refuses rows in which a corpus cannot be read (ValueError)."""
  if not 0 < overlap <= 0.5:
    raise ValueError(
      f'overlap={overlap}: must be above 0, and 0.5 at most: a row is for new'
      ' tokens, too.'
    )
  if length < 4:
    raise ValueError(f'length={length}: must be at least 4.')
  for index in corpus.parents:
    size = int(corpus.begins[index + 1] - corpus.begins[index])
    if size > length:
      raise ValueError(
        f'length={length}: {corpus.names[index]} is a tree of {size} tokens,'
        ' and trees are never cut; make rows longer.'
      )


def windows(
  corpus: text.Corpus, length: int, overlap: float
) -> Iterator[list[Window]]:
  """Yields the windows of each row, in the order of the corpus.

  A row that holds tokens already gets another window only if that window holds
  as many new tokens as context, or the rest of its document.

  Args:
    corpus: the documents; no tree is longer than a row.
    overlap: the fraction of L that is context, above 0 and at most 0.5.
  """
  context = math.ceil(overlap * length)
  row, room = [], length
  for document in range(len(corpus.begins) - 1):
    size = int(corpus.begins[document + 1] - corpus.begins[document])
    is_tree = document in corpus.parents
    first = 0
    while first < size:
      low = max(0, first - context)
      least = size if is_tree else min(size, first + context)
      if room < least - low:
        yield row
        row, room = [], length
      end = min(size, low + room)
      row.append(Window(document, low, first, end))
      room -= end - low
      first = end
  yield row


def read_batches(
  corpus: text.Corpus,
  length: int,
  batch: int,
  overlap: float,
  begin: int = 0,
) -> Iterator[TeacherBatch]:
  """Yields the batches in which a teacher reads a corpus; raises as `check`.

  Args:
    corpus, length, overlap: as for `windows`.
    batch: B; padding fills the last batch.
    begin: the first token that is needed. Batches that end before it are left
      out; the others do not change.
  """
  check(corpus, length, overlap)
  rows = []
  for row in windows(corpus, length, overlap):
    rows.append(row)
    if len(rows) == batch:
      if _end(corpus, rows) > begin:
        yield _read_batch(corpus, rows, length)
      rows = []
  if rows and _end(corpus, rows) > begin:
    yield _read_batch(corpus, rows + [[]] * (batch - len(rows)), length)


def _end(corpus: text.Corpus, rows: list[list[Window]]) -> int:
  """Returns one past the last token that is predicted in these rows."""
  last = [row for row in rows if row][-1][-1]
  return int(corpus.begins[last.document]) + last.end


def _read_batch(
  corpus: text.Corpus, rows: list[list[Window]], length: int
) -> TeacherBatch:
  number_BL = np.full((len(rows), length), -1, np.int64)
  packed = []
  for number_L, row in zip(number_BL, rows):
    pieces, place = [], 0
    for document, low, first, end in row:
      begin = int(corpus.begins[document])
      pieces.append(
        packing.Piece(
          corpus.tokens[begin + low : begin + end],
          corpus.parents.get(document),
          source=document,
        )
      )
      number_L[place + first - low : place + end - low] = np.arange(
        begin + first, begin + end
      )
      place += end - low
    packed.append(packing.row(pieces, length))
  return TeacherBatch(packing.stack(packed), number_BL)


# (variables, batch [B, L], number_BL uint32) → the sampled entries.
Answer = Callable[[Mapping[str, Any], packing.Batch, Any], sample.Sampled]


def answering(
  model: transformer.Transformer, sampling: config_lib.Sampling
) -> Answer:
  """Returns the jitted function that samples a teacher's distributions.

  The distribution that predicts a token lies at the token. Logits are made in
  chunks of at most 256 MiB.
  """

  @jax.jit
  def answer(variables, batch, number_BL):
    hidden_BLD = batches.predicting(
      batches.hidden(model, variables, batch), batch
    )

    def of_chunk(chunk):
      hidden_CD, number_C = chunk
      logits_1CV = model.apply(variables, hidden_CD[None], method='logits')
      return sample.draw(logits_1CV, number_C[None], sampling)

    size = number_BL.size
    chunks = max(1, -(-size * model.config.vocab_size // _LOGITS))
    while size % chunks:
      chunks += 1
    flat = hidden_BLD.reshape(chunks, -1, hidden_BLD.shape[-1])
    drawn = lax.map(of_chunk, (flat, number_BL.reshape(chunks, -1)))
    return jax.tree.map(
      lambda x: x.reshape(*number_BL.shape, *x.shape[3:]), drawn
    )

  return answer


def targets(
  windows: TeacherBatch, drawn: sample.Sampled, begin: int = 0
) -> record_lib.Targets:
  """Returns the targets of a batch's new tokens from `begin` on.

  The first token of a document has no teacher, and so no entries.

  Args:
    windows: the batch.
    drawn: what `answering`'s function returned for it.
    begin: the first token that is needed.

  Raises:
    ValueError: the teacher's logits of a token are no distribution; names it.
  """
  drawn = jax.tree.map(np.asarray, drawn)
  is_kept_BL = windows.number_BL >= begin
  has_teacher = windows.batch.weight_BL[is_kept_BL] > 0
  is_bad = has_teacher & (drawn.entries_BL[is_kept_BL] < 0)
  if is_bad.any():
    number = windows.number_BL[is_kept_BL][np.argmax(is_bad)]
    raise ValueError(
      f"the teacher's logits of corpus token {number} are not finite: it cannot"
      ' teach.'
    )
  weights_BLT = drawn.values_BLT
  if drawn.counts_BLT is not None:
    weights_BLT = drawn.counts_BLT
  weights_NT = weights_BLT[is_kept_BL] * has_teacher[:, None]
  return record_lib.Targets(drawn.ids_BLT[is_kept_BL], weights_NT)
