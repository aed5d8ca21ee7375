"""Lists the tasks on which a run can be trained and tested, a row per task.

    text            files of text, or a mixture of several such sources, packed
                    into rows
    properties      the same, with labels of each byte for the token head
    spans           texts and chats with labelled spans, for the same
    conversations   chats to fine-tune on: the assistant's turns and their ends
    choices         the replies that users kept and passed over, as trees
    dialogues       invented dialogues with characters, as a server prompts
    needle          synthetic retrieval: a key's value, among other pairs
    needle_text     a magic number hidden in natural text
    recall          several keys and values, chains of variables, counts

`data.task` names the row, here or in TASKS of a config file or a package
(`storage/parts.py`). Its functions
import modules when they are called, because numpy and jax take seconds to
import and a check of a config should not wait for them.
"""

from collections.abc import Callable
import dataclasses
import functools
from typing import Any
from typing import NamedTuple

from kaiju_jax.data import config as data_config
from kaiju_jax.objectives import config as objective_config
from kaiju_jax.storage import parts
from kaiju_jax.tasks import conversations as conversations_lib
from kaiju_jax.tasks import curricula
from kaiju_jax.tasks import spans as spans_lib
from kaiju_jax.tasks import targets
from kaiju_jax.tasks import texts as texts_lib
from kaiju_jax.training import batch_schedule
from kaiju_jax.training import experiment as experiment_lib

Evaluator = Callable[[Any], dict[str, float]]


class TaskData(NamedTuple):
  """A task's data, once they are read."""

  rows: Any  # A `loader.RowSource`, the training rows.
  # (model, mesh) → (state → {name: value}), the readings on held-out rows; None
  # where nothing is held out.
  evaluator: Callable[..., Evaluator] | None = None
  # {source: `same_text.describe`}, the text from which the rows are made; None
  # where they are not made from text.
  text: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Task:
  """One row of the registry."""

  # Refuses an experiment whose data or model do not fit the task; an OSError or
  # ValueError names the field, its value and what would be right.
  check: Callable[[experiment_lib.Experiment], None]
  # Returns an experiment's `TaskData`.
  load: Callable[[experiment_lib.Experiment], TaskData]
  # (experiment, B) → int32 [B, L], rows of the task, held-out where the run has
  # held-out text.
  texts: Callable[[experiment_lib.Experiment, int], Any]
  # Names of the objectives whose extras the rows contain.
  objectives: tuple[str, ...] = ('language',)
  # Returns the `tasks/needle/questions.Task` that asks a trained model, in
  # held-out text if any; None for a task without questions.
  questions: Callable[[data_config.DataConfig], Any] | None = None
  # Returns how many of a run's rows, from the first one on, are those of every
  # longer run; infinity for all, so that it may be extended.
  common_rows: Callable[[experiment_lib.Experiment], float] = lambda _: 0


def task_of(experiment: experiment_lib.Experiment) -> Task:
  """Returns the experiment's task.

  Raises:
    ValueError: `data.task` names none.
  """
  return _find(experiment.data.task)


def _find(name: str) -> Task:
  parts.check('data.task', name, TASKS)
  return TASKS.get(name) or parts.find('TASKS', name)


def check(experiment: experiment_lib.Experiment) -> None:
  """Refuses an experiment whose data, model and objective do not fit.

  Raises:
    OSError, ValueError: names the field, its value and what would be right.
  """
  task = task_of(experiment)
  data = experiment.data
  if (data.sources or data.mix) and task is not TASKS['text']:
    field = 'sources' if data.sources else 'mix'
    raise ValueError(
      f"data.{field}: sources are mixed for data.task='text' alone, not for"
      f' {data.task!r}.'
    )
  if not _serves(task, experiment.objective.name):
    raise ValueError(
      f'objective.name={experiment.objective.name!r}: the rows of'
      f' data.task={experiment.data.task!r} are for'
      f' {", ".join(map(repr, task.objectives))}.'
    )
  task.check(experiment)


def _serves(task: Task, objective: str) -> bool:
  """Returns whether an objective can read a task's rows.

  Rows without extras are for every objective of one's own; `own_parts.check`
  compares the extras.
  """
  is_own = objective not in objective_config.NAMES
  return objective in task.objectives or (
    is_own and 'language' in task.objectives
  )


def common_rows(experiment: experiment_lib.Experiment) -> float:
  """Returns how many of a run's first rows are those of every longer run.

  Raises:
    ValueError: `data.task` names no task.
  """
  return task_of(experiment).common_rows(experiment)


def rows(experiment: experiment_lib.Experiment) -> Any:
  """Returns the training rows, a `loader.RowSource`.

  Raises:
    OSError, ValueError: see `check`; or text that is missing.
  """
  check(experiment)
  return task_of(experiment).load(experiment).rows


