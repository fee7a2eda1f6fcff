"""A verdict for people: text for the notebook and the terminal, HTML for the feedback page."""

from html import escape

from flashkit.exercises.errormap import as_html, as_text
from flashkit.exercises.marking import reason_of
from flashkit.exercises.model import CaseResult, Verdict

DETAILED = 3
"""Failed cases that the text report tells in full; the others get one line."""
_SIGNS = {"pass": "✓", "skipped": "–"}


def headline(verdict: Verdict) -> str:
    """One line: "flash_attention: 3 of 4 public cases pass." """
    if verdict.status == "infra":
        return f"{verdict.exercise}: not graded, the grader itself failed. {verdict.note}".strip()
    kind = "public cases" if verdict.status == "public" else "cases"
    score = "" if verdict.status == "public" else f", {_points(verdict)}"
    return f"{verdict.exercise}: {verdict.passed} of {len(verdict.cases)} {kind} pass{score}."


def _points(verdict: Verdict) -> str:
    return f"{verdict.points:g} of {verdict.max_points:g} points"


def render_text(verdict: Verdict) -> str:
    """The report as plain text, without a last newline."""
    failures = [case for case in verdict.cases if not case.passed]
    if failures and all(case.kind == "unwritten" for case in failures):
        return f"{headline(verdict)}\n{failures[0].message}"
    lines = [headline(verdict)]
    if verdict.bug:
        lines.append(f"Likely reason: {reason_of(verdict.bug)}")
    if verdict.seen:
        lines.append(f"It was {verdict.seen}.")
    told = [id(case) for case in failures[:DETAILED]]
    for case in verdict.cases:
        lines.append(f"  {_SIGNS.get(case.kind, '✗')} {case.name}")
        if id(case) in told:
            lines += [f"      {line}" for line in details(case, verdict.bug)]
            lines += [f"      {line}" for line in as_text(case.map)] if mapped(case) else []
    return "\n".join([*lines, verdict.note] if verdict.note else lines)


def details(case: CaseResult, bug: str | None) -> list[str]:
    """What a failed case tells the student, one sentence or two a line."""
    lines = [f"catches: {case.reason}", message_of(case)]
    if case.tile is not None:
        lines.append(f"first wrong tile of queries: {case.tile}")
    if case.kind == "wrong" and not bug and len(case.bugs) == 1:
        lines.append(f"likely reason: {reason_of(case.bugs[0])}")
    if case.got == "nan" and not case.bugs and not bug:
        lines.append(NAN_HINT)
    return lines


def message_of(case: CaseResult) -> str:
    """What went wrong; of a hidden case nothing that would help to rebuild it."""
    return case.told or HIDDEN[case.kind] if case.hidden else case.message


def mapped(case: CaseResult) -> bool:
    """Whether the error by tile may be shown, and shows more than one sign would."""
    return len(case.map) * len(case.map[0]) > 1 and not case.hidden if case.map else False


HIDDEN = {
    "wrong": "The answer is not what was asked for.",
    "error": "Your code raised an exception.",
    "unwritten": "It is not written yet.",
    "timeout": "There was no answer in time: is there a loop that never ends?",
    "died": "The process ended before it answered.",
    "skipped": "It was not run.",
}
"""What is told of a failed hidden case, by its kind, where nothing better is known."""


NAN_HINT = (
    "NaN comes from exp(-inf - -inf), from alpha upside down (exp(m_new - -inf) is inf), from "
    "0 * -inf in a mask, from 0 / 0 where l stayed 0, or from a load without a mask past the end."
)

_BOX = (
    "border:1px solid #8884;border-left:4px solid {};border-radius:4px;padding:.5em .8em;"
    "margin:.4em 0;font-family:sans-serif;font-size:90%;line-height:1.45"
)


def render_html(verdict: Verdict) -> str:
    """The report as one element: inline styles that read in light and dark, no scripts."""
    colour = "#009E73" if verdict.passed == len(verdict.cases) > 0 else "#D55E00"
    rows = "".join(_html_case(case, verdict.bug) for case in verdict.cases)
    seen = f" It was {escape(verdict.seen)}." if verdict.seen else ""
    reason = escape(reason_of(verdict.bug))
    bug = f"<p><b>Likely reason.</b> {reason}{seen}</p>" if verdict.bug else ""
    note = f"<p>{escape(verdict.note)}</p>" if verdict.note and verdict.status != "infra" else ""
    return (
        f'<div style="{_BOX.format(colour)}"><b>{escape(headline(verdict))}</b>{bug}'
        f'<ul style="list-style:none;padding-left:.2em;margin:.4em 0">{rows}</ul>{note}'
        f'<div style="opacity:.65;font-size:85%">{escape(provenance(verdict))}</div></div>'
    )


def _html_case(case: CaseResult, bug: str | None) -> str:
    sign = _SIGNS.get(case.kind, "✗")
    lines = [] if case.passed else details(case, bug)
    body = "".join(f'<div style="margin-left:1.6em">{escape(line)}</div>' for line in lines)
    picture = as_html(case.map) if mapped(case) else ""
    return f"<li>{sign} {escape(case.name)}{body}{picture}</li>"


def provenance(verdict: Verdict) -> str:
    """Device, versions and, of a public run, the seed: enough to repeat it."""
    versions = ", ".join(f"{name} {number}" for name, number in sorted(verdict.versions.items()))
    # The seed of a graded verdict is the course's secret: it stays in the record.
    seed = f", seed {verdict.seed}" if verdict.status == "public" else ""
    return f"device {verdict.device}{seed}" + (f", {versions}" if versions else "")
