"""`autograder attack`: the battery from the command line; `python -m autograder.attacks` too."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path

from autograder.attacks import page
from autograder.attacks.battery import FAMILIES, Attack, load
from autograder.attacks.record import run_record
from autograder.attacks.run import run_on_engine, table

THIRTY = (
    "grade a mixed class of thirty instead and keep its answers and marks in FILE; with --engine,"
    " grade those again and compare"
)


def add_verb(verbs) -> None:
    """Add the verb to the command `autograder`."""
    text = "run the hostile battery against the grader, show what held"
    new = verbs.add_parser("attack", help=text, description=text)
    add_options(new)
    new.set_defaults(does=lambda course, args: attack(args, new.error))


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options of the verb."""
    jobs = min(4, os.cpu_count() or 1)
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME", help="attack or family"
    )
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu", help="default: cpu")
    parser.add_argument("--engine", action="store_true", help="the engine alone, without nbgrader")
    parser.add_argument("--jobs", type=int, default=jobs, help="at a time (%(default)s)")
    parser.add_argument("--json", action="store_true", help="for programs")
    parser.add_argument("--thirty", type=Path, metavar="FILE", help=THIRTY)
    parser.add_argument("--write", action="store_true", help="only write docs/attacks.md")


def attack(args: argparse.Namespace, refuse: Callable[[str], None]) -> int:
    """Attack and print the table; 1 where anything is broken. refuse ends a wrong command line."""
    if args.write:
        page.write()
        return 0
    try:
        attacks = chosen(load(), args.only)
    except ValueError as error:
        refuse(str(error))
    on_engine = args.engine or find_spec("nbgrader") is None
    if args.thirty and on_engine:
        results = run_record(args.thirty, args.device, args.jobs, say)
    elif args.thirty:
        from autograder.attacks.mixed_run import run_thirty  # needs nbgrader

        results = run_thirty(args.device, args.jobs, say, args.thirty)
    elif on_engine:
        results = run_on_engine(attacks, args.device, args.jobs, say)
    else:
        from autograder.attacks.class_run import run_on_class  # needs nbgrader

        results = run_on_class(attacks, args.device, args.jobs, say)
    print(json.dumps([asdict(r) for r in results]) if args.json else table(results))
    return 1 if any(result.broken for result in results) else 0


def chosen(attacks: Sequence[Attack], names: list[str]) -> list[Attack]:
    """The attacks with these names or of these families; all where none is named."""
    known = {*FAMILIES, *(attack.name for attack in attacks)}
    if unknown := [name for name in names if name not in known]:
        raise ValueError(
            f"no attack or family {unknown[0]!r}; there are: {', '.join(sorted(known))}"
        )
    return [a for a in attacks if not names or a.name in names or a.family in names]


def say(text: str) -> None:
    """A line of progress on stderr."""
    print(text, file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """The same command where the rest of the autograder is not installed."""
    parser = argparse.ArgumentParser("python -m autograder.attacks", description=__doc__)
    add_options(parser)
    return attack(parser.parse_args(argv), parser.error)