def texts(experiment: experiment_lib.Experiment, count: int) -> Any:
  """Returns int32 [B, L]: the first held-out texts of a run, `count` of them.

  They are as long as the run's rows. Without held-out text they are texts on
  which the run trains; for a needle run they are questions.

  Raises:
    OSError, ValueError: the text is missing, or has too few long documents.
  """
  return task_of(experiment).texts(experiment, count)


def questions(data: data_config.DataConfig) -> Any:
  """Returns the `tasks/needle/questions.Task` that asks a trained model.

  Raises:
    ValueError: `data.task` has no questions.
  """
  task = _find(data.task)
  if task.questions is None:
    names = [name for name, one in TASKS.items() if one.questions is not None]
    raise ValueError(
      f'data.task={data.task!r}: has no questions; those of'
      f' {", ".join(map(repr, names))} have.'
    )
  return task.questions(data)


def _load_text(experiment: experiment_lib.Experiment) -> TaskData:
  data = experiment.data
  found = texts_lib.read(experiment)
  described = texts_lib.describe(found, targets.hash_store(experiment))
  rows = texts_lib.rows(experiment, found, _row_count(experiment))
  if not data.held_out:
    return TaskData(rows, text=described)

  def evaluator(model, mesh) -> Evaluator:
    from kaiju_jax.evaluation import held_out

    arguments = data.length, data.batch, data.evaluated_rows, mesh
    arguments += (experiment.objective.chunk,)
    corpora, shares = {'': found[0].unseen}, [1.0]
    if found[0].is_mixed:
      corpora = {one.config.name: one.unseen for one in found}
      shares = rows.shares
    scores = held_out.evaluator(model, corpora, shares, *arguments)
    return lambda state: scores(state.params, state.replica)

  return TaskData(rows, evaluator, described)


def _check_properties(experiment: experiment_lib.Experiment) -> None:
  from kaiju_jax.data import properties

  data = experiment.data
  if data.tokenizer:
    raise ValueError(
      f"data.tokenizer={data.tokenizer!r}: must be '' for"
      " data.task='properties', whose labels are properties of bytes."
    )
  texts_lib.check(experiment)
  properties.check(experiment.objective.token_head.names)


def _load_properties(experiment: experiment_lib.Experiment) -> TaskData:
  from kaiju_jax.data import properties
  from kaiju_jax.data import text

  data = experiment.data
  names = experiment.objective.token_head.names
  found = texts_lib.read(experiment)
  described = texts_lib.describe(found)
  rows = texts_lib.rows(experiment, found, _row_count(experiment))
  labelled = properties.LabelledRows(rows, names)
  unseen = found[0].unseen
  if unseen is None:
    return TaskData(labelled, text=described)
  source = properties.LabelledRows(text.Rows(unseen, data.length), names)
  return TaskData(labelled, _evaluator(experiment, source), described)


def _evaluator(
  experiment: experiment_lib.Experiment, source: Any
) -> Callable[..., Evaluator]:
  """Returns `TaskData.evaluator` of the run's objective on held-out rows."""

  def evaluator(model, mesh) -> Evaluator:
    from kaiju_jax.evaluation import objective_metrics
    from kaiju_jax.training import state as state_lib

    scores = objective_metrics.evaluator(
      model,
      state_lib.objective_of(experiment),
      source,
      experiment.data.batch,
      experiment.data.evaluated_rows,
      mesh,
    )
    return lambda state: scores(state.params, state.replica)

  return evaluator


def _load_conversations(
  read: Callable[..., Any], experiment: experiment_lib.Experiment
) -> TaskData:
  found = read(experiment)
  if found.unseen is None:
    return TaskData(found.rows, text=found.text)
  evaluator = _evaluator(experiment, found.unseen)
  return TaskData(found.rows, evaluator, found.text)


def _conversation_texts(
  read: Callable[..., Any], experiment: experiment_lib.Experiment, count: int
):
  """Returns rows of held-out conversations, or of those of the training."""
  import numpy as np

  found = read(experiment)
  source = found.rows if found.unseen is None else found.unseen
  return np.stack([source[index].tokens for index in range(count)])


def _conversations(check, read, *objectives: str) -> Task:
  """Returns the task whose `read` returns a `conversations.Read`."""
  parts = _load_conversations, _conversation_texts
  return Task(
    check,
    *(functools.partial(x, read) for x in parts),
    objectives,
    common_rows=texts_lib.common_rows,
  )


def _row_count(experiment: experiment_lib.Experiment) -> int:
  """Returns the rows of a whole run, over which a curriculum is spread."""
  return batch_schedule.schedule_of(experiment).rows


def _load_needle(experiment: experiment_lib.Experiment) -> TaskData:
  from kaiju_jax.tasks.needle import curriculum

  data = experiment.data
  rows = curriculum.Rows(
    _row_count(experiment),
    data.length,
    experiment.seed,
    curricula.curriculum_of(experiment),
  )
  if not experiment.loop.evaluate_every:
    return TaskData(rows)  # experiments.needle asks the grid at the end.

  def evaluator(model, mesh) -> Evaluator:
    del mesh  # Parameters are read on their own devices.
    from kaiju_jax.tasks.needle import readings
    from kaiju_jax.training import token_count

    readings = readings.evaluator(model, rows, data.length)
    # By tokens, because steps may differ in their rows.
    return lambda state: readings(
      state.params, token_count.to_int(state.tokens) // data.length
    )

  return TaskData(rows, evaluator)


