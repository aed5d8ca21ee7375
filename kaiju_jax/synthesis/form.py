"""Writes a passage, a question and its answer as one text.

    {header}{passage}              the root of a tree
    {question} …{answer} …{end}    a variation, one of its children

With the defaults:

    Ada Lovelace was born in London.

    Q: Where was Ada born?
    A: London

The generator that writes the variations continues this text. It knows the form
because it was trained on it, or because the header shows it. The sources say
only "augmented data with synthetic variations to sharpen question-answering
skills"; the form is our guess.
"""

import dataclasses

# The space between a marker and the words behind it. It belongs to the words,
# because tokenizers merge a space with the word that follows it.
_SPACE = ' '


@dataclasses.dataclass(frozen=True)
class Form:
  """The text around passages, questions and answers."""

  header: str = ''  # Stands before each passage; it may hold worked examples.
  question: str = '\n\nQ:'  # Opens a question.
  answer: str = '\nA:'  # Opens its answer.
  end: str = '\n'  # Ends the answer.

  def __post_init__(self) -> None:
    """Refuses a form that cannot be read back.

    Raises:
      ValueError: names the field, its value and what would be right.
    """
    for name in ('question', 'answer', 'end'):
      if not getattr(self, name):
        raise ValueError(f"form.{name}='': must hold at least one character.")
    for field in dataclasses.fields(self):
      if '\0' in getattr(self, field.name):
        raise ValueError(f'form.{field.name}: must not hold NUL.')

  def root(self, passage: str) -> str:
    """Returns the text that all variations of a passage continue."""
    return self.header + passage

  def format_question(self, question: str) -> str:
    """Returns a question up to where its answer begins."""
    return f'{self.question}{_SPACE}{question}{self.answer}'

  def format_answer(self, answer: str) -> str:
    """Returns the text that follows `format_question`'s."""
    return f'{_SPACE}{answer}{self.end}'

  def variation(self, question: str, answer: str) -> str:
    """Returns a variation, the text that continues a passage."""
    return self.format_question(question) + self.format_answer(answer)
