"""Where a battery takes place: what attackers are told, and the witnesses that watch them."""

import os
import secrets
import socket
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from autograder.attacks.battery import FOLDER, Scene
from autograder.hidden import HIDDEN

REPOSITORY = FOLDER.parents[1]
CANARY = "ATTACK_CANARY"
"""The environment variable that holds a secret in the supervisor."""
GONE_S = 5.0


class Listener:
    """A server of this machine that hears what gets out of a jail, by TCP or UDP."""

    def __init__(self, secret: str):
        self.heard, self._secret = 0, secret.encode()
        self._tcp = socket.create_server(("127.0.0.1", 0))
        self.port = self._tcp.getsockname()[1]
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._udp.bind(("127.0.0.1", self.port))
        for serve in (self._serve_tcp, self._serve_udp):
            threading.Thread(target=serve, daemon=True).start()

    def _serve_tcp(self) -> None:
        while True:
            line, _ = self._tcp.accept()
            with line:
                self.heard += 1
                line.sendall(self._secret)

    def _serve_udp(self) -> None:
        while True:
            _, sender = self._udp.recvfrom(64)
            self.heard += 1
            self._udp.sendto(self._secret, sender)


@contextmanager
def stage(course: Path) -> Iterator[tuple[Scene, str, Listener]]:
    """The scene for attacks on a course, the secret that nobody may see, and who listens."""
    secret = f"canary-{secrets.token_hex(12)}"
    listener = Listener(secret)
    os.environ[CANARY] = secret
    with tempfile.TemporaryDirectory(prefix="check-canary-") as other:
        Path(other, "answer").write_text(secret, encoding="utf-8")
        facts = {
            "COURSE": str(course),
            "WORK": str(course / "work"),
            "REPOSITORY": str(REPOSITORY),
            "PORT": str(listener.port),
            "TEMP": tempfile.gettempdir(),
            "CANARY": secret,
            "HIDDEN": HIDDEN["online_update"][0].name,
        }
        try:
            yield Scene(facts), secret, listener
        finally:
            del os.environ[CANARY]


def marked(number: int) -> str:
    """A mark for what attack `number` leaves; 15 characters are all a name of a process holds."""
    return f"atk{secrets.token_hex(4)}{number:03d}"


def leftovers(mark: str, course: Path) -> list[str]:
    """What an attack has left outside its jail, one sentence each; files are removed."""
    places = [REPOSITORY / "flashkit", REPOSITORY / "flashkit" / "__pycache__"]
    places += [Path(sysconfig.get_paths()["purelib"]), course / "work", course / "work/verdicts"]
    found = []
    for place in places:
        for path in place.glob(f"{mark}*"):
            path.unlink()
            found.append(f"it wrote {path.name} into {place.name}")
    deadline = time.monotonic() + GONE_S
    while (alive := processes(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid in alive:
        os.kill(pid, 9)
    return found + ([f"{len(alive)} processes outlived the check"] if alive else [])


def processes(mark: str) -> list[int]:
    """The processes of this machine that bear `mark` in their name or their arguments."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            text = (folder / "comm").read_bytes() + (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if mark.encode() in text:
            found.append(int(folder.name))
    return found
