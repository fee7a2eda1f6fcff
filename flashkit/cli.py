"""The command `flashkit`."""

import argparse
import json
import sys

from flashkit.bench import command as bench


def main(arguments: list[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    parser = argparse.ArgumentParser(prog="flashkit", description="FlashAttention, in the open.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    doctor = commands.add_parser("doctor", help="check this machine and run one tiny kernel")
    doctor.add_argument("--json", action="store_true", help="print the report as JSON")
    doctor.set_defaults(run=_doctor)
    timing = commands.add_parser("bench", help="time the kernels beside their peers on this GPU")
    bench.add_arguments(timing)
    timing.set_defaults(run=bench.main)
    options = parser.parse_args(arguments)
    return options.run(options)


def _doctor(options: argparse.Namespace) -> int:
    from flashkit import doctor

    findings = doctor.examine()
    ready = doctor.healthy(findings)
    if options.json:
        rows = [finding._asdict() for finding in findings]
        print(json.dumps({"ready": ready, "findings": rows}, indent=2))
    else:
        print(doctor.render(findings))
    return 0 if ready else 1


if __name__ == "__main__":
    sys.exit(main())
