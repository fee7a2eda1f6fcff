"""Controls above a stage: a change of a control recomputes the steps, the slider moves in them."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import ipywidgets

from flashkit.widgets import fallback
from flashkit.widgets.scene import Step
from flashkit.widgets.stage import Stage

WIDE = {"description_width": "initial"}
_open: dict[str, "Explorer"] = {}  # the live explorer of each name


@dataclass(frozen=True)
class Number:
    """A number box: whole numbers where `value` and `step` are ints."""

    name: str
    label: str
    value: float
    low: float
    high: float
    step: float = 1

    def widget(self) -> ipywidgets.Widget:
        """The control, not yet shown."""
        whole = isinstance(self.value, int) and isinstance(self.step, int)
        box = ipywidgets.BoundedIntText if whole else ipywidgets.BoundedFloatText
        limits = {"min": self.low, "max": self.high, "step": self.step}
        return box(value=self.value, **_labelled(self.label, 7), **limits)


@dataclass(frozen=True)
class Choice:
    """A drop-down list of strings or of (text, value) pairs."""

    name: str
    label: str
    options: Sequence
    value: object

    def widget(self) -> ipywidgets.Widget:
        """The control, not yet shown."""
        texts = [option if isinstance(option, str) else option[0] for option in self.options]
        room = 4 + 0.6 * max(map(len, texts))
        look = _labelled(self.label, room)
        return ipywidgets.Dropdown(options=list(self.options), value=self.value, **look)


@dataclass(frozen=True)
class Text:
    """A line of text; `compute` gets the string when it is left or Enter is pressed."""

    name: str
    label: str
    value: str

    def widget(self) -> ipywidgets.Widget:
        """The control, not yet shown."""
        look = _labelled(self.label, max(14, 3 + 0.6 * len(self.value)))
        return ipywidgets.Text(value=self.value, continuous_update=False, **look)


def _labelled(label: str, room: float) -> dict:
    """A description in full, and beside it a box of so many em."""
    layout = {"width": f"{room + 0.55 * len(label):.1f}em", "max_width": "100%"}
    return {"description": label, "style": WIDE, "layout": layout}


def numbers(text: str) -> list[float]:
    """The finite numbers of "0, 1, 2, -1"; a ValueError says which entry is none."""
    entries = text.replace(",", " ").split()
    if not entries:
        raise ValueError("write at least one number, such as 0, 1, 2")
    found = []
    for entry in entries:
        try:
            value = float(entry)
        except ValueError:
            raise ValueError(f"{entry!r} is not a number: write numbers like 0, 1, -2.5") from None
        if not math.isfinite(value):
            raise ValueError(f"{entry!r} is not a finite number")
        found.append(value)
    return found


class Explorer(ipywidgets.VBox):
    """Controls, a slider and a stage. `compute(**values)` gives the steps, again at each change.

    An exception in `compute` is shown above the last good picture. A new explorer of the same
    name closes the models of the old one, so a cell run again and again leaves no more than one.
    """

    def __init__(
        self,
        name: str,
        compute: Callable[..., list[Step]],
        controls: Sequence[Number | Choice | Text],
        *,
        step_label: str = "tile",
    ):
        self.name, self._compute, self._label = name, compute, step_label
        self.steps: list[Step] = []
        self._muted = False
        if name in _open:
            _open.pop(name).close()
        self._controls = {control.name: control.widget() for control in controls}
        self._stage = Stage(label=step_label, name=name)
        self._slider = ipywidgets.IntSlider(
            min=0, max=0, description=step_label, readout=False, style=WIDE
        )
        self._link = ipywidgets.jslink((self._slider, "value"), (self._stage, "index"))
        row = ipywidgets.HBox(list(self._controls.values()))
        row.add_class("flashkit-controls")
        super().__init__([row, self._slider, self._stage])
        self.add_class("flashkit-explorer")
        for control in self._controls.values():
            control.observe(self._changed, "value")
        self._changed()
        _open[name] = self
        if _graded():
            self.close()

    @property
    def index(self) -> int:
        """The step shown, from 0."""
        return self._stage.index

    @index.setter
    def index(self, value: int) -> None:
        self._stage.index = value
        self._slider.value = self._stage.index

    @property
    def values(self) -> dict:
        """What the controls say, by name."""
        return {name: control.value for name, control in self._controls.items()}

    @property
    def error(self) -> str:
        """What went wrong in the last computation; "" if nothing did."""
        return self._stage.error

    def set(self, **values) -> None:
        """Set controls by name, as a reader would, and compute once."""
        self._muted = True
        try:
            for name, value in values.items():
                self._controls[name].value = value
        finally:
            self._muted = False
            self._changed()

    def _changed(self, _change=None) -> None:
        """Compute the steps from the controls; keep the old ones where that fails."""
        if self._muted:
            return
        self._stage.busy = True
        error, steps = "", self.steps
        try:
            steps = list(self._compute(**self.values))
            if not steps:
                raise ValueError("there is nothing to show for these values")
        except Exception as problem:  # whatever it is, the reader sees it, not a silent stage
            named = "" if isinstance(problem, ValueError) else f"{type(problem).__name__}: "
            error, steps = f"{named}{problem}", self.steps
        self._show(steps, error)

    def _show(self, steps: list[Step], error: str) -> None:
        """Send all of it as one message, so that new steps never meet an old index."""
        index = max(0, min(self.index, len(steps) - 1))
        with self._stage.hold_sync():
            if steps is not self.steps:
                self._stage.steps = [step.to_json() for step in steps]
            self._stage.index, self._stage.error, self._stage.busy = index, error, False
            self._stage.revision += 1
        self.steps = steps
        with self._slider.hold_sync():
            self._slider.max = max(0, len(steps) - 1)
            self._slider.value = index

    def close(self) -> None:
        """Close every model of this explorer, its layouts and styles included."""
        row = self.children[0]
        parts = [*self._controls.values(), self._slider, self._stage, row]
        for widget in parts:
            for owned in (widget.layout, getattr(widget, "style", None)):
                if owned is not None:
                    owned.close()
            widget.close()
        self._link.close()
        self.layout.close()
        super().close()
        self.__dict__.pop("_repr_mimebundle_", None)  # ipywidgets sets None: nothing would show

    def __repr__(self) -> str:
        return fallback.text(self.name, self.steps, self._label, self.error)

    def _repr_mimebundle_(self, **kwargs) -> dict:
        """The live view, and beside it what shows where no script runs; closed, only that."""
        table = fallback.html(self.name, self.steps, self._label, self.error)
        live = {} if self.comm is None else super()._repr_mimebundle_(**kwargs)
        return {**live, "text/plain": repr(self), "text/html": table}


def _graded() -> bool:
    """Whether nbgrader runs this notebook: nobody can move a slider there."""
    return bool(os.environ.get("NBGRADER_EXECUTION"))
