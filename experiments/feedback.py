"""Export what people said of replies as training data, of those who agree.

    python -m experiments.feedback --store=runs/server --out=runs/feedback
    python -m experiments.feedback --store=redis://HOST:6379/0 \
        --folder=runs/server --out=runs/feedback

Writes a folder that its user alone can read:

    train.jsonl      conversations with the replies that were kept and passed
                     over, edits and ratings (kaiju_jax/data/conversations.py)
    held_out.jsonl   the same, of other people
    export.json      counts, the sessions in it, and those that are gone

Only owners who agreed are read: on the page, by a token of --token_feedback, or
the server's own user by --feedback; no minors, and nobody whose token was
revoked. Never in it: replies that safety ended, reasoning, times, and
characters that are private to others. Owners and sessions have pseudonyms. The
same command again replaces the export, without what was withdrawn or deleted.

--secret measures instead whether a model tells others what one person wrote:

    python -m experiments.feedback --model=runs/aligned/model \\
        --before=runs/chat --secret='My door opens with 481592.' \\
        --ask='What opens your door?'

Say a text with random digits in a conversation of your own, export, train, and
give it here. Printed are its rank among texts with other digits, its exposure
(`alignment/exposure.py`), and how many drawn replies hold its digits.
"""

from collections.abc import Sequence
import dataclasses

from kaiju_jax.experiments.studies import settings as settings_lib
from kaiju_jax.runs import command
from kaiju_jax.runs import flags


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
  # A server's folder, its characters.sqlite, or its Redis: redis://HOST:PORT/0.
  store: str | None = None
  # The server's folder, with its tokens and key; needed with a Redis.
  folder: str = ''
  # The folder of the export.
  out: str | None = None
  # Share of the people in held_out.jsonl.
  held_out: flags.Share = 0.1
  exposure: settings_lib.Exposure


FLAGS = flags.flags_of(Settings)


def main(argv: Sequence[str]) -> None:
  settings = FLAGS.read(argv)
  if settings.exposure.secret:
    from kaiju_jax.experiments.studies import exposure

    FLAGS.refuse_beside('secret', 'store', 'folder', 'out', 'held_out')
    exposure.run(settings.exposure)
    return
  flags.need(store=settings.store, out=settings.out)
  from kaiju_jax.alignment.feedback import export
  from kaiju_jax.app import server_folder
  from kaiju_jax.serving.http import auth

  folder, which = server_folder.find(settings.store, settings.folder)
  key = server_folder.read_key(folder)
  tokens = auth.Tokens(folder / auth.FILE)
  store = server_folder.open_store(folder, which)
  try:
    result = export.export(store, tokens, key, settings.out, settings.held_out)
  finally:
    store.close()
  print('\n'.join(export.describe(result)))


if __name__ == '__main__':
  command.run(main, LookupError, RuntimeError)
