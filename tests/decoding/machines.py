"""State machines of hypothesis, drawn the same each time."""

import hypothesis
from hypothesis.internal import constants_ast
from hypothesis.internal.conjecture import providers

# Else the draws would depend on the constants of whatever modules a process has
# loaded.
providers._get_local_constants = constants_ast.Constants


def quick(machine, lives: int, steps: int):
  """Returns a test case of so many lives of a machine, of so many steps."""
  made = type(f'{machine.__name__}{lives}', (machine.TestCase,), {})
  made.settings = hypothesis.settings(
    max_examples=lives,
    stateful_step_count=steps,
    derandomize=True,
    deadline=None,
    phases=[x for x in hypothesis.Phase if x is not hypothesis.Phase.explain],
    database=None,
    suppress_health_check=list(hypothesis.HealthCheck),
  )
  return made
