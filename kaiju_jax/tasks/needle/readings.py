"""Reads an arm's accuracy on needles at every evaluation of its training.

(An arm is one variant of the experiment.) The grid of `questions.py` is asked
once, of a trained model. The evaluator here reads a run as it trains, on fewer
questions, with the attention of `circuit.py`'s heads on unseen documents of the
curriculum's current stage. So a table can say after how many tokens an arm
finds its needles (`kaiju ablate`), and which head came first.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from kaiju_jax.data import packing
from kaiju_jax.evaluation import answers
from kaiju_jax.model import transformer
from kaiju_jax.tasks.needle import circuit
from kaiju_jax.tasks.needle import curriculum
from kaiju_jax.tasks.needle import questions as needle

# Questions per depth, 11 depths. The seed is far from training seeds, so that
# the questions are not those asked at the end.
_QUESTIONS = 12
_SEEDS = (2**31, 0)
_ROWS = 16  # Unseen rows of the stage.


def evaluator(
  model: transformer.Transformer, rows: curriculum.Rows, length: int
) -> Callable[[Any, int], dict[str, float]]:
  """Returns (params, row) → readings, `row` being the next training row.

  The readings are `accuracy`, at `length` tokens with the most distractors that
  fit; `answered`, the fraction of right answers in unseen documents of the
  stage; and `previous_<layer>` and `match_<layer>` on these
  (`circuit.Heads.best`).

  Args:
    model: the transformer.
    rows: the run's training rows; the unseen ones are drawn from another seed.
    length: tokens per question.
  """
  task = needle.Pairs()
  distractors = max(n for n in needle.DISTRACTORS if task.fits(length, n))
  cells = [
    cell
    for cell in needle.grid(task, length, _QUESTIONS)
    if (cell.length, cell.distractors) == (length, distractors)
  ]
  predict = answers.predictor(model)
  heads = circuit.reader(model)
  right = _right(model)
  unseen = rows.unseen()

  def evaluate(params: Any, row: int) -> dict[str, float]:
    read = answers.reader(predict, params, {length})
    batch = packing.stack([unseen[row + i] for i in range(_ROWS)])
    return {
      'accuracy': needle.accuracy(read, task, cells, _SEEDS),
      'answered': float(right(params, batch)),
      **heads(params, batch).best(),
    }

  return evaluate


def _right(model: transformer.Transformer):
  """Returns (params, rows) → the fraction of weighted tokens predicted."""

  @jax.jit
  def right(params, rows: packing.Batch):
    logits_BLV = model.apply(
      {'params': params}, rows.tokens_BL, rows.visibility()
    )
    likeliest_BL = jnp.take_along_axis(
      jnp.argmax(logits_BLV, axis=-1), rows.predecessor_BL, axis=1
    )
    is_right_BL = likeliest_BL == rows.tokens_BL
    total = jnp.maximum(jnp.sum(rows.weight_BL), 1.0)
    return jnp.sum(is_right_BL * rows.weight_BL) / total

  return right