def _load_recall(experiment: experiment_lib.Experiment) -> TaskData:
  from kaiju_jax.tasks.needle import curriculum
  from kaiju_jax.tasks.recall import rows

  data, stages = experiment.data, curricula.curriculum_of(experiment)
  count = _row_count(experiment)
  return TaskData(
    curriculum.Rows(count, data.length, experiment.seed, stages, rows.document)
  )


def _recall_texts(experiment: experiment_lib.Experiment, count: int):
  """Returns one question per row, all of the trained length."""
  import numpy as np

  from kaiju_jax.tasks.recall import rows

  drawn = rows.questions(
    np.random.default_rng(0), 'hops_1', count, experiment.data.length
  )
  return drawn.tokens_BL


@functools.lru_cache(maxsize=1)
def _haystacks(path: str, held_out: float):
  """Returns the training text, the text for questions, and `TaskData.text`."""
  from kaiju_jax.data import same_text
  from kaiju_jax.data.store import corpora
  from kaiju_jax.tasks.needle import text as needle_text

  config = data_config.DataConfig(path=path, held_out=0.0)
  corpus, _ = corpora.load(config)
  described = {'': same_text.describe(corpus)}
  return *needle_text.haystacks(corpus, held_out), described


def _load_needle_text(experiment: experiment_lib.Experiment) -> TaskData:
  from kaiju_jax.tasks.needle import text

  data = experiment.data
  training, _, described = _haystacks(data.path, data.held_out)
  count = _row_count(experiment)
  rows = text.rows(training, count, data.length, experiment.seed)
  return TaskData(rows, text=described)


def _check_dialogues(experiment: experiment_lib.Experiment) -> None:
  if experiment.data.path:
    raise ValueError(
      f"data.path={experiment.data.path!r}: must be '' for"
      " data.task='dialogues', which are invented, not read."
    )
  _dialogues(experiment, 0)


def _load_dialogues(experiment: experiment_lib.Experiment) -> TaskData:
  return TaskData(_dialogues(experiment, _row_count(experiment)))


def _dialogue_texts(experiment: experiment_lib.Experiment, count: int):
  """Returns rows of dialogues on which no run trains."""
  import numpy as np

  unseen = _dialogues(experiment, count).unseen()
  return np.stack([unseen[index].tokens for index in range(count)])


def _dialogues(experiment: experiment_lib.Experiment, count: int):
  from kaiju_jax.data import chat
  from kaiju_jax.data import tokenizer
  from kaiju_jax.tasks.dialogues import rows

  data = experiment.data
  tokens = tokenizer.load(data.tokenizer, experiment.model.vocab_size)
  return rows.Rows(chat.format_of(tokens), count, data.length, experiment.seed)


def _pairs(data: data_config.DataConfig):
  from kaiju_jax.tasks.needle import questions as needle

  return needle.Pairs()


def _sentences(data: data_config.DataConfig):
  from kaiju_jax.tasks.needle import text

  _, unseen, _ = _haystacks(data.path, data.held_out)
  return text.Sentences(unseen)


def _question_texts(experiment: experiment_lib.Experiment, count: int):
  """Returns one question per row, about a needle at a medium distance."""
  import numpy as np

  length = experiment.data.length
  task = questions(experiment.data)
  nearest, farthest = task.distances(length)
  drawn = task.questions(
    np.random.default_rng(0), count, length, (nearest + farthest) // 2, 1
  )
  return drawn.tokens_BL


TASKS = {
  'text': Task(
    texts_lib.check,
    _load_text,
    texts_lib.first,
    objectives=('language', 'distillation', 'attention_alignment'),
    common_rows=texts_lib.common_rows,
  ),
  'properties': Task(
    _check_properties,
    _load_properties,
    texts_lib.first,
    objectives=('token_head',),
    common_rows=texts_lib.common_rows,
  ),
  'dialogues': Task(_check_dialogues, _load_dialogues, _dialogue_texts),
  'spans': _conversations(spans_lib.check, spans_lib.read, 'token_head'),
  'conversations': _conversations(
    conversations_lib.check, conversations_lib.read_fine_tuning, 'language'
  ),
  'choices': _conversations(
    conversations_lib.check_choices,
    conversations_lib.read_choices,
    'preference',
  ),
  'needle': Task(
    curricula.check, _load_needle, _question_texts, questions=_pairs
  ),
  'needle_text': Task(
    curricula.check_text,
    _load_needle_text,
    _question_texts,
    questions=_sentences,
  ),
  'recall': Task(curricula.check, _load_recall, _recall_texts),
}
