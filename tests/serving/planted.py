"""Classifiers that know planted marker words: stand-ins for trained ones."""

from collections.abc import Sequence
import dataclasses

import numpy as np

from kaiju_jax.serving.safety import gate as gate_lib
from kaiju_jax.serving.safety import hashed
from kaiju_jax.serving.safety import moderation
from kaiju_jax.serving.safety import thresholds

ZORB, QUAM = 'zorbifex', 'quamlith'
HEAD = moderation.Head('head 1', ('zorb',))
LOW, MIDDLE, HIGH = 0.01, 0.4, 0.97
TRAINED = gate_lib.TrainingRecord(
  rows=10, violations=(5,), data='d', date='2026-11-22', library='by hand'
)


def head(pieces: Sequence[str], markers: Sequence[str] = (ZORB,)):
  """Returns what a planted token head says after each piece of a text.

  One dimension per marker: high where the piece ends or holds the marker's last
  character, middle where the text so far ends within a marker, low elsewhere.
  """
  text, scores = '', []
  for piece in pieces:
    before = len(text)
    text += piece
    scores.append(tuple(_score(text, before, marker) for marker in markers))
  return scores


def _score(text: str, before: int, marker: str) -> float:
  found = text.find(marker, max(0, before - len(marker) + 1))
  if found >= 0:
    return HIGH
  begun = any(text.endswith(marker[:n]) for n in range(1, len(marker)))
  return MIDDLE if begun else LOW


def gate(markers: Sequence[str] = (ZORB,), names: Sequence[str] = ('zorb',)):
  """Returns a gate that blocks a text that holds a marker as a word."""
  size = 2**12
  settings = gate_lib.Settings(
    names=tuple(names),
    views=(gate_lib.View('plain', 'word', 1, 1),),
    features=size,
  )
  weight_VC = np.zeros((size, len(names)), np.float32)
  for c, marker in enumerate(markers):
    hash_G, _ = hashed.runs([marker], 'word', 1, 1)
    weight_VC[hashed.features(hash_G, size)[0], c] = 20
  bias_C = np.full(len(names), -10, np.float32)
  trained = dataclasses.replace(TRAINED, violations=(5,) * len(names))
  return gate_lib.Gate(settings, weight_VC, bias_C, trained)


def full_size(seed: int) -> gate_lib.Gate:
  """Returns a gate of the default size, whose weights are drawn."""
  settings = dataclasses.replace(gate_lib.Settings(), names=('zorb',))
  rng = np.random.default_rng(seed)
  weight_VC = rng.normal(size=(2 * settings.features, 1)).astype(np.float32)
  return gate_lib.Gate(settings, weight_VC, np.zeros(1, np.float32), TRAINED)


def stage(
  version: str,
  names: Sequence[str] = ('zorb',),
  adult: float = 0.8,
  minor: float = 0.6,
  low: float | None = None,
) -> thresholds.Stage:
  """Returns certified thresholds, the same for every dimension."""

  def tier(high: float) -> thresholds.Tier:
    refused = thresholds.bound_count(0, 600, 0.01, 0.95, False)
    limits = tuple(
      thresholds.Limit(
        name=name,
        low=low,
        high=high,
        blocked=thresholds.bound_count(600, 600, 0.99, 0.95, True),
        refused=refused,
      )
      for name in names
    )
    return thresholds.Tier(limits, refused)

  return thresholds.Stage(
    version=version,
    chosen_on='some texts',
    certified_on='others',
    date='2026-11-22',
    adult=tier(adult),
    minor=tier(minor),
  )


def policy(
  gate_stage: thresholds.Stage, head_stage: thresholds.Stage | None
) -> thresholds.Policy:
  """Returns both stages' thresholds."""
  return thresholds.Policy(
    format=thresholds.FORMAT,
    confidence=0.95,
    hold=8,
    gate=gate_stage,
    head=head_stage,
  )


def write(path, gate: gate_lib.Gate, head=HEAD, **changes):
  """Writes a version's folder, and returns its path."""
  path.mkdir()
  gate.save(path / moderation.GATE)
  gate_stage = stage(gate.version, gate.names, **changes)
  head_stage = head and stage(head.version, head.names, low=0.1)
  thresholds.write(path / moderation.THRESHOLDS, policy(gate_stage, head_stage))
  return path
