"""Tokenize files once into a store, which runs read as `data.path`.

    python -m experiments.tokenize --data=texts --out=store --tokenizer=t.json
    python -m experiments.train --config=tiny --workdir=runs/of_store \\
        --config.data.path=store --config.data.tokenizer=t.json

--data is a file, folder or glob of UTF-8 text or .jsonl files (documents and
trees, `data/documents.py`), also as .gz or .zst; of .parquet files; or a folder
that `datasets` saved. With --task it is .jsonl of conversations
(`data/conversations.py`). Rows of a store are those of its files, bit for bit.
Memory does not grow with them; after a kill the same command goes on.
"""

from collections.abc import Sequence
import dataclasses
from typing import Annotated
from typing import Literal

from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  # File, folder or glob of text; '' for the text that this Python carries.
  data: str = ''
  # What the files hold, the runs' data.task.
  task: Literal['text', 'conversations', 'choices'] = 'text'
  # A new folder, or one that this command began.
  out: str
  # Path of a tokenizer.json; '' for bytes.
  tokenizer: str = ''
  # Fraction of the documents that is held out, the runs' data.held_out.
  held_out: Annotated[float, flags.Bounds(0.0, below=1.0)] = 0.05
  # Column of a table that holds text.
  column: str = 'text'
  # Folder whose chat template writes messages, the runs' data.chat_template.
  chat_template: str = ''
  # With --task=conversations: tokens of a row, the runs' data.length.
  length: Annotated[int, flags.Bounds(2)] = 512
  # With --task=conversations: the runs' data.end_weight.
  end_weight: Annotated[float, flags.Bounds(0.0)] = 1.0
  # How many processes encode; 0 for one per core.
  processes: flags.NonNegative = 0


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  ignored = 'chat_template' if settings.task == 'text' else 'column'
  if ignored in FLAGS.list_given():
    raise ValueError(f'--{ignored}: has no effect with --task={settings.task}.')
  from kaiju_jax.data import config as data_config
  from kaiju_jax.data.store import write
  from kaiju_jax.runs import pool
  from kaiju_jax.tasks import conversations
  from kaiju_jax.training import progress

  known = vars(data_config.DataConfig())
  own = {name: x for name, x in vars(settings).items() if name in known}
  config = data_config.DataConfig(path=settings.data, **own)
  with progress.Progress('million characters') as shown:
    training, held_out = write.write(
      config,
      settings.out,
      conversations.encoder_of,
      settings.column,
      settings.processes or pool.count_cores(),
      watch=lambda count: shown.update(count / 1e6),
    )
  for name, x in (('to train on', training), ('held out', held_out)):
    if x is not None:
      print(f'{len(x.names):,} documents, {len(x.tokens):,} tokens {name}')
  print(f'Written: {settings.out}')


if __name__ == '__main__':
  command.run(main)
