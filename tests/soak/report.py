"""What a soak counts, how it names what it finds, and the table that it prints."""

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path

LOST, TRACEBACKS, HANGS = FAILURES = ("lost", "tracebacks", "hangs")
COLUMNS = ("tried", *FAILURES)


@dataclass(frozen=True)
class Finding:
    """Something that went wrong: one of FAILURES, and what is needed to see it again."""

    failure: str
    what: str


@dataclass
class Report:
    """Counts by row, a command or a kind of input; findings go to OUT/findings.jsonl as they are found."""

    out: Path
    rows: dict[str, dict[str, float]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, row: str, findings: list[Finding], seconds: float, tried: int = 1, **repeat: object) -> None:
        """Counts `tried` attempts; `repeat` says how to see their findings again."""
        with self._lock:
            counts = self.rows.setdefault(row, dict.fromkeys((*COLUMNS, "seconds"), 0))
            counts["tried"] += tried
            counts["seconds"] += seconds
            for finding in findings:
                counts[finding.failure] += 1
                line = json.dumps({"row": row, **repeat, **vars(finding)}, ensure_ascii=True)
                with (self.out / "findings.jsonl").open("a", encoding="utf-8") as stream:
                    stream.write(line + "\n")

    @property
    def failures(self) -> int:
        return int(sum(counts[failure] for counts in self.rows.values() for failure in FAILURES))

    def table(self) -> str:
        """In Markdown. Seconds are those of all workers together."""
        names = (*COLUMNS, "seconds")
        total = {name: sum(counts[name] for counts in self.rows.values()) for name in names}
        lines = [f"| command or input | {' | '.join(names)} |", "|---" + "|---:" * len(names) + "|"]
        for row, counts in {**self.rows, "total": total}.items():
            lines.append(f"| {row} | {' | '.join(f'{counts[name]:,.0f}' for name in names)} |")
        return "\n".join(lines) + "\n"
