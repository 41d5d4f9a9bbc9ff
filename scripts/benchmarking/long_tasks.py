"""The tasks of the study ``long-documents``: what makes their rows, what they need, and how a model trains on them."""

from collections.abc import Callable
from dataclasses import dataclass

from fairseq_linformer.errors import UserError, check

from . import book_tasks, review_tasks
from .listops import listops
from .rows_of_text import Request, TaskData


@dataclass(frozen=True)
class LongTask:
    """One task.

    Attributes:
        make: its rows; raises an OSError where what it reads is not there, and a UserError where that cannot be read or
            has too little for n.
        needs: what of ``Request`` it reads.
        updates: of a run, unless the user says otherwise.
        tokens: of an update, likewise.
        learning_rates: that are tried, likewise.
    """

    make: Callable[[Request], TaskData]
    needs: tuple[str, ...] = ()
    updates: int = 1_000
    tokens: int = 4_096
    learning_rates: tuple[float, ...] = (0.001, 0.002, 0.004)


TASKS = {
    "books": LongTask(book_tasks.books, ("corpus", "tokenizer"), updates=600, tokens=2_048),
    # After 800 updates at n = 512 two of three seeds of full attention had found some of the needles, not all of them.
    "needles": LongTask(book_tasks.needles, ("corpus", "tokenizer"), 1_600, 2_048, (0.00075, 0.0015, 0.003)),
    "imdb": LongTask(review_tasks.imdb, ("source", "tokenizer")),
    "imdb-bytes": LongTask(review_tasks.imdb_bytes, ("source",)),
    "listops": LongTask(listops),
}


def make_rows(name: str, request: Request) -> TaskData:
    """The rows of a task.

    Raises:
        OSError: what it reads is not there.
        UserError: the task is unknown, lacks something that it needs or has no use for, or cannot have this n.
    """
    check("task", name, name in TASKS, f"one of {', '.join(TASKS)}")
    task = TASKS[name]
    for option in ("corpus", "tokenizer", "source"):
        given = getattr(request, option) is not None
        if given != (option in task.needs):
            raise UserError(f"--task {name} {'has no use for' if given else 'needs'} --{option}")
    return task.make(request)
