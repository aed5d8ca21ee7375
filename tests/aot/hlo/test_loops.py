"""Trip counts of compiled loops, and of loops that are written out."""

import jax
from jax import lax
import jax.numpy as jnp
import pytest

from kaiju_jax.aot.hlo import loops
from kaiju_jax.aot.hlo import text


def _times(function, x, opcode, without_notes=False):
  """Returns how often the instructions of an opcode run."""
  compiled = jax.jit(function).lower(x).compile().as_text()
  if without_notes:
    compiled = compiled.replace('known_trip_count', 'not_this')
  module = text.parse(compiled)
  executions = loops.executions(module)
  assert not executions.unread
  return sum(
    times
    for name, times in executions.times.items()
    for x in module.computations[name].instructions.values()
    if x.opcode == opcode
  )


# With the compiler's note, and by reading the loop, as for a TPU.
@pytest.mark.parametrize('without_notes', [False, True])
def test_nested_scans_multiply(without_notes):
  def f(x):
    def outer(x, _):
      def inner(x, _):
        return jnp.sin(x), None

      return lax.scan(inner, jnp.cos(x), length=3)[0], None

    return lax.scan(outer, x, length=5)[0]

  x = jnp.ones(64)
  assert _times(f, x, 'sine', without_notes) == 15
  assert _times(f, x, 'cosine', without_notes) == 5


@pytest.mark.parametrize(
  ('start', 'stop', 'expected'), [(0, 7, 7), (2, 7, 5), (5, 5, 0)]
)
def test_a_loop_that_starts_elsewhere(start, stop, expected):
  def f(x):
    return lax.fori_loop(start, stop, lambda i, x: jnp.sin(x + i), x)

  assert _times(f, jnp.ones(64), 'sine', without_notes=True) == expected


def test_a_loop_whose_end_depends_on_data_is_named():
  def f(n, x):
    return lax.fori_loop(0, n, lambda i, x: jnp.sin(x), x)

  lowered = jax.jit(f).lower(jnp.int32(3), jnp.ones(64))
  found = loops.executions(text.parse(lowered.compile().as_text()))
  assert len(found.unread) == 1
  assert found.unread[0].startswith('while')
  assert all(found.times[name] == 1 for name in found.unsure)


_LOOP = """\
HloModule m

%body (t: (s32[], s32[], s32[])) -> (s32[], s32[], s32[]) {
  %t = (s32[], s32[], s32[]) parameter(0)
  %i = s32[] get-tuple-element(%t), index=0
  %step = s32[] get-tuple-element(%t), index=1
  %stop = s32[] get-tuple-element(%t), index=2
  %next = s32[] add(%i, %step)
  ROOT %out = (s32[], s32[], s32[]) tuple(%next, %step, %stop)
}

%test (u: (s32[], s32[], s32[])) -> pred[] {
  %u = (s32[], s32[], s32[]) parameter(0)
  %j = s32[] get-tuple-element(%u), index=0
  %end = s32[] get-tuple-element(%u), index=2
  ROOT %less = pred[] compare(%j, %end), direction=DIRECTION
}

ENTRY %main () -> s32[] {
  %zero = s32[] constant(START)
  %two = s32[] constant(STEP)
  %nine = s32[] constant(9)
  %copy = s32[] copy(%zero)
  %in = (s32[], s32[], s32[]) tuple(%copy, %two, %nine)
  %loop = (s32[], s32[], s32[]) while(%in), condition=%test, body=%body
  ROOT %i.1 = s32[] get-tuple-element(%loop), index=0
}
"""


@pytest.mark.parametrize(
  ('start', 'step', 'direction', 'expected'),
  [
    (0, 2, 'LT', 5),
    (1, 2, 'LT', 4),
    (1, 2, 'LE', 5),
    (0, 3, 'NE', 3),
    (20, -2, 'GT', 6),
    (21, -2, 'GE', 7),
  ],
)
def test_constants_that_a_loop_carries(start, step, direction, expected):
  program = (
    _LOOP.replace('START', str(start))
    .replace('STEP', str(step))
    .replace('DIRECTION', direction)
  )
  found = loops.executions(text.parse(program))
  assert not found.unread
  assert found.times == {'main': 1, 'body': expected, 'test': expected + 1}


def test_a_loop_that_never_ends_is_unread():
  program = _LOOP.replace('START', '0').replace('STEP', '-1')
  found = loops.executions(text.parse(program.replace('DIRECTION', 'LT')))
  assert found.unread == ('loop',)
  assert found.unsure == {'body', 'test'}
