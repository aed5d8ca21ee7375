"""A training batch enters the files that the docs list, and no other."""

from kaiju_jax.experiments.configs import tiny
from kaiju_jax.runs import train
from kaiju_jax.training import loop
from tests import walks


def test_a_batch_enters_the_files_of_its_walk_alone(tmp_path, monkeypatch):
  experiment = tiny.get_config()
  experiment.loop.steps = experiment.data.batch = 1
  experiment.data.length, experiment.model.layout = 64, 'L0 L0 G2'
  trace = walks.Trace()

  def take_a_step(_, workdir, *, state, step, batches, **others):
    restore = trace.install()
    try:
      with trace:
        step.lower(state, next(batches), None, 0.1)
    finally:
      restore()

  monkeypatch.setattr(loop, 'train', take_a_step)
  train.train(experiment, tmp_path / 'run')
  entered = trace.files
  assert entered == walks.listed(walks.section('The walk of a training batch'))
