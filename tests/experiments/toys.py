"""A config with arms, and tables of Markdown pages."""

# Each arm of it can run.
ARMS = '''
"""Does the fake arm learn?"""
from kaiju_jax.training import experiment as experiment_lib

ARMS = ('plain', 'better', 'broken')

def get_config(arm='plain'):
  if arm not in ARMS:
    raise ValueError(arm)
  experiment = experiment_lib.Experiment()
  experiment.loop.steps = 4
  experiment.loop.log_every = 1
  experiment.optimizer.learning_rate = {'plain': 1.0, 'better': 0.5}.get(arm, 9)
  return experiment
'''


def rows(report: str, heading: str) -> dict[str, list[str]]:
  """The table under a heading: {first cell: the others}."""
  section = report.split(f'## {heading}')[1].split('\n## ')[0]
  cells = [
    [cell.strip() for cell in line.strip('| ').split('|')]
    for line in section.splitlines()
    if line.startswith('|')
  ]
  return {row[0]: row[1:] for row in cells[2:]}
