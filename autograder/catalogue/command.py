"""`autograder catalogue`: the right and the wrong answers through the engine, and the matrix.

python -m autograder.catalogue.command      the same where nbgrader is not installed
"""

import argparse
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

from autograder.catalogue import entries
from autograder.catalogue.page import page, terminal, totals
from autograder.catalogue.runner import Outcome, problems, run, scores
from flashkit import runtime

PAGE = Path(__file__).parents[2] / "docs" / "kill-matrix.md"
UNJAILED = "run the answers with your own rights: they are the catalogue's, not a student's"


def add_verb(verbs) -> None:
    """Add the verb to the command `autograder`."""
    text = "grade right and wrong answers of known fate, print the kill matrix"
    new = verbs.add_parser("catalogue", help=text, description=text)
    options(new)
    new.set_defaults(does=lambda course, args: catalogue(args))


def options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the verb."""
    parser.add_argument("--device", choices=["cpu", "cuda"], default=runtime.device())
    parser.add_argument("--only", metavar="TEXT", help="answers whose name holds this text")
    parser.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="at a time")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--write", action="store_true", help=f"write docs/{PAGE.name}")
    parser.add_argument("--unjailed", action="store_true", help=UNJAILED)


def catalogue(args: argparse.Namespace) -> int:
    """Run the verb: 0 where every answer fares as it must, else 1."""
    chosen = [entry for entry in entries() if (args.only or "") in entry.name]
    if not chosen:
        print(f"no answer's name holds {args.only!r}", file=sys.stderr)
        return 1
    outcomes = []
    for outcome in run(chosen, args.device, args.jobs, not args.unjailed):
        outcomes.append(outcome)
        _say(len(outcomes), len(chosen), outcome)
    if args.write and not args.only:
        PAGE.write_text(page(outcomes), encoding="utf-8")
    found = problems(outcomes, whole=not args.only)
    print(_json(outcomes, found) if args.json else terminal(outcomes))
    for sentence in found:
        print(f"NOT AS IT MUST BE: {sentence}", file=sys.stderr if args.json else sys.stdout)
    return 1 if found else 0


def _say(number: int, total: int, outcome: Outcome) -> None:
    fate = f"fails {len(outcome.failed)} of {outcome.cases}"
    trouble = f"  NOT AS IT MUST BE: {outcome.problem}" if outcome.problem else ""
    text = f"[{number}/{total}] {outcome.entry.name}: {fate}, {outcome.seconds:.0f} s{trouble}"
    print(text, file=sys.stderr, flush=True)


def _json(outcomes: list[Outcome], found: list[str]) -> str:
    rows = [asdict(o) | {"entry": o.entry.name, "problem": o.problem} for o in outcomes]
    return json.dumps({"outcomes": rows, "totals": totals(scores(outcomes)), "problems": found})


if __name__ == "__main__":
    parser = argparse.ArgumentParser("autograder catalogue", description=__doc__)
    options(parser)
    sys.exit(catalogue(parser.parse_args()))
