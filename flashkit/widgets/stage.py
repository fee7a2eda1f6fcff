"""The one view of all explorers: it draws `steps[index]` in the page, without a round trip."""

from pathlib import Path

import anywidget
import traitlets

HERE = Path(__file__).parent


class Stage(anywidget.AnyWidget):
    """All steps as data, and the index of the one shown. `stage.js` draws; nothing else does."""

    _esm = HERE / "stage.js"
    _css = HERE / "stage.css"
    steps = traitlets.List(traitlets.Dict()).tag(sync=True)
    index = traitlets.Int(0).tag(sync=True)
    label = traitlets.Unicode("step").tag(sync=True)
    name = traitlets.Unicode("").tag(sync=True)
    error = traitlets.Unicode("").tag(sync=True)
    busy = traitlets.Bool(False).tag(sync=True)  # the kernel computes other steps just now
    revision = traitlets.Int(0).tag(sync=True)  # how often it has done so

    @traitlets.validate("index")
    def _inside(self, proposal) -> int:
        return max(0, min(proposal["value"], len(self.steps) - 1))

    def __repr__(self) -> str:
        return f"Stage({self.name!r}, {len(self.steps)} steps)"
