"""Tokenize text once into a store, which runs read as `data.path`.

    python -m experiments.tokenize --data=texts/web --out=stores/web \\
        --tokenizer=tokenizer.json
    python -m experiments.train --config=tiny --workdir=runs/web \\
        --config.data.path=stores/web --config.data.tokenizer=tokenizer.json

--data is a file, folder or glob of UTF-8 text, of .jsonl files (documents and
trees, `data/documents.py`), both also as .gz or .zst; of .parquet files; or a
folder that `datasets` saved. Rows of a store are those of its text, bit for
bit.

Memory does not grow with the text. After a kill the same command goes on.
"""

from collections.abc import Sequence
import dataclasses
from typing import Annotated

from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  # File, folder or glob of text; '' for the text that this Python carries.
  data: str = ''
  # A new folder, or one that this command began.
  out: str
  # Path of a tokenizer.json; '' for bytes.
  tokenizer: str = ''
  # Fraction of the documents that is held out, the runs' data.held_out.
  held_out: Annotated[float, flags.Bounds(0.0, below=1.0)] = 0.05
  # Column of a table that holds text.
  column: str = 'text'
  # How many processes encode; 0 for one per core.
  processes: flags.NonNegative = 0


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  from kaiju_jax.data.store import write
  from kaiju_jax.runs import pool
  from kaiju_jax.training import progress

  with progress.status('reading') as update:
    training, held_out = write.write(
      settings.data,
      settings.tokenizer,
      settings.out,
      settings.held_out,
      settings.column,
      settings.processes or pool.count_cores(),
      watch=lambda count: update(f'{progress.short(count)} characters'),
    )
  for name, one in (('to train on', training), ('held out', held_out)):
    if one is not None:
      print(f'{len(one.names):,} documents, {len(one.tokens):,} tokens {name}')
  print(f'Written: {settings.out}')


if __name__ == '__main__':
  command.run(main)
