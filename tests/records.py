"""What a run has left in its workdir."""

import json
import pathlib

from kaiju_jax.training.records import metrics


def of(workdir: pathlib.Path) -> list[dict]:
  """Returns the records of metrics.jsonl, without what depends on the clock."""
  lines = (workdir / 'metrics.jsonl').read_text().splitlines()
  kept = [json.loads(line) for line in lines]
  for record in kept:
    for name in metrics.TIMING:
      record.pop(name, None)
  return kept
