"""Which phase of a sequence may follow which, for the tests."""

import collections

from kaiju_jax.decoding.engine import sequence as sequence_lib

LEGAL = {
  ('WAITING', 'PREFILLING'),
  ('PREFILLING', 'DRAWING'),
  ('PREFILLING', 'SEARCHING'),
  ('PREFILLING', 'PARKED'),
  ('DRAWING', 'PARKED'),
  ('SEARCHING', 'PARKED'),
  ('PARKED', 'PREFILLING'),
  *((phase, 'ENDED') for phase in (
    'WAITING', 'PREFILLING', 'DRAWING', 'SEARCHING', 'PARKED'
  )),
}  # fmt: skip


def watched(monkeypatch) -> collections.Counter[tuple[str, str]]:
  """Returns the pairs of phases that follow each other from now on."""
  seen, enter = collections.Counter(), sequence_lib.Sequence.enter

  def entered(one, phase):
    pair = one.phase.name, phase.name
    enter(one, phase)
    assert pair in LEGAL
    seen[pair] += 1

  monkeypatch.setattr(sequence_lib.Sequence, 'enter', entered)
  return seen


def is_consistent(engine, sequences) -> bool:
  """Whether phases agree with the rows and the queue of an engine."""
  for one in sequences:
    name = one.phase.name
    has_row = name in ('PREFILLING', 'DRAWING', 'SEARCHING')
    assert (
      has_row == (one.row is not None) == (one.number in engine.state.running)
    )
    waits = name in ('WAITING', 'PARKED')
    assert waits == (one.number in engine.state.waiting)
    assert (name == 'ENDED') == (one.reason is not None)
    if has_row:
      held = engine.decoder.length_of(one.row)
      assert held < one.length if name == 'PREFILLING' else held >= one.prompt
  return True
